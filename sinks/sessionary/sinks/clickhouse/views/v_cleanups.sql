-- One row per request. `confirmed`: released by a handler, every action done. The loss of a host is distinguished.
CREATE OR REPLACE VIEW {database}.v_cleanups AS
SELECT * FROM {database}_between.v_cleanups_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_cleanups
    MODIFY COMMENT 'each requested clean-up and its confirmation',
    COMMENT COLUMN time 'log time of the request',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'reason code',
    COMMENT COLUMN requested_at 'time of the request: when the deadline fired, or log time',
    COMMENT COLUMN released_at 'log time of the confirmation',
    COMMENT COLUMN latency_s 'seconds from request to confirmation',
    COMMENT COLUMN released 'true if there is a confirmation',
    COMMENT COLUMN host_lost 'true if the host is gone, so that no handler could run',
    COMMENT COLUMN confirmed 'true if a handler confirmed it with every action done',
    COMMENT COLUMN actions_requested 'requested actions',
    COMMENT COLUMN actions_done 'actions reported as done',
    COMMENT COLUMN actions_failed 'actions reported as failed',
    COMMENT COLUMN bytes_released 'bytes of the context, if every action was done',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported';
