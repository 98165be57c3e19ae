import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
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
    private static final int ID_BYTES = 6;
    private static final int IDS_KEPT = 1_024;

    private Snapshots() {}

    /** Returns the objection to a snapshot that should follow a session's head, or null. */
    static Guards.Objection object(Snapshot snapshot, SessionState row) {
        var broken = objectToChain(snapshot, row.getSnapshot().getSnapshotId());
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
        byte[] known = row.getSnapshotIds().array();
        byte[] packed = packed(row.getSnapshot().getSnapshotId());
        byte[] all = Arrays.copyOf(known, known.length + ID_BYTES);
        System.arraycopy(packed, 0, all, known.length, ID_BYTES);
        int surplus = Math.max(0, all.length - IDS_KEPT * ID_BYTES);
        row.setSnapshotIds(ByteBuffer.wrap(Arrays.copyOfRange(all, surplus, all.length)));
        row.setSnapshot(snapshot);
    }

    private static boolean isKnown(SessionState row, String snapshotId) {
        byte[] known = row.getSnapshotIds().array();
        byte[] packed = packed(snapshotId);
        boolean found = snapshotId.equals(row.getSnapshot().getSnapshotId());
        for (int place = 0; place < known.length && !found; place += ID_BYTES) {
            found = Arrays.equals(known, place, place + ID_BYTES, packed, 0, ID_BYTES);
        }
        return found;
    }

    private static byte[] packed(String snapshotId) {
        return ID.matcher(snapshotId).matches()
            ? HexFormat.of().parseHex(snapshotId.substring(5))
            : Arrays.copyOf(Hashes.sha256(snapshotId), ID_BYTES);
    }

    /** Returns the objection to a session's first snapshot, or null; it may also follow none. */
    static Guards.Objection objectToFirst(SessionCreated event) {
        var snapshot = event.getSnapshot();
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
