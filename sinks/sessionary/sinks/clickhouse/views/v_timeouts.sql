-- Sessions that timed out, without the deadlines of other clocks.
CREATE OR REPLACE VIEW {database}.v_timeouts AS
SELECT * FROM {database}.v_deadlines WHERE to_state = 'Timeout';

ALTER TABLE {database}.v_timeouts
    MODIFY COMMENT 'each timeout of a session: deadline, firing, lateness, reason',
    COMMENT COLUMN time 'log time of the record: a condition on this column reads only the partitions of that time',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN clock 'clock that fired: initialisation, inactivity, idle, max_duration, grace, hold or recovery',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'reason code',
    COMMENT COLUMN reason 'reason in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN due_at 'time of the deadline',
    COMMENT COLUMN fired_at 'time at which the deadline fired, by the log''s clock',
    COMMENT COLUMN lateness_s 'seconds from the deadline to its firing';
