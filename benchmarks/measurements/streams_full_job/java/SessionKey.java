import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import sessionary.records.SessionState;

/** Whose session it is, and its id; a record's key is both, joined with a colon. */
record SessionKey(String tenantId, String sessionId) {
    /** Of a record whose key names no session. */
    static final SessionKey NONE = new SessionKey("", "");

    private static final Pattern FORM = Pattern.compile(
        "([A-Za-z0-9][A-Za-z0-9._-]{0,127}):([0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    );
    private static final int VERSION_AT = 14;

    static SessionKey of(SessionState row) {
        return new SessionKey(row.getTenantId(), row.getSessionId());
    }

    /** Returns the session that a key names, or `NONE`. */
    static SessionKey parse(byte[] key) {
        var found = FORM.matcher(new String(key, StandardCharsets.UTF_8));
        return found.matches() ? new SessionKey(found.group(1), found.group(2)) : NONE;
    }

    byte[] encoded() {
        return (tenantId + ":" + sessionId).getBytes(StandardCharsets.UTF_8);
    }

    /** Returns when a session id of version 7 was made, ms since the epoch; null of another version. */
    static Long creationMs(String sessionId) {
        boolean tellsTime = sessionId.charAt(VERSION_AT) == '7';
        return tellsTime ? Long.valueOf(sessionId.substring(0, 8) + sessionId.substring(9, 13), 16) : null;
    }
}
