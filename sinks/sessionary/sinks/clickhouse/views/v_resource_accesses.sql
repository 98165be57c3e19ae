-- Accesses that agents and tools report, and those of the clients' own artifacts, which need no report: a body that is
-- saved was written, one that is loaded in a session is reported by the client, one that is marked as deleted is gone.
-- Of an event that was delivered twice the first judged delivery counts, as in v_agent_events. A rejected one does not.
CREATE OR REPLACE VIEW {database}.v_resource_accesses AS
SELECT
    time, tenant_id, session_id, run_id, step_id, uri, access_time, operation, tool_name, agent_id, service_id, user_id,
    source_partition, source_offset
FROM
(
    SELECT
        a.time AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.run_id AS run_id, a.step_id AS step_id,
        a.uri AS uri, a.occurred_at AS access_time, a.operation AS operation, nullIf(c.tool_name, '') AS tool_name,
        a.agent_id AS agent_id, a.service_id AS service_id, a.user_id AS user_id,
        a.source_partition AS source_partition, a.source_offset AS source_offset
    FROM
    (
        SELECT
            toDateTime64(appended_at, 6, 'UTC') AS time, tenant_id, session_id, ifNull(run_id, '') AS run_id, step_id,
            JSONExtractString(payload_json, 'uri') AS uri, JSONExtractString(payload_json, 'kind') AS operation,
            occurred_at, ifNull(causation_id, '') AS cause_id, agent_id, toString(service_id) AS service_id, user_id,
            source_partition, source_offset,
            {is_first_judged} AS is_judged
        FROM {database}.history FINAL
        WHERE event_type = 'session_activity' AND decode_error = '' AND uri != ''
    ) AS a
    LEFT JOIN
    (
        SELECT tenant_id, session_id, event_id, any(JSONExtractString(payload_json, 'tool_name')) AS tool_name
        FROM {database}.history
        WHERE event_type = 'tool_call_started' AND decode_error = ''
        GROUP BY tenant_id, session_id, event_id
    ) AS c ON c.tenant_id = a.tenant_id AND c.session_id = a.session_id AND c.event_id = a.cause_id
    WHERE a.is_judged
    UNION ALL
    SELECT
        toDateTime64(time, 6, 'UTC'), tenant_id, session_id, run_id, step_id, JSONExtractString(payload_json, 'uri'),
        occurred_at, 'write', NULL, agent_id, toString(service_id), user_id, source_partition, source_offset
    FROM {database}.v_run_events
    WHERE event_type = 'artifact_created'
    UNION ALL
    SELECT
        toDateTime64(deleted_at, 6, 'UTC'), tenant_id, session_id, ifNull(run_id, ''), NULL, uri,
        toDateTime64(deleted_at, 6, 'UTC'), 'delete', NULL, '', '', NULL, 0, 0
    FROM {database}.v_artifacts
    WHERE deleted_at IS NOT NULL
)
WHERE uri != ''
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_resource_accesses
    MODIFY COMMENT 'each access of a resource: address, time and operation, with the tool call or step that made it',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names; empty without one',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN uri 'address of the resource; its row is gone once personal data has expired',
    COMMENT COLUMN access_time 'time of the access by the agent''s clock',
    COMMENT COLUMN operation 'read, write, delete or another word of the agent''s',
    COMMENT COLUMN tool_name 'tool whose call made the access; null outside a call',
    COMMENT COLUMN agent_id 'agent that made the access; empty for a mark as deleted',
    COMMENT COLUMN service_id 'service that made the access; empty for a mark as deleted',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN source_partition 'partition of the events topic; 0 for a mark as deleted',
    COMMENT COLUMN source_offset 'offset in that partition; 0 for a mark as deleted';
