-- A session that waits for its tenant's quota requested a slot at its creation, and has neither been admitted nor
-- ended.
CREATE OR REPLACE VIEW {database}.v_waiting_sessions AS
SELECT
    min(since) AS time, tenant_id, count() AS sessions, argMin(session_id, since) AS oldest_session_id
FROM
(
    SELECT
        tenant_id, session_id, min(appended_at) AS since, argMax(a.reason_code, (source_offset, source_n)) AS last_reason
    FROM {database}.audit AS a FINAL
    WHERE kind = 'quota' OR transition IN ('T01', 'T03')
    GROUP BY tenant_id, session_id
    HAVING last_reason = 'quota_requested'
)
GROUP BY tenant_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_waiting_sessions
    MODIFY COMMENT 'each tenant with sessions that wait for its quota: their number, and the oldest',
    COMMENT COLUMN tenant_id 'the tenant',
    COMMENT COLUMN sessions 'number of waiting sessions',
    COMMENT COLUMN time 'log time since which the oldest one waits',
    COMMENT COLUMN oldest_session_id 'id of the oldest session';
