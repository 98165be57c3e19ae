import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.List;
import sessionary.common.DataClass;
import sessionary.common.SessionLimits;
import sessionary.events.SessionCreated;
import sessionary.records.SessionState;

/** A new session's row, and what transitions change in a row beside its state. */
final class SessionRows {
    private SessionRows() {}

    static SessionState newRow(
        TransitionTable.Transition creation, SessionCreated event, SessionLimits limits, long nowMs
    ) {
        var envelope = event.getEnvelope();
        var row = new SessionState();
        row.setTenantId(envelope.getTenantId());
        row.setSessionId(envelope.getSessionId());
        row.setUserId(envelope.getUserId());
        row.setAgentId(envelope.getAgentId());
        row.setOwnerService(envelope.getServiceId());
        row.setState(creation.target());
        row.setPhase(creation.phase());
        row.setEpoch(1);
        row.setVersion(1L);
        row.setReasonCode("created");
        row.setLimits(limits);
        row.setCreatedAt(nowMs);
        row.setEnteredAt(nowMs);
        row.setLastEventAt(nowMs);
        row.setLastWorkAt(nowMs);
        row.setStateSchemaVersion(event.getSnapshot().getSchemaVersion());
        row.setStateJson(event.getSnapshot().getStateJson());
        row.setSnapshot(event.getSnapshot());
        row.setDataClasses(new ArrayList<>());
        addClasses(row, envelope.getDataClasses());
        row.setProducers(new ArrayList<>());
        row.setForgotten(new ArrayList<>());
        row.setHolder(envelope.getProducerId());
        row.setOwnerHeardAt(nowMs);
        row.setOpenRuns(List.of());
        row.setAgents(List.of());
        row.setRejections(new ArrayList<>());
        row.setCleanups(new ArrayList<>());
        row.setAnswers(List.of());
        row.setTransactions(List.of());
        row.setSnapshotIds(ByteBuffer.allocate(0));
        row.setExternalId(event.getExternalId());
        row.setParentSessionId(event.getParentSessionId());
        row.setRestoredFromSnapshotId(event.getRestoredFromSnapshotId());
        return row;
    }

    /** Adds the classes of data that an event declares; they stay sorted by name. */
    static void addClasses(SessionState row, List<DataClass> declared) {
        if (declared.isEmpty() || row.getDataClasses().containsAll(declared)) {
            return;
        }
        var all = new ArrayList<>(declared);
        all.addAll(row.getDataClasses());
        row.setDataClasses(sortClasses(all));
    }

    /** Returns classes of data once each, sorted by name. */
    static List<DataClass> sortClasses(List<DataClass> classes) {
        if (classes.size() < 2) {
            return classes;
        }
        var sorted = new ArrayList<>(EnumSet.copyOf(classes));
        sorted.sort(Comparator.comparing(Enum::name));
        return sorted;
    }

    static void applyEffect(TransitionTable.Effect effect, SessionState row, long nowMs) {
        Long dueMs = row.getMaxDueAt();
        switch (effect) {
            case KEEP_SESSION -> {}
            case BEGIN_DURATION -> row.setMaxDueAt(nowMs + row.getLimits().getMaxDurationMs());
            case STOP_DURATION -> row.setMaxDueAt(dueMs == null ? 0L : Math.max(0L, dueMs - nowMs));
            case RESUME_HELD -> {
                row.setMaxDueAt(nowMs + (dueMs == null ? 0L : dueMs));
                row.setEpoch(row.getEpoch() + 1);
            }
            case REVIVE -> {
                row.setEpoch(row.getEpoch() + 1);
                row.setReleasedAt(null);
            }
            case COUNT_RECOVERY -> {
                row.setEpoch(row.getEpoch() + 1);
                row.setRecoveryAttempts(row.getRecoveryAttempts() + 1);
            }
        }
    }
}
