import java.time.LocalDate;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import sessionary.common.DataClass;

/** How long a record with classes of data is kept: compliance tags and two dates (µs since the epoch). */
final class Retention {
    private static final long DAY_US = 86_400_000_000L;

    private record Period(DataClass dataClass, String tag, int years) {}

    private static final List<Period> YEARS =
        List.of(new Period(DataClass.financial, "sox_audit", 7), new Period(DataClass.medical, "hipaa_privacy", 6));
    private static final String PERSONAL_TAG = "gdpr_retention";
    private static final long PERSONAL_US = 30 * DAY_US;
    private static final long DEFAULT_US = 365 * DAY_US;

    private Retention() {}

    static List<String> complianceTags(List<DataClass> classes) {
        if (classes.isEmpty()) {
            return List.of();
        }
        var tags = new TreeSet<String>();
        YEARS.stream().filter(period -> classes.contains(period.dataClass)).forEach(period -> tags.add(period.tag));
        if (classes.contains(DataClass.personal)) {
            tags.add(PERSONAL_TAG);
        }
        return new ArrayList<>(tags);
    }

    static String retentionClass(List<DataClass> classes) {
        for (var period : YEARS) {
            if (classes.contains(period.dataClass)) {
                return period.tag;
            }
        }
        return classes.contains(DataClass.personal) ? PERSONAL_TAG : "default";
    }

    static long retainUntil(List<DataClass> classes, long appendedUs) {
        for (var period : YEARS) {
            if (classes.contains(period.dataClass)) {
                return appendedUs + yearsUs(period.years, Math.floorDiv(appendedUs, DAY_US));
            }
        }
        return appendedUs + (classes.contains(DataClass.personal) ? PERSONAL_US : DEFAULT_US);
    }

    static Long personalUntil(List<DataClass> classes, long appendedUs) {
        return classes.contains(DataClass.personal) ? appendedUs + PERSONAL_US : null;
    }

    private static long yearsUs(int years, long day) {
        var start = LocalDate.ofEpochDay(day);
        boolean isLeapDay = start.getMonthValue() == 2 && start.getDayOfMonth() == 29;
        var end = isLeapDay ? LocalDate.of(start.getYear() + years, 3, 1) : start.withYear(start.getYear() + years);
        return (end.toEpochDay() - day) * DAY_US;
    }
}
