CREATE OR REPLACE VIEW {database}.v_transition_latency AS
SELECT * FROM {database}_between.v_transition_latency_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_transition_latency
    MODIFY COMMENT 'time from an event or deadline to the acknowledgement of the audit record',
    COMMENT COLUMN time 'log time of the causing record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN timer 'true if a deadline caused the transition',
    COMMENT COLUMN began_at 'deadline, or log time of the event',
    COMMENT COLUMN acknowledged_at 'time of Kafka''s acknowledgement of the transaction',
    COMMENT COLUMN latency_ms 'milliseconds until the acknowledgement';
