-- A fenced writer uses an epoch that is over, a foreign writer a session of another service. A bad
-- signature is of a writer that claims to be an operator. Old rejections have no
-- names any more.
CREATE OR REPLACE VIEW {database}.v_foreign_writers AS
SELECT
    max(appended_at) AS time, ifNull(r.tenant_id, '') AS tenant_id, ifNull(r.session_id, '') AS session_id,
    ifNull(r.service_id, '') AS service_id, r.reason AS reason, count() AS events, min(appended_at) AS first_at,
    max(appended_at) AS last_at
FROM {database}.rejected AS r FINAL
WHERE r.reason IN ('stale_epoch', 'not_owner', 'not_member', 'foreign_tenant', 'key_mismatch', 'producer_conflict', 'bad_signature')
    AND r.service_id IS NOT NULL
GROUP BY tenant_id, session_id, service_id, reason
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_foreign_writers
    MODIFY COMMENT 'each service that wrote to a session of another owner, or as an operator: number of its events, and reason of their rejection',
    COMMENT COLUMN time 'log time of the latest such event',
    COMMENT COLUMN tenant_id 'tenant of the session, by the record''s key',
    COMMENT COLUMN session_id 'id of the session, by the record''s key',
    COMMENT COLUMN service_id 'service that the event names',
    COMMENT COLUMN reason 'reason of the rejection: stale_epoch is a fenced writer, bad_signature one that claims to be an operator',
    COMMENT COLUMN events 'number of rejected events; the first heartbeat of a fenced client in an epoch counts',
    COMMENT COLUMN first_at 'log time of the first such event',
    COMMENT COLUMN last_at 'log time of the latest such event';
