import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.avro.Schema;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.specific.SpecificRecordBase;
import sessionary.common.Envelope;

/**
 * Which value of an event exceeds its bound: lengths of texts and lists, and numbers.
 *
 * <p>The bounds come from the file of the table. The checks of a class are made from its schema when its first event
 * comes, because every event passes them.
 */
final class ValueBounds {
    /** Returns what is wrong with a value, or null. */
    private interface Check {
        String find(Object value);
    }

    private record FieldCheck(int place, Check check) {}

    private final Map<String, Integer> characters = new HashMap<>();
    private final int itemsMax;
    private final long numberMax;
    private final Set<String> unboundedNumbers;
    private final Set<String> envelopeNumbers;
    private final Set<String> checkedElsewhere;
    private final Check envelopeTextCheck;
    private final Check envelopeNumberCheck;
    private final Map<Class<?>, Check> eventChecks = new HashMap<>();

    ValueBounds(JsonNode bounds) {
        bounds.get("characters").properties().forEach(each -> characters.put(each.getKey(), each.getValue().asInt()));
        itemsMax = bounds.get("items").asInt();
        numberMax = bounds.get("number").asLong();
        unboundedNumbers = readTexts(bounds.get("unbounded_numbers"));
        envelopeNumbers = readTexts(bounds.get("envelope_numbers"));
        checkedElsewhere = readTexts(bounds.get("checked_elsewhere"));
        var envelope = Envelope.getClassSchema();
        List<Schema.Field> texts = new ArrayList<>(envelope.getFields());
        texts.removeIf(field -> isNumber(field.schema()));
        envelopeTextCheck = checkOfFields(envelope, texts, "");
        List<Schema.Field> numbers = new ArrayList<>(envelope.getFields());
        numbers.removeIf(field -> !envelopeNumbers.contains(field.name()));
        envelopeNumberCheck = checkOfFields(envelope, numbers, "");
    }

    /** Returns which text or list of an envelope is too long, or null. */
    String findLongText(Envelope envelope) {
        return envelopeTextCheck.find(envelope);
    }

    /** Returns which value of an event, or number of its envelope, is out of bounds, or null. */
    String findInvalid(SpecificRecordBase event) {
        String wrong = envelopeNumberCheck.find(event.get(0));
        if (wrong != null) {
            return wrong;
        }
        var check = eventChecks.get(event.getClass());
        if (check == null) {
            check = checkOfFields(event.getSchema(), event.getSchema().getFields(), "");
            eventChecks.put(event.getClass(), check);
        }
        return check.find(event);
    }

    private Check checkOfFields(Schema schema, List<Schema.Field> fields, String path) {
        List<FieldCheck> found = new ArrayList<>();
        for (var field : fields) {
            if (!checkedElsewhere.contains(field.name())) {
                var check = checkOf(field.schema(), schema.getName() + ".", field.name(), path + field.name());
                if (check != null) {
                    found.add(new FieldCheck(field.pos(), check));
                }
            }
        }
        if (found.isEmpty()) {
            return record -> null;
        }
        var checks = found.toArray(new FieldCheck[0]);
        return record -> findInFields((IndexedRecord) record, checks);
    }

    private static String findInFields(IndexedRecord record, FieldCheck[] checks) {
        for (var field : checks) {
            Object value = record.get(field.place);
            String wrong = value == null ? null : field.check.find(value);
            if (wrong != null) {
                return wrong;
            }
        }
        return null;
    }

    /** Returns the check of a field's value, or null if nothing bounds it. */
    private Check checkOf(Schema schema, String owner, String field, String path) {
        return switch (schema.getType()) {
            case UNION -> checkOf(schema.getTypes().get(1), owner, field, path);
            case STRING -> checkOfText(characters.get(owner + field), path);
            case INT, LONG -> unboundedNumbers.contains(field) ? null : checkOfNumber(path);
            case DOUBLE -> number -> findInfinite((Double) number, path);
            case RECORD -> checkOfFields(schema, schema.getFields(), path + ".");
            case ARRAY -> checkOfItems(checkOf(schema.getElementType(), owner, field, path + "[]"), path);
            default -> null;
        };
    }

    private static Check checkOfText(Integer most, String path) {
        if (most == null) {
            return null;
        }
        return value -> {
            String text = (String) value;
            if (text.length() <= most) { // as almost every text: it has no more characters than that
                return null;
            }
            int length = text.codePointCount(0, text.length());
            return length <= most ? null : path + " has " + length + " characters, more than " + most;
        };
    }

    private Check checkOfNumber(String path) {
        return value -> {
            long number = ((Number) value).longValue();
            boolean isWithin = 0 <= number && number <= numberMax;
            return isWithin ? null : path + " is " + number + "; it must be from 0 to " + numberMax;
        };
    }

    private static String findInfinite(double number, String path) {
        if (Double.isFinite(number)) {
            return null;
        }
        String text = Double.isNaN(number) ? "nan" : number > 0 ? "inf" : "-inf";
        return path + " is " + text + ", not a finite number";
    }

    private Check checkOfItems(Check ofItem, String path) {
        return value -> {
            var items = (Collection<?>) value;
            if (items.size() > itemsMax) {
                return path + " has " + items.size() + " items, more than " + itemsMax;
            }
            if (ofItem != null) {
                for (Object item : items) {
                    String wrong = ofItem.find(item);
                    if (wrong != null) {
                        return wrong;
                    }
                }
            }
            return null;
        };
    }

    private static boolean isNumber(Schema schema) {
        var type = schema.getType() == Schema.Type.UNION ? schema.getTypes().get(1).getType() : schema.getType();
        return type == Schema.Type.INT || type == Schema.Type.LONG;
    }

    private static Set<String> readTexts(JsonNode texts) {
        Set<String> found = new HashSet<>();
        texts.forEach(text -> found.add(text.asText()));
        return Set.copyOf(found);
    }
}
