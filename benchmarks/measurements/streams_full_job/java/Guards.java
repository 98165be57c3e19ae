import org.apache.avro.specific.SpecificRecordBase;
import sessionary.common.ErrorClass;
import sessionary.common.Phase;
import sessionary.common.Snapshot;
import sessionary.common.TerminationReason;
import sessionary.events.SessionErrored;
import sessionary.events.SessionPaused;
import sessionary.events.SessionResumed;
import sessionary.events.SessionStartFailed;
import sessionary.events.SessionTerminated;
import sessionary.records.SessionState;

/** The guards of the table: whether a transition passes, with its reason and what the event brings. */
final class Guards {
    /** Why an event does not apply. */
    record Objection(String reason, String detail) {}

    /** What lets a transition pass, or the objection to it. */
    record Grounds(String reasonCode, String reason, Snapshot snapshot, ErrorClass errorClass, Objection objection) {
        static Grounds pass(String reasonCode, String reason, Snapshot snapshot, ErrorClass errorClass) {
            return new Grounds(reasonCode, reason, snapshot, errorClass, null);
        }

        static Grounds reject(String reason, String detail) {
            return reject(new Objection(reason, detail));
        }

        static Grounds reject(Objection objection) {
            return new Grounds(null, null, null, null, objection);
        }

        /** Returns the grounds of an end whose snapshot is wrong: it applies without the snapshot. */
        Grounds withoutSnapshot(String detail) {
            return pass(reasonCode, reason + "; its snapshot is left out: " + detail, null, errorClass);
        }
    }

    private final int recoveryAttemptsMax;

    Guards(int recoveryAttemptsMax) {
        this.recoveryAttemptsMax = recoveryAttemptsMax;
    }

    Grounds judge(TransitionTable.Guard guard, SessionState row, SpecificRecordBase event, long nowMs) {
        return switch (guard) {
            case START -> start(row);
            case FAIL_START -> failStart((SessionStartFailed) event);
            case PAUSE -> pause((SessionPaused) event);
            case RESUME -> resume(row, (SessionResumed) event);
            case RESUME_IN_GRACE -> resumeInGrace(row, (SessionResumed) event, nowMs);
            case FAIL -> fail((SessionErrored) event);
            case RECOVER -> recover(row);
            case TERMINATE -> terminate(row, (SessionTerminated) event);
            case UNGUARDED -> throw new IllegalStateException("no client can ask for this transition");
        };
    }

    private static Grounds start(SessionState row) {
        if (row.getPhase() != Phase.connecting) {
            return Grounds.reject("phase_order", "a session starts from phase connecting, not " + row.getPhase());
        }
        return Grounds.pass("started", "started", null, null);
    }

    private static Grounds failStart(SessionStartFailed event) {
        String code = event.getReason().name();
        return Grounds.pass(code, textOr(event.getMessage(), code), null, null);
    }

    private static Grounds pause(SessionPaused event) {
        if (event.getSnapshot() == null) {
            return Grounds.reject("missing_snapshot", "a pause carries a snapshot");
        }
        String code = event.getKind().name();
        return Grounds.pass(code, textOr(event.getReason(), code), event.getSnapshot(), null);
    }

    private static Grounds resume(SessionState row, SessionResumed event) {
        var objection = objectToResuming(row, event);
        if (objection != null) {
            return Grounds.reject(objection);
        }
        return Grounds.pass("resumed", textOr(event.getMessage(), "resumed"), null, null);
    }

    /** Returns why an event does not resume a session, or null; here a session has no question. */
    private static Objection objectToResuming(SessionState row, SessionResumed event) {
        String head = row.getSnapshot().getSnapshotId();
        String given = event.getSnapshotId();
        if (given != null && !given.equals(head)) {
            String detail = "snapshot " + given + " is not the head of the chain, " + head;
            return new Objection("version_conflict", detail);
        }
        boolean isAnswer = event.getApproved() != null || event.getQuestionId() != null;
        return isAnswer ? new Objection("no_question", "the session waits for no answer") : null;
    }

    private static Grounds resumeInGrace(SessionState row, SessionResumed event, long nowMs) {
        Long dueMs = row.getMaxDueAt();
        var objection = objectToResuming(row, event);
        if (objection != null) {
            return Grounds.reject(objection);
        }
        if (dueMs != null && nowMs >= dueMs) {
            String limit = SessionChanges.formatSeconds(row.getLimits().getMaxDurationMs());
            return Grounds.reject("max_duration_exceeded", "the session's maximum duration of " + limit + " is over");
        }
        return Grounds.pass("resumed", textOr(event.getMessage(), "resumed within its grace period"), null, null);
    }

    private static Grounds fail(SessionErrored event) {
        var error = event.getError();
        if (error.getErrorClass() == ErrorClass.UNKNOWN) {
            return Grounds.reject("missing_error_class", "an error is retryable or fatal");
        }
        return Grounds.pass(error.getCode(), error.getCode() + ": " + error.getMessage(), null, error.getErrorClass());
    }

    private Grounds recover(SessionState row) {
        if (row.getPhase() != Phase.recovery) {
            return Grounds.reject("phase_order", "a session recovers from phase recovery, not " + row.getPhase());
        }
        if (row.getErrorClass() != ErrorClass.retryable) {
            return Grounds.reject("not_retryable", "the error is " + row.getErrorClass());
        }
        if (row.getRecoveryAttempts() >= recoveryAttemptsMax) {
            return Grounds.reject("retries_exhausted", row.getRecoveryAttempts() + " recoveries are the most");
        }
        return Grounds.pass("recovered", "recovered, attempt " + (row.getRecoveryAttempts() + 1), null, null);
    }

    private static Grounds terminate(SessionState row, SessionTerminated event) {
        boolean isBusy = row.getPhase() == Phase.updating || row.getPhase() == Phase.persisting;
        if (event.getReason() == TerminationReason.completed && isBusy) {
            return Grounds.reject("phase_order", "a session does not complete while " + row.getPhase());
        }
        String code = event.getReason().name();
        return Grounds.pass(code, textOr(event.getMessage(), code), event.getSnapshot(), null);
    }

    private static String textOr(String text, String otherwise) {
        return text == null || text.isEmpty() ? otherwise : text;
    }
}
