-- Of a decision that was delivered twice the first judged delivery counts, as in v_agent_events. A rejected one does not.
-- A tool call counts among those of its decision once, whatever its tries.
CREATE OR REPLACE VIEW {database}.v_decisions AS
SELECT
    d.appended_at AS time, d.tenant_id AS tenant_id, d.session_id AS session_id, ifNull(d.run_id, '') AS run_id,
    d.event_id AS decision_id, d.agent_id AS agent_id, d.service_id AS service_id, ifNull(d.causation_id, '') AS cause_id,
    JSONExtract(d.payload_json, 'choice', 'Nullable(String)') AS choice,
    JSONExtract(d.payload_json, 'candidates', 'Array(Tuple(name String, score Float64))') AS candidates,
    JSONExtract(d.payload_json, 'threshold', 'Nullable(Float64)') AS threshold,
    JSONExtract(d.payload_json, 'chosen_tools', 'Array(String)') AS tools,
    JSONExtract(d.payload_json, 'inputs_json', 'Nullable(String)') AS inputs,
    JSONExtract(d.payload_json, 'output_text', 'Nullable(String)') AS reason,
    JSONExtract(d.payload_json, 'model', 'Nullable(String)') AS model,
    JSONExtract(d.payload_json, 'prompt_id', 'Nullable(String)') AS prompt_id,
    JSONExtract(d.payload_json, 'prompt_version', 'Nullable(String)') AS prompt_version,
    JSONExtract(d.payload_json, 'parameters_json', 'Nullable(String)') AS parameters,
    JSONExtractInt(d.payload_json, 'tokens_in') AS tokens_in, JSONExtractInt(d.payload_json, 'tokens_out') AS tokens_out,
    JSONExtractInt(d.payload_json, 'model_cost_usd_nanos') AS model_cost_usd_nanos,
    c.calls AS tool_calls, d.payload_json != '' AS is_content_known, d.source_partition AS source_partition,
    d.source_offset AS source_offset
FROM
(
    SELECT
        *,
        {is_first_judged} AS is_judged
    FROM {database}.history FINAL
    WHERE event_type = 'llm_decision' AND decode_error = ''
) AS d
LEFT JOIN
(
    SELECT
        tenant_id, session_id, cause_id,
        arrayMap(x -> CAST((x.2, x.3), 'Tuple(tool_name String, tool_call_id String)'), arraySort(groupArray((place, tool_name, call_id)))) AS calls
    FROM
    (
        SELECT
            tenant_id, session_id, cause_id, JSONExtractString(payload_json, 'tool_call_id') AS call_id,
            any(JSONExtractString(payload_json, 'tool_name')) AS tool_name, min(source_offset) AS place
        FROM
        (
            SELECT
                tenant_id, session_id, assumeNotNull(causation_id) AS cause_id, payload_json, source_offset,
                {is_first_judged} AS is_judged
            FROM {database}.history
            WHERE event_type = 'tool_call_started' AND decode_error = '' AND causation_id IS NOT NULL AND payload_json != ''
        )
        WHERE is_judged
        GROUP BY tenant_id, session_id, cause_id, call_id
    )
    GROUP BY tenant_id, session_id, cause_id
) AS c ON c.tenant_id = d.tenant_id AND c.session_id = d.session_id AND c.cause_id = d.event_id
WHERE d.is_judged
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_decisions
    MODIFY COMMENT 'each decision of an agent: what it was made from, its options, its choice, and the tool calls that it caused',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names; empty without one',
    COMMENT COLUMN decision_id 'id of the event, which tool calls name as their cause',
    COMMENT COLUMN agent_id 'agent that decided',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN cause_id 'event that caused the decision: an outer decision, a step or a call; empty without one',
    COMMENT COLUMN choice 'chosen candidate; null if none was chosen, and once personal data has expired, as all that follows',
    COMMENT COLUMN candidates 'options with their scores, in the order in which the agent gave them',
    COMMENT COLUMN threshold 'score that the chosen option had to reach',
    COMMENT COLUMN tools 'names of the tools that the decision calls',
    COMMENT COLUMN inputs 'what it was made from, as JSON',
    COMMENT COLUMN reason 'reasoning in words, cut after 1,000 characters',
    COMMENT COLUMN model 'model that was asked',
    COMMENT COLUMN prompt_id 'prompt that asked it',
    COMMENT COLUMN prompt_version 'version of that prompt',
    COMMENT COLUMN parameters 'parameters of the model, as JSON',
    COMMENT COLUMN tokens_in 'tokens of the prompt; v_usage counts those of usage_recorded',
    COMMENT COLUMN tokens_out 'tokens of the answer',
    COMMENT COLUMN model_cost_usd_nanos 'cost of the model in billionths of a US dollar',
    COMMENT COLUMN tool_calls 'tool calls that name the decision as their cause, in the order in which they began',
    COMMENT COLUMN is_content_known 'false once personal data has expired',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
