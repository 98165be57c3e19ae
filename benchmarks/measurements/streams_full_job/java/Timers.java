import java.util.HashMap;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.function.ToLongFunction;
import org.apache.kafka.common.utils.Bytes;

/**
 * Which rows are due: a heap in memory, made from the rows at the start.
 *
 * <p>A deadline that moves to a later time leaves its entry where it is: an entry that comes up too early is put in
 * again at the row's deadline of that moment.
 */
final class Timers {
    static final long NEVER = Long.MAX_VALUE;

    /** A deadline, and the key of its row. */
    record Entry(long dueMs, Bytes key) implements Comparable<Entry> {
        @Override
        public int compareTo(Entry other) {
            int order = Long.compare(dueMs, other.dueMs);
            return order != 0 ? order : key.compareTo(other.key);
        }
    }

    private final PriorityQueue<Entry> heap = new PriorityQueue<>();
    private final Map<Bytes, Long> entries = new HashMap<>();

    void schedule(Bytes key, long dueMs) {
        Long known = entries.get(key);
        if (known == null || dueMs < known) {
            entries.put(key, dueMs);
            heap.add(new Entry(dueMs, key));
        }
    }

    /** Returns the earliest deadline up to `untilMs`, or null; `dueOf` tells a row's own, NEVER if it is gone. */
    Entry nextDue(ToLongFunction<Bytes> dueOf, long untilMs) {
        for (Entry first = heap.peek(); first != null && first.dueMs <= untilMs; first = heap.peek()) {
            Long known = entries.get(first.key);
            if (known == null || known != first.dueMs) {
                heap.poll();
                continue;
            }
            long dueMs = dueOf.applyAsLong(first.key);
            if (dueMs == first.dueMs) {
                return first;
            }
            heap.poll();
            entries.remove(first.key);
            if (dueMs != NEVER) {
                schedule(first.key, dueMs);
            }
        }
        return null;
    }
}
