CREATE OR REPLACE VIEW {database}.v_waiting_runs AS
SELECT
    min(updated_at) AS time, tenant_id, count() AS runs, argMin(session_id, updated_at) AS oldest_session_id,
    argMin(run_id, updated_at) AS oldest_run_id
FROM {database}.v_runs
WHERE status = 'queued' AND reason_code = 'quota_requested'
GROUP BY tenant_id;

ALTER TABLE {database}.v_waiting_runs
    MODIFY COMMENT 'each tenant with runs that wait for its quota: their number, and the oldest',
    COMMENT COLUMN tenant_id 'the tenant',
    COMMENT COLUMN runs 'number of waiting runs',
    COMMENT COLUMN time 'log time since which the oldest one waits',
    COMMENT COLUMN oldest_session_id 'session of the oldest run',
    COMMENT COLUMN oldest_run_id 'id of the oldest run';
