import java.nio.charset.StandardCharsets;
import org.apache.avro.specific.SpecificRecordBase;
import sessionary.common.AuditKind;
import sessionary.common.Cleanup;
import sessionary.common.Envelope;
import sessionary.common.Phase;
import sessionary.common.Rejection;
import sessionary.common.RejectionReason;
import sessionary.common.SeqRange;
import sessionary.common.SessionStateName;
import sessionary.events.ResourcesReleased;
import sessionary.events.SessionCreated;
import sessionary.events.SessionPhaseChanged;
import sessionary.events.SessionStartFailed;
import sessionary.events.SessionTerminated;
import sessionary.events.SnapshotCreated;
import sessionary.events.StateUpdated;
import sessionary.records.Tombstone;
import sessionary.records.SessionState;

/**
 * Judges events against the rows of their sessions.
 *
 * <p>The order of the checks: envelope, sequence, sender, epoch, owner, event in its state. Rows are changed in place,
 * once nothing can be rejected any more; what is rejected after the sequence moves only the ledger.
 */
final class SessionJudge {
    private static final int REJECTIONS_KEPT = 16;
    private static final int STATE_BYTES_MAX = 1 << 20;

    private final TransitionTable table;
    private final Guards guards;
    private final Outputs outputs;
    private final SessionChanges changes;

    SessionJudge(TransitionTable table, Outputs outputs, SessionChanges changes) {
        this.table = table;
        this.guards = new Guards(table.recoveryAttemptsMax());
        this.outputs = outputs;
        this.changes = changes;
    }

    /** Returns the row after an event of a live session; null if the event changes nothing. */
    SessionState judge(byte[] key, SessionState row, SpecificRecordBase event, Envelope envelope) {
        String wrong = EnvelopeChecks.findInvalid(envelope, row);
        if (wrong != null) {
            return reject(key, row, envelope, new Guards.Objection("invalid_value", wrong));
        }
        String type = envelope.getEventType();
        boolean isHeartbeat = type.equals("heartbeat");
        if (!isHeartbeat) {
            long seq = envelope.getProducerSeq();
            var check = SequenceLedger.take(row.getProducers(), envelope.getProducerId(), seq);
            if (check.isDuplicate()) {
                return null;
            }
            if (check.rejection() != null) {
                String detail = "number " + seq + " of producer " + envelope.getProducerId();
                return reject(key, row, envelope, new Guards.Objection(check.rejection(), detail));
            }
            if (check.gap() != null) {
                changes.reportGap(key, row, envelope, check.gap());
            }
        }
        var objection = objectToSender(row, event, envelope);
        if (objection == null) {
            objection = apply(key, row, event, envelope);
        }
        return objection == null ? row : reject(key, row, envelope, objection);
    }

    /** Returns the row of a new session, or null if its creation is rejected. */
    SessionState create(byte[] key, SessionCreated event) {
        Envelope envelope = event.getEnvelope();
        var limits = SessionLimitChecks.withDefaults(event.getLimits());
        String wrong = EnvelopeChecks.findInvalid(envelope, null);
        String reason = wrong == null ? "invalid_limits" : "invalid_value";
        wrong = wrong == null ? SessionLimitChecks.findInvalid(limits, event.getLimits().getOverride()) : wrong;
        if (wrong != null) {
            rejectUnknown(key, envelope, reason, wrong);
            return null;
        }
        SessionState row = SessionRows.newRow(table.creation(), event, limits, outputs.nowMs());
        var check = SequenceLedger.take(row.getProducers(), envelope.getProducerId(), envelope.getProducerSeq());
        row.setAuditSeq(1L);
        var record = outputs.addAudit(key, row, envelope, AuditKind.transition);
        record.setTransition(table.creation().id());
        record.setFromState(SessionStateName.UNKNOWN);
        record.setReasonCode("created");
        record.setReason("created");
        if (check.gap() != null) {
            changes.reportGap(key, row, envelope, check.gap());
        }
        String outside = SessionLimitChecks.outsideRanges(limits);
        if (!outside.isEmpty()) {
            SessionChanges.countAudit(row);
            var override = outputs.addAudit(key, row, envelope, AuditKind.limits_override);
            override.setReasonCode("limits_override");
            override.setReason(outside);
        }
        changes.measureContext(key, row, envelope);
        return row;
    }

    /** Rejects an event of a session that is not there. */
    void rejectUnknown(byte[] key, Envelope envelope, String reason, String detail) {
        Outputs.addRejection(outputs.addAudit(key, (Tombstone) null, envelope, AuditKind.rejection), reason, detail);
        outputs.addRejected(reason, detail, envelope);
    }

    /** Rejects an event of an archived session, unless it repeats one; returns whether the tombstone changed. */
    boolean rejectArchived(byte[] key, Tombstone tombstone, Envelope envelope) {
        String detail = "the session is archived";
        if (EnvelopeChecks.findInvalid(envelope, null) == null) {
            var check = SequenceLedger.take(tombstone.getProducers(), envelope.getProducerId(), envelope.getProducerSeq());
            if (check.isDuplicate()) {
                return false;
            }
            if (check.gap() != null) {
                tombstone.setAuditSeq(tombstone.getAuditSeq() + 1);
                Outputs.addGap(outputs.addAudit(key, tombstone, envelope, AuditKind.gap), check.gap());
            }
        }
        tombstone.setAuditSeq(tombstone.getAuditSeq() + 1);
        Outputs.addRejection(outputs.addAudit(key, tombstone, envelope, AuditKind.rejection), "session_archived", detail);
        outputs.addRejected("session_archived", detail, envelope);
        return true;
    }

    private Guards.Objection objectToSender(SessionState row, SpecificRecordBase event, Envelope envelope) {
        String type = envelope.getEventType();
        if (table.isProcessorOnly(type, reasonOf(event))) {
            return new Guards.Objection("processor_only", type + " is a processor's to say");
        }
        int claimed = envelope.getEpoch();
        boolean isExempt = type.equals("session_created") || type.equals("resources_released");
        if (claimed != row.getEpoch() && !isExempt) {
            String reason = claimed < row.getEpoch() ? "stale_epoch" : "future_epoch";
            return new Guards.Objection(reason, "epoch " + claimed + ", but the session is at " + row.getEpoch());
        }
        if (type.equals("session_created")) {
            return new Guards.Objection("session_exists", "a session of this id exists");
        }
        if (table.isOwnerOnly(type) && !envelope.getServiceId().equals(row.getOwnerService())) {
            String detail = type + " is " + row.getOwnerService() + "'s to say, not " + envelope.getServiceId() + "'s";
            return new Guards.Objection("not_owner", detail);
        }
        return null;
    }

    private Guards.Objection apply(byte[] key, SessionState row, SpecificRecordBase event, Envelope envelope) {
        String type = envelope.getEventType();
        var state = row.getState();
        var transition = table.find(state, type);
        if (transition != null) {
            String given = reasonOf(event);
            if (!transition.reasons().isEmpty() && !transition.reasons().contains(given)) {
                String allowed = String.join(", ", transition.reasons());
                String detail = given + " does not end a session in " + state + "; " + allowed + " do";
                return new Guards.Objection("invalid_reason", detail);
            }
            var grounds = guards.judge(transition.guard(), row, event, outputs.nowMs());
            if (grounds.objection() != null) {
                return grounds.objection();
            }
            SessionRows.addClasses(row, envelope.getDataClasses());
            changes.move(key, row, transition, grounds, envelope, Timers.NEVER);
        } else if (table.accepts(state, type)) {
            var objection = accept(key, row, event, envelope);
            if (objection != null) {
                return objection;
            }
            SessionRows.addClasses(row, envelope.getDataClasses());
        } else if (state == SessionStateName.Timeout && table.isPossibleIn(SessionStateName.Active, type)) {
            return new Guards.Objection("late", type + " came after the session timed out; resume it first");
        } else {
            return new Guards.Objection("illegal_transition", type + " is not possible in " + state);
        }
        changes.measureContext(key, row, envelope);
        return null;
    }

    /** Takes an event without a change of state. Most events are work, and only move the clocks of activity. */
    private Guards.Objection accept(byte[] key, SessionState row, SpecificRecordBase event, Envelope envelope) {
        long nowMs = outputs.nowMs();
        if (event instanceof SessionPhaseChanged changed) {
            if (!table.follows(row.getState(), row.getPhase(), changed.getPhase())) {
                String detail = changed.getPhase() + " does not follow " + row.getPhase() + " in " + row.getState();
                return new Guards.Objection("phase_order", detail);
            }
            row.setPhase(changed.getPhase());
        } else if (event instanceof StateUpdated updated) {
            var objection = objectToContent(row, updated);
            if (objection != null) {
                return objection;
            }
            row.setVersion(updated.getNewVersion());
            row.setStateJson(updated.getStateJson());
            row.setPhase(Phase.processing);
        } else if (event instanceof SnapshotCreated created) {
            row.setSnapshot(created.getSnapshot());
        } else if (event instanceof ResourcesReleased released) {
            return release(key, row, released, envelope);
        } else if (envelope.getEventType().equals("heartbeat")) {
            if (row.getState() == SessionStateName.Active) {
                row.setLastEventAt(nowMs);
            }
            return null;
        }
        row.setLastEventAt(nowMs);
        row.setLastWorkAt(nowMs);
        return null;
    }

    private static Guards.Objection objectToContent(SessionState row, StateUpdated updated) {
        long version = row.getVersion();
        if (updated.getBaseVersion() != version || updated.getNewVersion() != version + 1) {
            String detail = updated.getBaseVersion() + " to " + updated.getNewVersion();
            return new Guards.Objection("version_conflict", detail + ", but the session is at version " + version);
        }
        String content = updated.getStateJson();
        // A character has at most three bytes in UTF-8, so almost no content has to be encoded to know its size.
        if (content.length() > STATE_BYTES_MAX / 3
            && content.getBytes(StandardCharsets.UTF_8).length > STATE_BYTES_MAX) {
            String detail = "a state above " + STATE_BYTES_MAX + " bytes goes by reference";
            return new Guards.Objection("state_too_large", detail);
        }
        return null;
    }

    private Guards.Objection release(byte[] key, SessionState row, ResourcesReleased released, Envelope envelope) {
        String cleanupId = released.getCleanupId();
        Cleanup known = null;
        for (var cleanup : row.getCleanups()) {
            known = cleanup.getCleanupId().equals(cleanupId) ? cleanup : known;
        }
        if (known == null) {
            return new Guards.Objection("unknown_cleanup", "nobody asked for clean-up " + cleanupId);
        }
        if (known.getReleased()) {
            return new Guards.Objection("already_released", "clean-up " + cleanupId + " was confirmed before");
        }
        changes.release(key, row, known, released, envelope);
        return null;
    }

    private SessionState reject(byte[] key, SessionState row, Envelope envelope, Guards.Objection objection) {
        if (envelope.getEventType().equals("heartbeat")) {
            outputs.addRejected(objection.reason(), objection.detail(), envelope);
            return null;
        }
        boolean isLate = objection.reason().equals("late");
        boolean isAudited = !isLate || row.getLateEpoch() != row.getEpoch();
        var reason = RejectionReason.valueOf(objection.reason());
        row.getRejections().add(new Rejection(outputs.offset(), reason, envelope.getEventId()));
        if (row.getRejections().size() > REJECTIONS_KEPT) {
            row.getRejections().remove(0);
        }
        if (isLate) {
            row.setLateEpoch(row.getEpoch());
        }
        if (isAudited) {
            SessionChanges.countAudit(row);
            var record = outputs.addAudit(key, row, envelope, AuditKind.rejection);
            Outputs.addRejection(record, objection.reason(), objection.detail());
        }
        outputs.addRejected(objection.reason(), objection.detail(), envelope);
        return row;
    }

    private static String reasonOf(SpecificRecordBase event) {
        if (event instanceof SessionTerminated ended) {
            return ended.getReason().name();
        }
        return event instanceof SessionStartFailed failed ? failed.getReason().name() : "";
    }
}
