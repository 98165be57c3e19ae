import sessionary.records.SessionState;

/** The clocks of a session, by their names in the table: when each is due, and the limit that it measures (ms). */
enum SessionClock {
    INITIALISATION {
        @Override
        long dueMs(SessionState row) {
            return row.getEnteredAt() + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getInitMs();
        }
    },
    /** Of a session that waits for its tenant's quota; here none does. */
    QUOTA_WAIT {
        @Override
        long dueMs(SessionState row) {
            return Timers.NEVER;
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getInitMs();
        }
    },
    /** Of a session that waits for its tenant's quota; here none does. */
    QUOTA_SILENCE {
        @Override
        long dueMs(SessionState row) {
            return Timers.NEVER;
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getInitMs();
        }
    },
    INACTIVITY {
        @Override
        long dueMs(SessionState row) {
            return row.getLastEventAt() + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            var limits = row.getLimits();
            return limits.getModelMs() + limits.getToolMs() + limits.getNetworkMs();
        }
    },
    IDLE {
        @Override
        long dueMs(SessionState row) {
            return row.getLastWorkAt() + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getIdleMs();
        }
    },
    MAX_DURATION {
        @Override
        long dueMs(SessionState row) {
            return row.getMaxDueAt() == null ? Timers.NEVER : row.getMaxDueAt();
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getMaxDurationMs();
        }
    },
    /** Of a session between two turns; here none has turns. */
    USER_IDLE {
        @Override
        long dueMs(SessionState row) {
            return Timers.NEVER;
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getUserIdleMs();
        }
    },
    GRACE {
        @Override
        long dueMs(SessionState row) {
            return row.getEnteredAt() + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getGraceMs();
        }
    },
    HOLD {
        @Override
        long dueMs(SessionState row) {
            return row.getEnteredAt() + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getHoldMs();
        }
    },
    /** Of a question; here a session has none. */
    ANSWER {
        @Override
        long dueMs(SessionState row) {
            return Timers.NEVER;
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getHoldMs();
        }
    },
    RECOVERY {
        @Override
        long dueMs(SessionState row) {
            return row.getEnteredAt() + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            return row.getLimits().getRecoveryMs();
        }
    },
    ARCHIVE {
        @Override
        long dueMs(SessionState row) {
            Long released = row.getReleasedAt();
            return (released == null ? row.getEnteredAt() : Math.max(released, row.getEnteredAt())) + limitMs(row);
        }

        @Override
        long limitMs(SessionState row) {
            var limits = row.getLimits();
            return row.getReleasedAt() == null ? limits.getReleaseLimitMs() : limits.getArchiveDelayMs();
        }
    };

    abstract long dueMs(SessionState row);

    abstract long limitMs(SessionState row);
}
