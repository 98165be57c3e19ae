-- An event of an agent that was delivered twice counts once. A rejected event does not count.
CREATE OR REPLACE VIEW {database}.v_agent_events AS
SELECT
    appended_at AS time, tenant_id, session_id, event_type,
    if(event_type = 'context_synced', JSONExtractString(payload_json, 'to_agent_id'),
        ifNull(JSONExtract(payload_json, 'agent_id', 'Nullable(String)'), toString(sender))) AS agent_id,
    JSONExtract(payload_json, 'role', 'Nullable(String)') AS role,
    ifNull(JSONExtract(payload_json, 'service_id', 'Nullable(String)'), toString(service)) AS service_id,
    JSONExtract(payload_json, 'task', 'Nullable(String)') AS task,
    CAST(JSONExtractBool(payload_json, 'completed'), 'Bool') AS is_completed,
    JSONExtract(payload_json, 'from_snapshot_id', 'Nullable(String)') AS from_snapshot,
    ifNull(JSONExtract(payload_json, 'to_snapshot_id', 'Nullable(String)'),
        concat('snap_', lower(hex(substring(SHA256(toString(event_id)), 1, 6))))) AS to_snapshot,
    JSONExtract(payload_json, 'shared_key', 'Nullable(String)') AS shared_key,
    JSONExtract(payload_json, 'result_json', 'Nullable(String)') AS result,
    JSONExtract(payload_json, 'artifact_id', 'Nullable(String)') AS artifact_id,
    JSONExtract(payload_json, 'from_agent_id', 'Nullable(String)') AS from_agent_id,
    JSONExtract(payload_json, 'sync_type', 'Nullable(String)') AS sync_type,
    JSONExtract(payload_json, 'shared_json', 'Nullable(String)') AS context,
    event_id, source_partition, source_offset
FROM
(
    SELECT
        *, agent_id AS sender, service_id AS service,
        {is_first_judged} AS is_judged
    FROM {database}.history FINAL
    WHERE event_type IN ('agent_registered', 'agent_task_updated', 'context_synced') AND decode_error = ''
)
WHERE is_judged
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_agent_events
    MODIFY COMMENT 'each event about an agent of a session',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN event_type 'agent_registered, agent_task_updated or context_synced',
    COMMENT COLUMN agent_id 'agent of the event; for a hand-over, the taker',
    COMMENT COLUMN role 'role, for a registration',
    COMMENT COLUMN service_id 'service of a registered agent, or the service that sent the event',
    COMMENT COLUMN task 'task that the event names',
    COMMENT COLUMN is_completed 'true if the event completes the task',
    COMMENT COLUMN from_snapshot 'former snapshot, if the event names one',
    COMMENT COLUMN to_snapshot 'snapshot that the event makes',
    COMMENT COLUMN shared_key 'key under which a result is shared, if the event names one',
    COMMENT COLUMN result 'result as JSON; null without one, or once personal data has expired',
    COMMENT COLUMN artifact_id 'artifact that has the result',
    COMMENT COLUMN from_agent_id 'the giver, for a hand-over',
    COMMENT COLUMN sync_type 'the reason, for a hand-over',
    COMMENT COLUMN context 'the passed context as JSON, for a hand-over',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
