import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/** BLAKE2b (RFC 7693) with 16 bytes and without a key; Java itself does not have it. */
final class Blake2b {
    private static final int DIGEST_BYTES = 16;
    private static final int BLOCK_BYTES = 128;
    private static final int ROUNDS = 12;
    private static final long[] START = {
        0x6a09e667f3bcc908L, 0xbb67ae8584caa73bL, 0x3c6ef372fe94f82bL, 0xa54ff53a5f1d36f1L,
        0x510e527fade682d1L, 0x9b05688c2b3e6c1fL, 0x1f83d9abfb41bd6bL, 0x5be0cd19137e2179L,
    };
    private static final int[][] ORDER = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
        {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
        {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
        {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
        {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    };

    private Blake2b() {}

    static byte[] digest(byte[] input) {
        long[] state = START.clone();
        state[0] ^= 0x01010000L ^ DIGEST_BYTES;
        int blocks = Math.max(1, (input.length + BLOCK_BYTES - 1) / BLOCK_BYTES);
        for (int n = 0; n < blocks; n++) {
            byte[] block = Arrays.copyOfRange(input, n * BLOCK_BYTES, (n + 1) * BLOCK_BYTES);
            boolean isLast = n == blocks - 1;
            mixBlock(state, block, isLast ? input.length : (n + 1) * BLOCK_BYTES, isLast);
        }
        var found = ByteBuffer.allocate(DIGEST_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        return found.putLong(state[0]).putLong(state[1]).array();
    }

    private static void mixBlock(long[] state, byte[] block, long counter, boolean isLast) {
        long[] words = new long[BLOCK_BYTES / Long.BYTES];
        ByteBuffer.wrap(block).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().get(words);
        long[] v = Arrays.copyOf(state, 16);
        System.arraycopy(START, 0, v, 8, 8);
        v[12] ^= counter;
        v[14] = isLast ? ~v[14] : v[14];
        for (int round = 0; round < ROUNDS; round++) {
            int[] order = ORDER[round % ORDER.length];
            for (int n = 0; n < 8; n++) {
                // Columns first, then diagonals.
                int shift = n < 4 ? 0 : 1;
                int b = 4 + (n + shift) % 4;
                int c = 8 + (n + 2 * shift) % 4;
                int d = 12 + (n + 3 * shift) % 4;
                mix(v, n % 4, b, c, d, words[order[2 * n]], words[order[2 * n + 1]]);
            }
        }
        for (int n = 0; n < state.length; n++) {
            state[n] ^= v[n] ^ v[n + 8];
        }
    }

    private static void mix(long[] v, int a, int b, int c, int d, long first, long second) {
        v[a] += v[b] + first;
        v[d] = Long.rotateRight(v[d] ^ v[a], 32);
        v[c] += v[d];
        v[b] = Long.rotateRight(v[b] ^ v[c], 24);
        v[a] += v[b] + second;
        v[d] = Long.rotateRight(v[d] ^ v[a], 16);
        v[c] += v[d];
        v[b] = Long.rotateRight(v[b] ^ v[c], 63);
    }
}
