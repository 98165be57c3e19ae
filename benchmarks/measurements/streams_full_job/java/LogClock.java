/** A partition's time: the latest append time of its records; after a silence no timer fires for a while. */
final class LogClock {
    private static final long HOLE_MS = 5_000;
    private static final long QUIET_MS = 25_000;

    private long nowMs;
    private long quietUntilMs;

    LogClock(long nowMs, long quietUntilMs) {
        this.nowMs = nowMs;
        this.quietUntilMs = quietUntilMs;
    }

    long nowMs() {
        return nowMs;
    }

    long quietUntilMs() {
        return quietUntilMs;
    }

    boolean isQuiet() {
        return nowMs < quietUntilMs;
    }

    /** Moves the clock to a record's append time, and returns whether it moved; `live`: is there a live row? */
    boolean advanceTo(long appendedMs, boolean live) {
        if (appendedMs <= nowMs) {
            return false;
        }
        if (live && appendedMs - nowMs > HOLE_MS) {
            quietUntilMs = appendedMs + QUIET_MS;
        }
        nowMs = appendedMs;
        return true;
    }
}
