import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.UUID;

/** Ids that follow from their parts: a UUIDv5 of the parts, joined with colons. */
final class DerivedId {
    private static final UUID URL_NAMESPACE = UUID.fromString("6ba7b811-9dad-11d1-80b4-00c04fd430c8");
    private static final ThreadLocal<MessageDigest> SHA1 = ThreadLocal.withInitial(DerivedId::newDigest);
    private static final UUID NAMESPACE = version5(URL_NAMESPACE, "urn:sessionary");

    private DerivedId() {}

    static String of(String joinedParts) {
        return version5(NAMESPACE, joinedParts).toString();
    }

    private static UUID version5(UUID namespace, String name) {
        MessageDigest digest = SHA1.get();
        var prefix = ByteBuffer.allocate(16);
        prefix.putLong(namespace.getMostSignificantBits()).putLong(namespace.getLeastSignificantBits());
        digest.update(prefix.array());
        var hash = ByteBuffer.wrap(digest.digest(name.getBytes(StandardCharsets.UTF_8)));
        long high = hash.getLong() & ~0xF000L | 0x5000L;
        long low = hash.getLong() & 0x3FFF_FFFF_FFFF_FFFFL | 0x8000_0000_0000_0000L;
        return new UUID(high, low);
    }

    private static MessageDigest newDigest() {
        try {
            return MessageDigest.getInstance("SHA-1");
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-1", error);
        }
    }
}
