import sessionary.common.Envelope;
import sessionary.records.SessionState;

/** Checks of what an event says of itself. */
final class EnvelopeChecks {
    private static final int NAME_LENGTH_MAX = 128;
    private static final long NUMBER_MAX = 1_000_000_000_000_000L;

    private EnvelopeChecks() {}

    /** Returns what is wrong with an envelope, or null; names that the row has already are valid. */
    static String findInvalid(Envelope envelope, SessionState row) {
        String type = envelope.getEventType();
        if (envelope.getProducerSeq() < 1 && !type.equals("heartbeat")) {
            return "producer_seq is " + envelope.getProducerSeq() + "; it counts from 1";
        }
        if (envelope.getProducerSeq() > NUMBER_MAX) {
            return "producer_seq is " + envelope.getProducerSeq() + "; it must be at most " + NUMBER_MAX;
        }
        if (envelope.getEpoch() < 0) {
            return "epoch is " + envelope.getEpoch();
        }
        boolean isKnownService = row != null && envelope.getServiceId().equals(row.getOwnerService());
        if (!isKnownService && !isName(envelope.getServiceId())) {
            return "service_id '" + envelope.getServiceId() + "' is no name";
        }
        boolean isKnownAgent = row != null && envelope.getAgentId().equals(row.getAgentId());
        if (!isKnownAgent && !isName(envelope.getAgentId())) {
            return "agent_id '" + envelope.getAgentId() + "' is no name";
        }
        boolean isHolder = row != null && envelope.getProducerId().equals(row.getHolder());
        if (!isHolder && !isName(envelope.getProducerId())) {
            return "producer_id '" + envelope.getProducerId() + "' is no name";
        }
        boolean isUserless = envelope.getUserId() == null || envelope.getUserId().isEmpty();
        return type.equals("session_created") && isUserless ? "session_created names no user" : null;
    }

    private static boolean isName(String text) {
        int length = text.length();
        if (length == 0 || length > NAME_LENGTH_MAX || !isLetterOrDigit(text.charAt(0))) {
            return false;
        }
        for (int n = 1; n < length; n++) {
            char c = text.charAt(n);
            if (!isLetterOrDigit(c) && c != '.' && c != '_' && c != '-') {
                return false;
            }
        }
        return true;
    }

    private static boolean isLetterOrDigit(char c) {
        return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z';
    }
}
