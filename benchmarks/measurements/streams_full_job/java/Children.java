import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.stream.IntStream;
import org.apache.avro.specific.SpecificRecordBase;
import org.apache.kafka.common.utils.Bytes;
import sessionary.common.AuditKind;
import sessionary.common.Envelope;
import sessionary.common.ErrorClass;
import sessionary.common.ErrorInfo;
import sessionary.common.ToolCallStateName;
import sessionary.events.MessageAppended;
import sessionary.events.ToolCallFailed;
import sessionary.events.ToolCallStarted;
import sessionary.events.ToolCallSucceeded;
import sessionary.records.EndedToolCall;
import sessionary.records.MessageState;
import sessionary.records.SessionState;
import sessionary.records.ToolCallState;

/**
 * The rows that vanish with a session: the turns of its conversation, and its reserved calls.
 *
 * <p>Their keys are the processor's: of calls that are due in the same millisecond the one with the least key fires
 * first.
 */
final class Children {
    /** The rows of a partition. */
    interface Rows {
        /** Returns the row under a key, or null. */
        SpecificRecordBase load(Bytes key);

        /** Writes a row, and notes its deadline. */
        void keep(Bytes key, SpecificRecordBase row);
    }

    private static final int TURNS_MAX = 200;
    /** Of the keys of turns: there are few, and every message has one. */
    private static final String[] TURN_SUFFIXES =
        IntStream.range(0, TURNS_MAX).mapToObj(turn -> suffixOf('m', Integer.toString(turn))).toArray(String[]::new);
    private static final int MESSAGE_CHARACTERS_MAX = 16 << 10;
    private static final long LIMIT_MAX = 10_000_000_000_000L;

    private final Rows rows;
    private final Outputs outputs;

    Children(Rows rows, Outputs outputs) {
        this.rows = rows;
        this.outputs = outputs;
    }

    /** Returns the first key below a session's key, and the first one behind all of them. */
    static byte[][] keysOf(byte[] sessionKey) {
        return new byte[][] {keyOf(sessionKey, "\0"), keyOf(sessionKey, "\1")};
    }

    /** Judges an event that its session accepts as work; writes the child that the event is about, if there is one. */
    Guards.Objection judge(byte[] sessionKey, SessionState session, SpecificRecordBase event, Envelope envelope) {
        if (event instanceof MessageAppended message) {
            return append(sessionKey, session, message, envelope);
        }
        if (event instanceof ToolCallStarted started && isReserved(started.getIdemKey(), started.getToolCallId())) {
            return start(callKey(sessionKey, started.getIdemKey()), session, started, envelope);
        }
        if (event instanceof ToolCallSucceeded ended && isReserved(ended.getIdemKey(), ended.getToolCallId())) {
            var key = callKey(sessionKey, ended.getIdemKey());
            var call = rows.load(key);
            var objection = objectToEnd(call, ended.getIdemKey(), ended.getToolName(), ended.getTryNumber(), envelope);
            if (objection == null) {
                var after = end(call, ToolCallStateName.succeeded, null);
                after.setResultJson(ended.getResultJson());
                after.setArtifactId(ended.getArtifactId());
                rows.keep(key, after);
            }
            return objection;
        }
        if (event instanceof ToolCallFailed ended && isReserved(ended.getIdemKey(), ended.getToolCallId())) {
            var key = callKey(sessionKey, ended.getIdemKey());
            var call = rows.load(key);
            var objection = objectToEnd(call, ended.getIdemKey(), ended.getToolName(), ended.getTryNumber(), envelope);
            if (objection == null && ended.getError().getErrorClass() == ErrorClass.UNKNOWN) {
                objection = new Guards.Objection("missing_error_class", "an error is retryable or fatal");
            }
            if (objection == null) {
                rows.keep(key, end(call, ToolCallStateName.failed, ended.getError()));
            }
            return objection;
        }
        return null;
    }

    /** Makes a call unknown whose limit is over; the audit trail of its session says so. */
    void fire(Bytes key, ToolCallState call) {
        rows.keep(key, end(call, ToolCallStateName.unknown, null));
        var session = new SessionKey(call.getTenantId(), call.getSessionId()).encoded();
        if (!(rows.load(Bytes.wrap(session)) instanceof SessionState row)) {
            return;
        }
        SessionChanges.countAudit(row);
        var record = outputs.addAudit(session, row, null, AuditKind.tool_call);
        record.setOccurredAt(call.getDueAt() * 1_000);
        record.setDueAt(call.getDueAt() * 1_000);
        record.setFiredAt(outputs.nowMs() * 1_000);
        record.setEventType("tool_call_unknown");
        record.setReasonCode("tool_call_limit");
        String limit = SessionChanges.formatSeconds(call.getLimitMs());
        String missing = "no outcome of " + call.getToolName() + " was reported within its limit";
        record.setReason("Tool call unknown after " + limit + ": " + missing);
        record.setUserId(row.getUserId());
        record.setToolName(call.getToolName());
        record.setIdemKey(call.getIdemKey());
        record.setFromCallState("running");
        record.setToCallState("unknown");
        rows.keep(Bytes.wrap(session), row);
    }

    private Guards.Objection append(byte[] sessionKey, SessionState session, MessageAppended event, Envelope envelope) {
        String content = event.getContent();
        if (content != null && content.length() > MESSAGE_CHARACTERS_MAX) {
            int length = content.codePointCount(0, content.length());
            if (length > MESSAGE_CHARACTERS_MAX) {
                String detail = "content has " + length + " characters, more than " + MESSAGE_CHARACTERS_MAX;
                return new Guards.Objection("invalid_value", detail + ": send it as an artifact");
            }
        }
        long turn = session.getTurns() + 1;
        var row = new MessageState(session.getTenantId(), session.getSessionId(), turn, null, envelope.getAgentId(),
            envelope.getServiceId(), event.getRole(), event.getName(), outputs.nowMs(), content, event.getArtifactId(),
            false);
        rows.keep(Bytes.wrap(keyOf(sessionKey, TURN_SUFFIXES[(int) (turn % TURNS_MAX)])), row);
        session.setTurns(turn);
        return null;
    }

    private Guards.Objection start(Bytes key, SessionState session, ToolCallStarted event, Envelope envelope) {
        Long given = event.getLimitMs();
        if (given != null && (given < 1 || given > LIMIT_MAX)) {
            String detail = "limit_ms is " + given + "; it must be from 1 to " + LIMIT_MAX;
            return new Guards.Objection("invalid_value", detail);
        }
        var call = rows.load(key);
        var objection = objectToStart(call, event, envelope);
        if (objection != null) {
            return objection;
        }
        long nowMs = outputs.nowMs();
        long limitMs = given == null ? session.getLimits().getToolMs() : given;
        rows.keep(key, new ToolCallState(session.getTenantId(), session.getSessionId(), null, envelope.getStepId(),
            event.getToolName(), event.getIdemKey(), event.getTryNumber(), event.getSideEffect(), event.getQueryable(),
            nowMs, nowMs + limitMs, limitMs, envelope.getEventId(), 0));
        return null;
    }

    private static Guards.Objection objectToStart(SpecificRecordBase call, ToolCallStarted event, Envelope envelope) {
        String name = event.getToolName();
        if (call == null) {
            return objectToValues(name, name, event.getTryNumber(), 1);
        }
        var ended = call instanceof EndedToolCall known ? known : null;
        if (ended == null || ended.getState() == ToolCallStateName.succeeded) {
            String state = ended == null ? "running" : "succeeded";
            String reason = ended == null ? "call_in_progress" : "call_succeeded";
            return new Guards.Objection(reason, "call " + event.getIdemKey() + " is in " + state);
        }
        var wrong = objectToValues(ended.getToolName(), name, event.getTryNumber(), ended.getTryNumber() + 1);
        if (wrong != null) {
            return wrong;
        }
        if (ended.getState() == ToolCallStateName.unknown) {
            boolean mayHaveEffect = event.getSideEffect() || ended.getSideEffect();
            String detail = "the call may have had its effect: find out, and resolve it";
            return mayHaveEffect ? new Guards.Objection("call_unresolved", detail) : null;
        }
        var error = ended.getError();
        boolean isRetryable = error != null && error.getErrorClass() == ErrorClass.retryable;
        String detail = "the call's error is fatal, and the event names no actor";
        return isRetryable || envelope.getActor() != null ? null : new Guards.Objection("not_retryable", detail);
    }

    private static Guards.Objection objectToEnd(
        SpecificRecordBase call, String idemKey, String toolName, int tryNumber, Envelope envelope
    ) {
        String type = envelope.getEventType();
        if (call == null) {
            return new Guards.Objection("unknown_call", type + " of call " + idemKey + ", which did not start");
        }
        if (call instanceof ToolCallState running) {
            return objectToValues(running.getToolName(), toolName, tryNumber, running.getTryNumber());
        }
        var ended = (EndedToolCall) call;
        if (ended.getState() != ToolCallStateName.unknown) {
            String detail = type + " is not possible for a call in " + ended.getState();
            return new Guards.Objection("illegal_transition", detail);
        }
        return objectToValues(ended.getToolName(), toolName, tryNumber, ended.getTryNumber());
    }

    private static Guards.Objection objectToValues(String known, String toolName, int tryNumber, int due) {
        if (!toolName.equals(known)) {
            return new Guards.Objection("invalid_value", "the call is of " + known + ", not of " + toolName);
        }
        if (tryNumber != due) {
            String detail = "try_number is " + tryNumber + ", but it is try " + due + "'s turn";
            return new Guards.Objection("invalid_value", detail);
        }
        return null;
    }

    private EndedToolCall end(SpecificRecordBase call, ToolCallStateName state, ErrorInfo error) {
        long nowMs = outputs.nowMs();
        if (call instanceof EndedToolCall before) {
            return new EndedToolCall(before.getTenantId(), before.getSessionId(), before.getRunId(), before.getStepId(),
                before.getToolName(), before.getIdemKey(), before.getTryNumber(), before.getSideEffect(),
                before.getQueryable(), state, before.getStartedAt(), nowMs, error, null, null, null, false);
        }
        var running = (ToolCallState) call;
        return new EndedToolCall(running.getTenantId(), running.getSessionId(), running.getRunId(), running.getStepId(),
            running.getToolName(), running.getIdemKey(), running.getTryNumber(), running.getSideEffect(),
            running.getQueryable(), state, running.getStartedAt(), nowMs, error, null, null, null, false);
    }

    /** A call is reserved if its idempotency key is not empty and is not just the call's id. */
    private static boolean isReserved(String idemKey, String toolCallId) {
        return !idemKey.isEmpty() && !idemKey.equals(toolCallId);
    }

    private static Bytes callKey(byte[] sessionKey, String idemKey) {
        return Bytes.wrap(keyOf(sessionKey, suffixOf('c', idemKey)));
    }

    private static String suffixOf(char kind, String name) {
        return "\0" + kind + HexFormat.of().formatHex(Blake2b.digest(name.getBytes(StandardCharsets.UTF_8)));
    }

    private static byte[] keyOf(byte[] sessionKey, String suffix) {
        byte[] end = suffix.getBytes(StandardCharsets.US_ASCII);
        byte[] key = Arrays.copyOf(sessionKey, sessionKey.length + end.length);
        System.arraycopy(end, 0, key, sessionKey.length, end.length);
        return key;
    }
}
