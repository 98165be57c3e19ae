import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.specific.SpecificRecordBase;
import sessionary.common.AuditKind;
import sessionary.common.Cleanup;
import sessionary.common.Envelope;
import sessionary.common.FencedBeats;
import sessionary.common.Phase;
import sessionary.common.Rejection;
import sessionary.common.RejectionReason;
import sessionary.common.SessionLimits;
import sessionary.common.SessionStateName;
import sessionary.common.Snapshot;
import sessionary.events.ResourcesReleased;
import sessionary.events.SessionCreated;
import sessionary.events.SessionPaused;
import sessionary.events.SessionPhaseChanged;
import sessionary.events.SessionResumed;
import sessionary.events.SessionStartFailed;
import sessionary.events.SessionTerminated;
import sessionary.events.StateUpdated;
import sessionary.events.ToolCallFailed;
import sessionary.events.ToolCallStarted;
import sessionary.events.ToolCallSucceeded;
import sessionary.records.SessionState;

/**
 * Judges events against the rows of their sessions.
 *
 * <p>The order of the checks: envelope, sequence, values, sender, epoch, owner, event in its state, child. Rows are
 * changed in place, once nothing can be rejected any more; what is rejected after the sequence moves only the ledger.
 *
 * <p>Left out are runs and what belongs to them, artifacts, members, take-overs, migrations, questions, quotas,
 * operators' events, turns, transactions, checkpoints, decisions, replays into a gap, and the bounds of whole rows and
 * of their number.
 */
final class SessionJudge {
    private static final int REJECTIONS_KEPT = 16;
    private static final int FENCED_KEPT = 16;
    private static final int LAST_CHARACTERS = 256;
    /** An event whose number is a multiple of it leaves a hash of the row. */
    private static final int HASHED_EVERY = 100;
    private static final int STATE_BYTES_MAX = 1 << 20;

    private final TransitionTable table;
    private final Guards guards;
    private final Outputs outputs;
    private final SessionChanges changes;
    private final Children children;
    private final ValueBounds bounds;

    SessionJudge(
        TransitionTable table, Outputs outputs, SessionChanges changes, Children children, ValueBounds bounds
    ) {
        this.table = table;
        this.children = children;
        this.bounds = bounds;
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
        boolean isHeartbeat = envelope.getEventType().equals("heartbeat");
        if (!isHeartbeat) {
            var check = SequenceLedger.take(row.getProducers(), row.getForgotten(), envelope.getProducerId(),
                envelope.getProducerSeq(), momentOf(envelope, row.getEpoch()));
            if (check.isDuplicate()) {
                return null;
            }
            if (check.rejection() != null) {
                if (outputs.isReplayed()) {
                    throw new UnsupportedOperationException("a replay into a gap is not judged here: " + event);
                }
                return reject(key, row, envelope, objectToNumber(check.rejection(), envelope));
            }
            if (check.gap() != null) {
                changes.reportGap(key, row, envelope, check.gap());
            }
        }
        checkIsOfTheJob(event, envelope);
        var objection = objectToValues(event);
        if (objection == null) {
            objection = objectToSender(row, event, envelope);
        }
        if (objection == null) {
            objection = apply(key, row, event, envelope);
        }
        if (objection != null) {
            return reject(key, row, envelope, objection);
        }
        hear(row, envelope);
        if (event instanceof ToolCallStarted started) {
            row.setLastTool(firstOf(started.getToolName()));
        } else if (event instanceof ToolCallSucceeded succeeded) {
            row.setLastResult(firstOf(succeeded.getResultJson() == null ? "null" : succeeded.getResultJson()));
        } else if (event instanceof ToolCallFailed failed) {
            var error = failed.getError();
            row.setLastResult(firstOf("failed: " + error.getCode() + ": " + error.getMessage()));
        }
        if (!isHeartbeat && envelope.getProducerSeq() % HASHED_EVERY == 0) {
            changes.reportHash(key, row, envelope);
        }
        return row;
    }

    private void hear(SessionState row, Envelope envelope) {
        if (envelope.getServiceId().equals(row.getOwnerService())) {
            row.setOwnerHeardAt(outputs.nowMs());
        }
    }

    /** Returns the beginning of a text, of which a row keeps so much. */
    private static String firstOf(String text) {
        boolean isShort = text.codePointCount(0, text.length()) <= LAST_CHARACTERS;
        return isShort ? text : text.substring(0, text.offsetByCodePoints(0, LAST_CHARACTERS));
    }

    /** Returns the row of a new session, or null if its creation is rejected. */
    SessionState create(byte[] key, SessionKey session, SessionCreated event) {
        var limits = SessionLimitChecks.withDefaults(event.getLimits());
        var objection = objectToCreation(event, limits);
        if (objection != null) {
            rejectUnkept(key, session, SessionStateName.UNKNOWN, event.getEnvelope(), objection);
            return null;
        }
        Envelope envelope = event.getEnvelope();
        SessionState row = SessionRows.newRow(table.creation(), event, limits, outputs.nowMs());
        var check = SequenceLedger.take(row.getProducers(), row.getForgotten(), envelope.getProducerId(),
            envelope.getProducerSeq(), momentOf(envelope, row.getEpoch()));
        row.setAuditSeq(1L);
        var record = outputs.addAudit(key, row, envelope, AuditKind.transition);
        record.setTransition(table.creation().id());
        record.setFromState(SessionStateName.UNKNOWN);
        record.setReasonCode("created");
        record.setReason("created");
        outputs.addHash(record, row);
        outputs.addOutage(record);
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

    /** Rejects an event without a trace in a session; `state` is UNKNOWN or Archived. Heartbeats are not audited. */
    void rejectUnkept(
        byte[] key, SessionKey session, SessionStateName state, Envelope envelope, Guards.Objection objection
    ) {
        if (envelope == null || !envelope.getEventType().equals("heartbeat")) {
            var record = outputs.addAudit(key, session, state, envelope, AuditKind.rejection);
            Outputs.addRejection(record, objection.reason(), objection.detail());
        }
        outputs.addRejected(objection.reason(), objection.detail(), session, envelope);
    }

    private Guards.Objection objectToCreation(SessionCreated event, SessionLimits limits) {
        if (event.getExternalId() != null) {
            throw new UnsupportedOperationException("not judged here: " + event);
        }
        Envelope envelope = event.getEnvelope();
        String wrong = EnvelopeChecks.findInvalid(envelope, null);
        var objection = wrong == null ? objectToValues(event) : new Guards.Objection("invalid_value", wrong);
        if (objection != null) {
            return objection;
        }
        Long madeMs = SessionKey.creationMs(envelope.getSessionId());
        if (madeMs != null && madeMs + SessionChanges.REDELIVERY_MS <= outputs.nowMs()) {
            String detail = "session id " + envelope.getSessionId() + " was made more than 14 days ago";
            return new Guards.Objection("too_old", detail + ", by its own time");
        }
        wrong = SessionLimitChecks.findInvalid(limits, event.getLimits().getOverride());
        return wrong == null ? Snapshots.objectToFirst(event) : new Guards.Objection("invalid_limits", wrong);
    }

    private SequenceLedger.Moment momentOf(Envelope envelope, int epoch) {
        short idHash = Hashes.ofEventId(envelope.getEventId());
        return new SequenceLedger.Moment(epoch, outputs.nowMs(), idHash, outputs.offset());
    }

    private static Guards.Objection objectToNumber(String reason, Envelope envelope) {
        String detail = "number " + envelope.getProducerSeq() + " of producer " + envelope.getProducerId();
        String conflict = " is another event's: two processes use this id";
        return new Guards.Objection(reason, reason.equals("producer_conflict") ? detail + conflict : detail);
    }

    private Guards.Objection objectToValues(SpecificRecordBase event) {
        String wrong = bounds.findInvalid(event);
        return wrong == null ? null : new Guards.Objection("invalid_value", wrong);
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
        String owner = row.getOwnerService();
        String sender = envelope.getServiceId();
        if (sender.equals(owner)) {
            return null;
        }
        if (table.isOwnerOnly(type)) {
            return new Guards.Objection("not_owner", type + " is " + owner + "'s to say, not " + sender + "'s");
        }
        if (table.changesMembers(type)) {
            return new Guards.Objection("not_member", "its members are " + owner + "'s to say, not " + sender + "'s");
        }
        if (table.changesContent(type)) { // here a session has no other members
            return new Guards.Objection("not_member", "the content is " + owner + "'s, not " + sender + "'s");
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
            var wrong = objectToSnapshot(row, grounds.snapshot());
            if (wrong != null && transition.target() != SessionStateName.Terminated) {
                return wrong;
            }
            SessionRows.addClasses(row, envelope.getDataClasses());
            grounds = wrong == null ? grounds : grounds.withoutSnapshot(wrong.detail());
            hear(row, envelope);
            changes.move(key, row, transition, grounds, envelope, Timers.NEVER);
        } else if (table.accepts(state, type) && type.equals("heartbeat")) {
            // It declares nothing for the session.
            row.setLastEventAt(state == SessionStateName.Active ? outputs.nowMs() : row.getLastEventAt());
            return null;
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
            if (row.getState() == SessionStateName.Paused) {
                return new Guards.Objection("illegal_transition", "session_phase_changed is not possible in Paused");
            }
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
        } else if (event instanceof ResourcesReleased released) {
            return release(key, row, released, envelope);
        } else {
            var objection = children.judge(key, row, event, envelope);
            if (objection != null) {
                return objection;
            }
        }
        row.setLastEventAt(nowMs);
        row.setLastWorkAt(nowMs);
        return null;
    }

    private static Guards.Objection objectToSnapshot(SessionState row, Snapshot snapshot) {
        return snapshot == null ? null : Snapshots.object(snapshot, row);
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

    /** Rejects an event and keeps the verdict in the row; `envelope`: null if the record is not taken as an event. */
    SessionState reject(byte[] key, SessionState row, Envelope envelope, Guards.Objection objection) {
        if (envelope != null && envelope.getEventType().equals("heartbeat")) {
            return rejectBeat(row, envelope, objection);
        }
        boolean isLate = objection.reason().equals("late");
        boolean isAudited = !isLate || row.getLateEpoch() != row.getEpoch();
        var reason = RejectionReason.valueOf(objection.reason());
        String eventId = envelope == null ? "" : envelope.getEventId();
        row.getRejections().add(new Rejection(outputs.offset(), reason, eventId));
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
        outputs.addRejected(objection.reason(), objection.detail(), SessionKey.of(row), envelope);
        return row;
    }

    /** Rejects a heartbeat, which is not audited; those of a fenced producer leave one record in an epoch. */
    private SessionState rejectBeat(SessionState row, Envelope envelope, Guards.Objection objection) {
        boolean isFenced = objection.reason().equals("stale_epoch");
        var fenced = row.getFencedBeats();
        boolean isOfEpoch = fenced != null && fenced.getEpoch() == row.getEpoch();
        List<Long> known = isOfEpoch ? fenced.getIdHashes() : List.of();
        long idHash = isFenced ? Hashes.ofProducer(envelope.getProducerId()) : 0;
        if (isFenced && known.contains(idHash)) {
            return null;
        }
        outputs.addRejected(objection.reason(), objection.detail(), SessionKey.of(row), envelope);
        if (!isFenced || known.size() == FENCED_KEPT) {
            return null;
        }
        List<Long> hashes = new ArrayList<>(known);
        hashes.add(idHash);
        row.setFencedBeats(new FencedBeats(row.getEpoch(), hashes));
        return row;
    }

    /** Fails at what this program leaves out: better no output than a wrong one. */
    private void checkIsOfTheJob(SpecificRecordBase event, Envelope envelope) {
        boolean isByOperator = event instanceof SessionPaused paused && paused.getAsOperator()
            || event instanceof SessionResumed resumed && resumed.getAsOperator()
            || event instanceof SessionTerminated ended && ended.getAsOperator();
        boolean isQuestion = event instanceof SessionPaused paused && paused.getQuestion() != null;
        boolean isOfTurn = event instanceof SessionPhaseChanged changed && isOfTurn(changed.getPhase());
        boolean isOfRun = envelope.getRunId() != null && !envelope.getRunId().isEmpty();
        if (isByOperator || isQuestion || isOfTurn || isOfRun || table.isLeftOut(envelope.getEventType())) {
            throw new UnsupportedOperationException("not judged here: " + event);
        }
    }

    private static boolean isOfTurn(Phase phase) {
        return phase == Phase.processing || phase == Phase.waiting;
    }

    private static String reasonOf(SpecificRecordBase event) {
        if (event instanceof SessionTerminated ended) {
            return ended.getReason().name();
        }
        return event instanceof SessionStartFailed failed ? failed.getReason().name() : "";
    }
}
