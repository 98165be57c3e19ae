import java.math.BigDecimal;
import java.math.MathContext;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.avro.specific.SpecificRecordBase;
import sessionary.common.AuditKind;
import sessionary.common.Cleanup;
import sessionary.common.Envelope;
import sessionary.common.Phase;
import sessionary.common.SeqRange;
import sessionary.common.SessionStateName;
import sessionary.events.ResourcesReleased;
import sessionary.records.Tombstone;
import sessionary.records.SessionState;

/** What events and deadlines change in a session's row, with the records that each change leaves. */
final class SessionChanges {
    private static final int CLEANUPS_KEPT = 8;
    /** Events whose new epoch fences off those who spoke before. */
    private static final Set<String> FENCING = Set.of("session_resumed", "session_recovered");
    /** For so long an event may be delivered again, ms. */
    static final long REDELIVERY_MS = 1_209_600_000L;

    private final TransitionTable table;
    private final Outputs outputs;

    SessionChanges(TransitionTable table, Outputs outputs) {
        this.table = table;
        this.outputs = outputs;
    }

    /** Makes the transition of a session's earliest deadline; returns a tombstone if the session is archived. */
    SpecificRecordBase fire(byte[] key, SessionState row, long dueMs, long outageEndMs) {
        for (var clocked : table.clocksOf(row.getState())) {
            if (clocked.dueMs(row, outageEndMs) == dueMs) {
                String limit = formatSeconds(clocked.clock().limitMs(row));
                String reason = clocked.reason().replace("{limit}", limit);
                var grounds = Guards.Grounds.pass(clocked.reasonCode(), reason, null, null);
                move(key, row, clocked.transition(), grounds, null, dueMs);
                boolean isArchived = clocked.transition().target() == SessionStateName.Archived;
                return isArchived ? bury(row) : row;
            }
        }
        throw new IllegalStateException("no clock of " + row.getState() + " is due at " + dueMs);
    }

    /** Returns a session's earliest deadline, ms of log time; `outageEndMs`: of the log's last outage, 0 if none. */
    long dueMs(SessionState row, long outageEndMs) {
        long earliestMs = Timers.NEVER;
        for (var clocked : table.clocksOf(row.getState())) {
            earliestMs = Math.min(earliestMs, clocked.dueMs(row, outageEndMs));
        }
        return earliestMs;
    }

    /** Returns true if no event can make the session due earlier while it stays in its state. */
    static boolean isOnlyPostponed(SessionState row) {
        return row.getState() == SessionStateName.Active;
    }

    static String formatSeconds(long limitMs) {
        var seconds = BigDecimal.valueOf(limitMs).movePointLeft(3).round(new MathContext(6)).stripTrailingZeros();
        return seconds.toPlainString() + "s";
    }

    /** Notes that a clean-up is confirmed. */
    void release(byte[] key, SessionState row, Cleanup cleanup, ResourcesReleased released, Envelope envelope) {
        long nowMs = outputs.nowMs();
        cleanup.setReleased(true);
        row.setLastEventAt(nowMs);
        row.setLastWorkAt(nowMs);
        boolean isTimeout = row.getState() == SessionStateName.Timeout;
        if (isTimeout) {
            row.setPhase(Phase.released);
        }
        if ((isTimeout || row.getState() == SessionStateName.Terminated) && row.getReleasedAt() == null) {
            row.setReleasedAt(nowMs);
        }
        countAudit(row);
        var record = outputs.addAudit(key, row, envelope, AuditKind.release);
        record.setReasonCode(released.getHostLost() ? "host_lost" : "released");
        record.setReason("clean-up " + cleanup.getCleanupId() + " confirmed");
        record.setCleanupId(cleanup.getCleanupId());
        List<String> done = new ArrayList<>();
        List<String> failed = new ArrayList<>();
        released.getActions().forEach(action -> (action.getDone() ? done : failed).add(action.getAction()));
        record.setActionsDone(done);
        record.setActionsFailed(failed);
        record.setBytesReleased(released.getBytesReleased());
        record.setHostLost(released.getHostLost());
    }

    /** Makes a transition; `envelope` is null, and `dueMs` is set, if a clock made it. */
    void move(
        byte[] key,
        SessionState row,
        TransitionTable.Transition transition,
        Guards.Grounds grounds,
        Envelope envelope,
        long dueMs
    ) {
        long nowMs = outputs.nowMs();
        var before = row.getState();
        row.setState(transition.target());
        row.setPhase(transition.phase());
        row.setEnteredAt(nowMs);
        row.setLastEventAt(nowMs);
        row.setLastWorkAt(nowMs);
        row.setReasonCode(grounds.reasonCode());
        if (grounds.snapshot() != null) {
            Snapshots.take(row, grounds.snapshot());
        }
        row.setErrorClass(grounds.errorClass() == null ? row.getErrorClass() : grounds.errorClass());
        SessionRows.applyEffect(transition.effect(), row, nowMs);
        if (envelope != null && FENCING.contains(transition.eventType())) {
            row.setHolderEpoch(row.getEpoch());
        }
        countAudit(row);
        List<String> actions = transition.cleanup().actionsFor(grounds.reasonCode(), row.getReleasedAt() != null);
        var record = outputs.addAudit(key, row, envelope, AuditKind.transition);
        record.setTransition(transition.id());
        record.setEventType(transition.eventType());
        record.setFromState(before);
        record.setReasonCode(grounds.reasonCode());
        record.setReason(grounds.reason());
        if (grounds.snapshot() != null) {
            record.setSnapshotId(grounds.snapshot().getSnapshotId());
        }
        if (dueMs != Timers.NEVER) {
            record.setOccurredAt(dueMs * 1_000);
            record.setDueAt(dueMs * 1_000);
            record.setFiredAt(nowMs * 1_000);
            record.setUserId(row.getUserId());
        }
        if (!actions.isEmpty()) {
            String cleanupId = DerivedId.of(row.getTenantId() + ":" + row.getSessionId() + ":" + row.getAuditSeq());
            row.getCleanups().add(new Cleanup(cleanupId, nowMs, false, row.getOwnerService(), row.getEpoch(),
                grounds.reasonCode(), actions));
            if (row.getCleanups().size() > CLEANUPS_KEPT) {
                row.getCleanups().remove(0);
            }
            record.setCleanupId(cleanupId);
            record.setCleanupActions(actions);
            outputs.addCleanup(key, row, cleanupId, actions, grounds.reason());
        }
        outputs.addHash(record, row);
    }

    /** Reports the row's hash, as some events do that change no state. */
    void reportHash(byte[] key, SessionState row, Envelope envelope) {
        countAudit(row);
        var record = outputs.addAudit(key, row, envelope, AuditKind.state_hash);
        record.setReasonCode("state_hash");
        record.setReason("the row's hash");
        outputs.addHash(record, row);
    }

    void reportGap(byte[] key, SessionState row, Envelope envelope, SeqRange gap) {
        countAudit(row);
        Outputs.addGap(outputs.addAudit(key, row, envelope, AuditKind.gap), gap);
    }

    void measureContext(byte[] key, SessionState row, Envelope envelope) {
        Long size = envelope.getContextBytes();
        if (size == null) {
            return;
        }
        long limit = row.getLimits().getContextLimitBytes();
        boolean isExceeded = size > limit;
        if (isExceeded && !row.getContextExceeded()) {
            countAudit(row);
            var record = outputs.addAudit(key, row, envelope, AuditKind.context_limit);
            record.setReasonCode("context_limit");
            record.setReason("context of " + size + " bytes is above the limit of " + limit);
        }
        row.setContextBytes(size);
        row.setContextExceeded(isExceeded);
    }

    static void countAudit(SessionState row) {
        row.setAuditSeq(row.getAuditSeq() + 1);
    }

    private Tombstone bury(SessionState row) {
        for (var ledger : row.getProducers()) {
            ledger.setRecentIds(null);
            ledger.setOffsets(List.of());
        }
        Long madeMs = SessionKey.creationMs(row.getSessionId());
        long fromMs = madeMs == null ? outputs.nowMs() : Math.min(madeMs, outputs.nowMs());
        return new Tombstone(row.getTenantId(), row.getSessionId(), row.getProducers(), row.getReasonCode(),
            row.getEpoch(), row.getAuditSeq(), fromMs + REDELIVERY_MS);
    }
}
