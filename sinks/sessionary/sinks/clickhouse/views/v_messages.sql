-- The content is personal, and stays in history. A replayed message that filled its gap is a turn.
CREATE OR REPLACE VIEW {database}.v_messages AS
SELECT
    appended_at AS time, tenant_id, session_id, run_id,
    row_number() OVER (PARTITION BY tenant_id, session_id ORDER BY source_offset) AS turn,
    JSONExtractString(payload_json, 'role') AS role, JSONExtract(payload_json, 'name', 'Nullable(String)') AS name,
    JSONExtract(payload_json, 'artifact_id', 'Nullable(String)') AS artifact_id,
    JSONExtract(payload_json, 'content', 'Nullable(String)') IS NOT NULL AS has_content,
    agent_id, service_id, event_id, personal_expires > now() AS is_role_known, source_partition, source_offset
FROM
(
    SELECT
        *,
        {is_first_judged} AS is_judged
    FROM {database}.history FINAL
    WHERE event_type = 'message_appended' AND decode_error = ''
)
WHERE is_judged
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_messages
    MODIFY COMMENT 'each turn of a conversation, without its content',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names',
    COMMENT COLUMN turn 'number of the turn among the applied and kept turns of its session, in the order of the log, from 1, as in the control API',
    COMMENT COLUMN role 'role of the speaker; empty once personal data has expired',
    COMMENT COLUMN name 'name of the speaker or tool',
    COMMENT COLUMN artifact_id 'artifact that holds the content, if it is large',
    COMMENT COLUMN has_content 'true if the event has a content, which is in history',
    COMMENT COLUMN agent_id 'agent that sent the message',
    COMMENT COLUMN service_id 'service that sent the message',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN is_role_known 'true until the personal data expires',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
