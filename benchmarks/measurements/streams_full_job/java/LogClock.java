/** A partition's time: the latest append time of its records; after a silence no timer fires for a while. */
final class LogClock {
    private static final long OUTAGE_MS = 5_000;
    private static final long OUTAGE_GRACE_MS = 25_000;

    private long nowMs;
    private long outageGraceUntilMs;

    LogClock(long nowMs, long outageGraceUntilMs) {
        this.nowMs = nowMs;
        this.outageGraceUntilMs = outageGraceUntilMs;
    }

    long nowMs() {
        return nowMs;
    }

    long outageGraceUntilMs() {
        return outageGraceUntilMs;
    }

    /** Returns when the last outage ended, 0 if there was none. */
    long outageEndMs() {
        return outageGraceUntilMs == 0 ? 0 : outageGraceUntilMs - OUTAGE_GRACE_MS;
    }

    boolean isInOutageGrace() {
        return nowMs < outageGraceUntilMs;
    }

    /** Moves the clock to a record's append time, and returns whether it moved; `live`: is there a live row? */
    boolean advanceTo(long appendedMs, boolean live) {
        if (appendedMs <= nowMs) {
            return false;
        }
        if (live && appendedMs - nowMs > OUTAGE_MS) {
            outageGraceUntilMs = appendedMs + OUTAGE_GRACE_MS;
        }
        nowMs = appendedMs;
        return true;
    }
}
