import java.util.List;
import sessionary.common.ProducerLedger;
import sessionary.common.SeqRange;

/** Sequence numbers: which events repeat, which are missing, which come too late. */
final class SequenceLedger {
    private static final int PRODUCERS_MAX = 64;
    private static final int RANGES_MAX = 16;

    /** What a number comes to; a gap, if there is one, was recorded. */
    record Check(boolean isDuplicate, String rejection, SeqRange gap) {}

    private static final Check NEXT = new Check(false, null, null);
    private static final Check DUPLICATE = new Check(true, null, null);
    private static final Check LATE_FILLER = new Check(false, "late_filler", null);
    private static final Check TOO_MANY = new Check(false, "too_many_producers", null);

    private SequenceLedger() {}

    /** Judges a producer's number (from 1); moves the session's ledger if it is a new one. */
    static Check take(List<ProducerLedger> producers, String producerId, long seq) {
        for (var known : producers) {
            if (known.getProducerId().equals(producerId)) {
                return take(known, seq);
            }
        }
        if (producers.size() >= PRODUCERS_MAX) {
            return TOO_MANY;
        }
        var added = new ProducerLedger(producerId, 0L, new java.util.ArrayList<>());
        producers.add(added);
        return take(added, seq);
    }

    private static Check take(ProducerLedger ledger, long seq) {
        long last = ledger.getLastSeq();
        if (seq <= last) {
            boolean isMissing = ledger.getMissing().stream().anyMatch(r -> r.getFirst() <= seq && seq <= r.getLast());
            return isMissing ? LATE_FILLER : DUPLICATE;
        }
        ledger.setLastSeq(seq);
        if (seq == last + 1) {
            return NEXT;
        }
        var gap = new SeqRange(last + 1, seq - 1);
        var missing = ledger.getMissing();
        if (missing.size() >= RANGES_MAX) {
            missing.set(0, new SeqRange(missing.get(0).getFirst(), missing.get(1).getLast()));
            missing.remove(1);
        }
        missing.add(gap);
        return new Check(false, null, gap);
    }
}
