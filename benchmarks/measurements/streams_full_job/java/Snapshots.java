import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.regex.Pattern;
import sessionary.common.Compression;
import sessionary.common.Snapshot;
import sessionary.common.SnapshotEncoding;
import sessionary.events.SessionCreated;
import sessionary.records.SessionState;

/**
 * Snapshots: each follows the head of its session's chain, has a new id, and has the hash of its content.
 *
 * <p>Only whole ones are judged, without compression, that say no more than the state.
 */
final class Snapshots {
    private static final Pattern ID = Pattern.compile("snap_[0-9a-f]{12}");
    private static final int NUMBER_BYTES = 6;
    private static final int RANGE_BYTES = 2 * NUMBER_BYTES;
    private static final int RANGES_MAX = 1_024;

    private Snapshots() {}

    /** Returns the objection to a snapshot that should follow a session's head, or null. */
    static Guards.Objection object(Snapshot snapshot, SessionState row) {
        var broken = objectToChain(snapshot, row.getSnapshot().getSnapshotId());
        if (broken == null) {
            broken = objectToId(snapshot.getSnapshotId());
        }
        if (broken != null) {
            return broken;
        }
        if (isKnown(row, snapshot.getSnapshotId())) {
            String detail = "snapshot " + snapshot.getSnapshotId() + " exists in the session";
            return new Guards.Objection("snapshot_exists", detail + ": take it again under a new id");
        }
        return objectToHash(snapshot);
    }

    /** Makes a snapshot the head; the id of the former head is kept. */
    static void take(SessionState row, Snapshot snapshot) {
        byte[] known = withNumber(row.getSnapshotIds().array(), numberOf(row.getSnapshot().getSnapshotId()));
        row.setSnapshotIds(ByteBuffer.wrap(known));
        row.setSnapshot(snapshot);
    }

    private static boolean isKnown(SessionState row, String snapshotId) {
        byte[] ranges = row.getSnapshotIds().array();
        long number = numberOf(snapshotId);
        boolean found = snapshotId.equals(row.getSnapshot().getSnapshotId());
        for (int place = 0; place < ranges.length && !found; place += RANGE_BYTES) {
            found = firstOf(ranges, place) <= number && number <= lastOf(ranges, place);
        }
        return found;
    }

    /** Returns ascending ranges with one more number, which is in none of them. */
    private static byte[] withNumber(byte[] ranges, long number) {
        int start = 0;
        while (start < ranges.length && firstOf(ranges, start) <= number) {
            start += RANGE_BYTES;
        }
        int end = start;
        long first = number;
        long last = number;
        if (start > 0 && lastOf(ranges, start - RANGE_BYTES) == number - 1) {
            start -= RANGE_BYTES;
            first = firstOf(ranges, start);
        }
        if (end < ranges.length && firstOf(ranges, end) == number + 1) {
            last = lastOf(ranges, end);
            end += RANGE_BYTES;
        }
        var longer = ByteBuffer.allocate(start + RANGE_BYTES + ranges.length - end);
        longer.put(ranges, 0, start).put(packed(first)).put(packed(last)).put(ranges, end, ranges.length - end);
        return longer.capacity() <= RANGES_MAX * RANGE_BYTES ? longer.array() : withNearestJoined(longer.array());
    }

    private static byte[] withNearestJoined(byte[] ranges) {
        int nearest = 0;
        long least = Long.MAX_VALUE;
        for (int place = 0; place < ranges.length - RANGE_BYTES; place += RANGE_BYTES) {
            long gap = firstOf(ranges, place + RANGE_BYTES) - lastOf(ranges, place);
            if (gap < least) {
                nearest = place;
                least = gap;
            }
        }
        int after = nearest + RANGE_BYTES + NUMBER_BYTES;
        var joined = ByteBuffer.allocate(ranges.length - RANGE_BYTES);
        return joined.put(ranges, 0, nearest + NUMBER_BYTES).put(ranges, after, ranges.length - after).array();
    }

    private static long firstOf(byte[] ranges, int place) {
        return ByteBuffer.allocate(Long.BYTES).position(2).put(ranges, place, NUMBER_BYTES).getLong(0);
    }

    private static long lastOf(byte[] ranges, int place) {
        return firstOf(ranges, place + NUMBER_BYTES);
    }

    private static byte[] packed(long number) {
        return Arrays.copyOfRange(ByteBuffer.allocate(Long.BYTES).putLong(number).array(), 2, Long.BYTES);
    }

    private static long numberOf(String snapshotId) {
        return Long.parseLong(snapshotId.substring(5), 16);
    }

    private static Guards.Objection objectToId(String snapshotId) {
        return ID.matcher(snapshotId).matches() ? null : new Guards.Objection(
            "invalid_value", "snapshot_id '" + snapshotId + "' is not snap_ and 12 hex digits");
    }

    /** Returns the objection to a session's first snapshot, or null; it may also follow none. */
    static Guards.Objection objectToFirst(SessionCreated event) {
        var snapshot = event.getSnapshot();
        var wrong = objectToId(snapshot.getSnapshotId());
        if (wrong != null) {
            return wrong;
        }
        return snapshot.getParentSnapshotId() == null
            ? objectToHash(snapshot)
            : objectToRestored(snapshot, event.getRestoredFromSnapshotId());
    }

    private static Guards.Objection objectToRestored(Snapshot snapshot, String head) {
        var broken = objectToChain(snapshot, head);
        return broken == null ? objectToHash(snapshot) : broken;
    }

    private static Guards.Objection objectToChain(Snapshot snapshot, String head) {
        String parent = snapshot.getParentSnapshotId();
        if (parent == null ? head == null : parent.equals(head)) {
            return null;
        }
        String detail = "snapshot " + snapshot.getSnapshotId() + " follows " + textOf(parent);
        return new Guards.Objection("broken_chain", detail + ", but the head of the chain is " + textOf(head));
    }

    private static Guards.Objection objectToHash(Snapshot snapshot) {
        boolean isWhole = snapshot.getEncoding() == SnapshotEncoding.full
            && snapshot.getCompression() == Compression.none;
        boolean saysMore = snapshot.getContext() != null || snapshot.getConversationId() != null
            || snapshot.getTurn() != null || snapshot.getTotalTokens() != null || snapshot.getTool() != null
            || !snapshot.getMessages().isEmpty() || !snapshot.getResources().isEmpty()
            || !snapshot.getMetadata().isEmpty();
        if (!isWhole || saysMore) {
            throw new UnsupportedOperationException("not judged here: " + snapshot);
        }
        if (snapshot.getContentHash().equals(Hashes.ofContent(snapshot.getStateJson()))) {
            return null;
        }
        String detail = "the hash of snapshot " + snapshot.getSnapshotId() + " is not that of its content";
        return new Guards.Objection("hash_mismatch", detail);
    }

    private static String textOf(String snapshotId) {
        return snapshotId == null ? "None" : snapshotId;
    }
}
