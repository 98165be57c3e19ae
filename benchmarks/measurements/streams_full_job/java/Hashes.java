import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.zip.CRC32;

/** Hashes that rows and events have of texts. */
final class Hashes {
    private static final ThreadLocal<MessageDigest> SHA256 = ThreadLocal.withInitial(Hashes::newDigest);
    private static final HexFormat HEX = HexFormat.of();
    private static final int ROW_DIGEST_BYTES = 16;

    private Hashes() {}

    /** Returns the hash that a snapshot has of its content. */
    static String ofContent(String content) {
        return HEX.formatHex(sha256(content));
    }

    /** Returns the 64 bits that remain of a forgotten producer's id. */
    static long ofProducer(String producerId) {
        return ByteBuffer.wrap(sha256(producerId)).getLong();
    }

    /** Returns the 16 bits that a ledger keeps of an event's id; they are never 0. */
    static short ofEventId(String eventId) {
        var crc = new CRC32();
        crc.update(eventId.getBytes(StandardCharsets.UTF_8));
        return (short) (crc.getValue() % 0xFFFF + 1);
    }

    /** Returns the hash of a session's row: the fingerprint of its schema, and the beginning of its digest. */
    static String ofRow(byte[] encoded) {
        String fingerprint = HEX.formatHex(encoded, 2, 10);
        return fingerprint + ":" + HEX.formatHex(SHA256.get().digest(encoded), 0, ROW_DIGEST_BYTES);
    }

    static byte[] sha256(String text) {
        return SHA256.get().digest(text.getBytes(StandardCharsets.UTF_8));
    }

    private static MessageDigest newDigest() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }
}
