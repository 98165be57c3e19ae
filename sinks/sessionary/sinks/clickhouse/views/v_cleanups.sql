-- One row per request. `confirmed`: released by a handler, every action done. Host loss is distinguished.
CREATE OR REPLACE VIEW {database}.v_cleanups AS
SELECT * FROM {database}.v_cleanups_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_cleanups
    MODIFY COMMENT 'each requested clean-up and its confirmation',
    COMMENT COLUMN time 'the log''s time of the request',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN requested_at 'when the clean-up was requested: when the deadline fired, or the log''s time',
    COMMENT COLUMN released_at 'when its confirmation was appended',
    COMMENT COLUMN latency_s 'seconds from request to confirmation',
    COMMENT COLUMN released 'whether it was confirmed at all',
    COMMENT COLUMN host_lost 'whether the host is gone, so that no handler could run',
    COMMENT COLUMN confirmed 'whether a handler released it with every action done',
    COMMENT COLUMN actions_requested 'actions that the clean-up asks for',
    COMMENT COLUMN actions_done 'actions that a handler reports as done',
    COMMENT COLUMN actions_failed 'actions that a handler reports as failed',
    COMMENT COLUMN bytes_released 'bytes that the handler reports as released',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported';
