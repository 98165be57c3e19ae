-- Sessions that timed out: no other clock's deadlines.
CREATE OR REPLACE VIEW {database}.v_timeouts AS
SELECT * FROM {database}.v_deadlines WHERE to_state = 'Timeout';

ALTER TABLE {database}.v_timeouts
    MODIFY COMMENT 'each timeout of a session: when due, when fired, how late, why',
    COMMENT COLUMN time 'the log''s time of the record: a condition on it reads only the partitions of that time',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN clock 'clock that fired: initialisation, inactivity, idle, max_duration, grace, hold or recovery',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN reason 'why, in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN due_at 'when the deadline was',
    COMMENT COLUMN fired_at 'when the processor saw that it had passed, by the log''s clock',
    COMMENT COLUMN lateness_s 'seconds from the deadline to the moment at which it was noticed';
