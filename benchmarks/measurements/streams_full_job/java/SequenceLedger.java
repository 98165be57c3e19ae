import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import sessionary.common.ForgottenProducer;
import sessionary.common.ProducerLedger;
import sessionary.common.SeqRange;

/**
 * Sequence numbers: which events repeat, which are missing, which come too late.
 *
 * <p>A ledger keeps hashes of the ids of a producer's last events, so that another event with a known number is no
 * duplicate, and the offsets of its last events. A full list of ledgers forgets a producer; its last number remains.
 */
final class SequenceLedger {
    private static final int PRODUCERS_MAX = 64;
    private static final int FORGOTTEN_MAX = 1_024;
    private static final int RANGES_MAX = 16;
    private static final int IDS_KEPT = 32;
    private static final int OFFSETS_KEPT = 8;
    private static final long OFFSET_DISTANCE_MAX = 1 << 20;

    /** What a number comes to; a gap, if there is one, was recorded. */
    record Check(boolean isDuplicate, String rejection, SeqRange gap) {}

    /** An event as a ledger keeps it; `nowMs` is log time. */
    record Moment(int epoch, long nowMs, short idHash, long offset) {}

    private static final Check NEXT = new Check(false, null, null);
    private static final Check DUPLICATE = new Check(true, null, null);
    private static final Check LATE_FILLER = new Check(false, "late_filler", null);
    private static final Check CONFLICT = new Check(false, "producer_conflict", null);
    private static final Check TOO_MANY = new Check(false, "too_many_producers", null);

    private SequenceLedger() {}

    /** Judges a producer's number (from 1); moves the session's ledgers if it is a new one. */
    static Check take(
        List<ProducerLedger> producers, List<ForgottenProducer> forgotten, String producerId, long seq, Moment at
    ) {
        for (var known : producers) {
            if (known.getProducerId().equals(producerId)) {
                return take(known, seq, at);
            }
        }
        var added = newLedger(producerId);
        if (!forgotten.isEmpty() || producers.size() >= PRODUCERS_MAX) {
            var rejected = makeRoom(producers, forgotten, added, seq, at.epoch());
            if (rejected != null) {
                return rejected;
            }
        }
        producers.add(added);
        return take(added, seq, at);
    }

    private static ProducerLedger newLedger(String producerId) {
        return new ProducerLedger(producerId, 0L, new ArrayList<>(), 0, 0L, 0L, null, List.of());
    }

    /** Forgets a producer if the list is full; `added` continues after what is remembered of its own producer. */
    private static Check makeRoom(
        List<ProducerLedger> producers, List<ForgottenProducer> forgotten, ProducerLedger added, long seq, int epoch
    ) {
        long idHash = Hashes.ofProducer(added.getProducerId());
        var others = new ArrayList<>(forgotten);
        if (others.removeIf(entry -> entry.getIdHash() == idHash)) {
            long last = forgotten.stream().filter(entry -> entry.getIdHash() == idHash).findFirst().get().getLastSeq();
            if (seq <= last) {
                return LATE_FILLER;
            }
            added.setLastSeq(last);
            added.getMissing().add(new SeqRange(1L, last));
            added.setInexactTo(last);
        }
        if (producers.size() >= PRODUCERS_MAX) {
            if (others.size() >= FORGOTTEN_MAX) {
                var oldest = others.stream().min(Comparator.comparing(ForgottenProducer::getEpoch)).get();
                if (oldest.getEpoch() >= epoch) {
                    return TOO_MANY;
                }
                others.remove(oldest);
            }
            Comparator<ProducerLedger> order = Comparator.comparing(known -> known.getEpoch() == epoch);
            var silent = producers.stream().min(order.thenComparing(ProducerLedger::getLastAt)).get();
            long silentHash = Hashes.ofProducer(silent.getProducerId());
            others.add(new ForgottenProducer(silentHash, silent.getLastSeq(), silent.getEpoch()));
            producers.remove(silent);
        }
        forgotten.clear();
        forgotten.addAll(others);
        return null;
    }

    private static Check take(ProducerLedger ledger, long seq, Moment at) {
        long last = ledger.getLastSeq();
        var missing = ledger.getMissing();
        if (seq <= last) {
            for (var range : missing) {
                if (range.getFirst() <= seq && seq <= range.getLast()) {
                    return LATE_FILLER;
                }
            }
            return isOtherEvent(ledger.getRecentIds(), last - seq, at.idHash()) ? CONFLICT : DUPLICATE;
        }
        ledger.setLastSeq(seq);
        ledger.setEpoch(at.epoch());
        ledger.setLastAt(at.nowMs());
        ledger.setRecentIds(appendId(ledger.getRecentIds(), seq - last - 1, at.idHash()));
        ledger.setOffsets(putOffset(ledger.getOffsets(), at.offset()));
        if (missing.isEmpty()) {
            ledger.setInexactTo(0L);
        }
        if (seq == last + 1) {
            return NEXT;
        }
        var gap = new SeqRange(last + 1, seq - 1);
        if (missing.size() >= RANGES_MAX) {
            ledger.setInexactTo(Math.max(ledger.getInexactTo(), missing.get(1).getLast()));
            missing.set(0, new SeqRange(missing.get(0).getFirst(), missing.get(1).getLast()));
            missing.remove(1);
        }
        missing.add(gap);
        return new Check(false, null, gap);
    }

    /** Returns whether a number is known to be another event's; `numbersSince`: how many came after it. */
    private static boolean isOtherEvent(ByteBuffer recentIds, long numbersSince, short idHash) {
        int size = recentIds == null ? 0 : recentIds.remaining();
        if (Short.BYTES * (numbersSince + 1) > size) {
            return false;
        }
        int place = size - Short.BYTES * ((int) numbersSince + 1);
        short known = recentIds.getShort(recentIds.position() + place);
        return known != 0 && known != idHash;
    }

    private static ByteBuffer appendId(ByteBuffer recentIds, long jumped, short idHash) {
        int size = recentIds == null ? 0 : recentIds.remaining();
        var all = ByteBuffer.allocate(size + Short.BYTES * ((int) Math.min(jumped, IDS_KEPT) + 1));
        if (size > 0) {
            all.put(recentIds.duplicate());
        }
        all.putShort(all.capacity() - Short.BYTES, idHash);
        int surplus = Math.max(0, all.capacity() - Short.BYTES * IDS_KEPT);
        return ByteBuffer.wrap(Arrays.copyOfRange(all.array(), surplus, all.capacity()));
    }

    /** Puts the newest offset first; the others are kept as distances, unless they are far away. */
    private static List<Long> putOffset(List<Long> offsets, long offset) {
        if (offsets.isEmpty() || offset - offsets.get(0) >= OFFSET_DISTANCE_MAX) {
            return List.of(offset);
        }
        List<Long> kept = new ArrayList<>(OFFSETS_KEPT);
        kept.add(offset);
        kept.add(offset - offsets.get(0));
        kept.addAll(offsets.subList(1, Math.min(offsets.size(), OFFSETS_KEPT - 1)));
        return kept;
    }
}
