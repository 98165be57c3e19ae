import java.util.ArrayList;
import java.util.List;
import sessionary.common.Limits;
import sessionary.common.SessionLimits;

/** The check of a session's limits at its creation. */
final class SessionLimitChecks {
    private static final long LIMIT_MAX = 10_000_000_000_000L;

    private record Range(String name, long low, long high) {}

    private SessionLimitChecks() {}

    static SessionLimits withDefaults(Limits given) {
        return new SessionLimits(
            valueOr(given.getInitMs(), 15_000),
            valueOr(given.getModelMs(), 30_000),
            valueOr(given.getToolMs(), 20_000),
            valueOr(given.getNetworkMs(), 10_000),
            valueOr(given.getIdleMs(), 900_000),
            valueOr(given.getAttachedRunMs(), 900_000),
            valueOr(given.getMaxDurationMs(), 28_800_000),
            valueOr(given.getGraceMs(), 300_000),
            valueOr(given.getHoldMs(), 86_400_000),
            valueOr(given.getUserIdleMs(), 86_400_000),
            valueOr(given.getRecoveryMs(), 60_000),
            valueOr(given.getArchiveDelayMs(), 60_000),
            valueOr(given.getReleaseLimitMs(), 300_000),
            valueOr(given.getContextLimitBytes(), 200_000_000)
        );
    }

    /** Returns what is wrong with limits, or null. */
    static String findInvalid(SessionLimits limits, boolean override) {
        for (var field : limits.getSchema().getFields()) {
            long value = (Long) limits.get(field.pos());
            if (value <= 0 || value > LIMIT_MAX) {
                return field.name() + " is " + value + "; it must be above 0 and at most " + LIMIT_MAX;
            }
        }
        String outside = outsideRanges(limits);
        return outside.isEmpty() || override ? null : outside + "; set override where this is meant";
    }

    /** Returns, for people, each limit that lies outside its recommended range. */
    static String outsideRanges(SessionLimits limits) {
        List<String> outside = new ArrayList<>();
        addOutside(outside, new Range("model_ms", 30_000, 60_000), limits.getModelMs());
        addOutside(outside, new Range("tool_ms", 10_000, 30_000), limits.getToolMs());
        addOutside(outside, new Range("network_ms", 5_000, 15_000), limits.getNetworkMs());
        addOutside(outside, new Range("user_idle_ms", 60_000, 2_592_000_000L), limits.getUserIdleMs());
        var context = new Range("context_limit_bytes", 50_000_000, 200_000_000);
        addOutside(outside, context, limits.getContextLimitBytes());
        return String.join("; ", outside);
    }

    private static void addOutside(List<String> outside, Range range, long value) {
        if (value < range.low || value > range.high) {
            outside.add(range.name + " " + value + " is outside " + range.low + " to " + range.high);
        }
    }

    private static long valueOr(Long given, long otherwise) {
        return given == null ? otherwise : given;
    }
}
