-- Deadlines that fired on a session in progress. Archiving (T14) has a due time too, but is no such deadline. A clock
-- also ends a question without an answer in time, and a migration that takes too long.
CREATE OR REPLACE VIEW {database}.v_deadlines AS
SELECT
    appended_at AS time, tenant_id, session_id, audit_seq,
    multiIf(transition = 'T03', 'initialisation', reason_code = 'migration_aborted', 'migration', transition = 'T05', 'answer', transition = 'T08', 'grace',
        transition = 'T09', 'hold', transition = 'T12', 'recovery', reason_code = 'inactive', 'inactivity',
        toString(reason_code)) AS clock,
    transition, from_state, to_state, owner_service AS service_id, reason_code, reason,
    assumeNotNull(due_at) AS due_at, assumeNotNull(fired_at) AS fired_at,
    dateDiff('microsecond', assumeNotNull(due_at), assumeNotNull(fired_at)) / 1e6 AS lateness_s
FROM {database}.audit AS a FINAL
-- The table is named: an alias above would hide the column, and assumeNotNull is never null.
WHERE kind = 'transition' AND a.due_at IS NOT NULL AND a.fired_at IS NOT NULL AND transition != 'T14'
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_deadlines
    MODIFY COMMENT 'each deadline that fired on a session in progress, on a question to a person, or on a migration',
    COMMENT COLUMN time 'log time of the record at which the deadline fired',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail',
    COMMENT COLUMN clock 'clock that fired',
    COMMENT COLUMN transition 'transition that the deadline made',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'reason code',
    COMMENT COLUMN reason 'reason in words; names the limit',
    COMMENT COLUMN due_at 'time of the deadline',
    COMMENT COLUMN fired_at 'time at which the deadline fired, by the log''s clock',
    COMMENT COLUMN lateness_s 'seconds from the deadline to its firing';
