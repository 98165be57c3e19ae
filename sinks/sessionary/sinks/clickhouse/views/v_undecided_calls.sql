-- A call whose personal data has expired is no longer a row, because its payload says whether it has an effect. Each try of
-- a call names its cause: one that names a decision is enough. The cause of a call in a decision's block is the decision,
-- also within a step or another call.
CREATE OR REPLACE VIEW {database}.v_undecided_calls AS
SELECT
    min(toDateTime64(h.appended_at, 3, 'UTC')) AS time, tenant_id, session_id,
    argMin(ifNull(h.run_id, ''), h.source_offset) AS run_id, any(h.tool) AS tool_name, call_id AS tool_call_id,
    argMin(h.agent_id, h.source_offset) AS agent_id, argMin(h.service_id, h.source_offset) AS service_id,
    argMin(ifNull(h.causation_id, ''), h.source_offset) AS cause_id, any(s.classes) AS data_classes
FROM
(
    SELECT
        *, JSONExtractString(payload_json, 'tool_call_id') AS call_id, JSONExtractString(payload_json, 'tool_name') AS tool,
        (tenant_id, session_id, ifNull(causation_id, '')) IN
            (SELECT tenant_id, session_id, decision_id FROM {database}.v_decisions) AS is_decided,
        {is_first_judged} AS is_judged
    FROM {database}.history
    WHERE event_type = 'tool_call_started' AND decode_error = '' AND JSONExtractBool(payload_json, 'side_effect')
) AS h
INNER JOIN
(
    SELECT tenant_id, session_id, arraySort(groupUniqArrayArray(arrayMap(x -> toString(x), data_classes))) AS classes
    FROM {database}.history
    WHERE event_type != 'heartbeat' AND hasAny(data_classes, ['financial', 'medical', 'legal'])
    GROUP BY tenant_id, session_id
) AS s USING (tenant_id, session_id)
WHERE h.is_judged
GROUP BY tenant_id, session_id, call_id
HAVING countIf(h.is_decided) = 0;

ALTER TABLE {database}.v_undecided_calls
    MODIFY COMMENT 'tool calls with an effect that no decision caused, in sessions with financial, medical or legal data; empty if all is explained',
    COMMENT COLUMN time 'log time of the first try''s beginning',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the call; empty for a call of the session',
    COMMENT COLUMN tool_name 'name of the tool',
    COMMENT COLUMN tool_call_id 'id of the call in its events',
    COMMENT COLUMN agent_id 'agent that made the call',
    COMMENT COLUMN service_id 'service that made the call',
    COMMENT COLUMN cause_id 'event that caused it; empty without one',
    COMMENT COLUMN data_classes 'classes of the session''s data';
