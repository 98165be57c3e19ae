CREATE OR REPLACE VIEW {database}.v_uncleaned AS
SELECT time, tenant_id, session_id, cleanup_id, transition, service_id, reason_code, requested_at, context_bytes
FROM {database}.v_cleanups
WHERE NOT released;

ALTER TABLE {database}.v_uncleaned
    MODIFY COMMENT 'each requested clean-up without a confirmation, with the held bytes',
    COMMENT COLUMN time 'log time of the request',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'reason code',
    COMMENT COLUMN requested_at 'time of the request: when the deadline fired, or log time',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported';
