import sessionary.common.Snapshot;
import sessionary.events.SessionCreated;

/** Checks of snapshots: each follows the head of its session's chain, and has the hash of its content. */
final class Snapshots {
    private Snapshots() {}

    /** Returns the objection to a snapshot that should follow `head`, or null. */
    static Guards.Objection object(Snapshot snapshot, String head) {
        var broken = objectToChain(snapshot, head);
        return broken == null ? objectToHash(snapshot) : broken;
    }

    /** Returns the objection to a session's first snapshot, or null; it may also follow none. */
    static Guards.Objection objectToFirst(SessionCreated event) {
        var snapshot = event.getSnapshot();
        return snapshot.getParentSnapshotId() == null
            ? objectToHash(snapshot)
            : object(snapshot, event.getRestoredFromSnapshotId());
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
