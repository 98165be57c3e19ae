-- A run that uses several prompts has a row for each of them.
CREATE OR REPLACE VIEW {database}.v_prompt_runs AS
SELECT
    r.created_at AS time, p.tenant_id AS tenant_id, p.session_id AS session_id, p.run_id AS run_id, r.task_type AS task_type,
    p.prompt.1 AS prompt_id, p.prompt.2 AS prompt_version, r.status AS status,
    JSONExtract(ifNull(r.result, ''), 'score', 'Nullable(Float64)') AS score, r.duration_s AS duration_s,
    c.tools AS tools, c.calls AS calls, c.failed_tries AS failed_tries, u.calls AS model_calls, u.tokens_in AS tokens_in,
    u.tokens_out AS tokens_out, u.cost_usd_nanos AS cost_usd_nanos
FROM
(
    SELECT DISTINCT
        tenant_id, session_id, run_id, arrayJoin(JSONExtractKeysAndValues(payload_json, 'prompt_versions', 'String')) AS prompt
    FROM {database}.v_run_events
    WHERE event_type = 'run_started'
) AS p
INNER JOIN {database}.v_runs AS r ON r.tenant_id = p.tenant_id AND r.session_id = p.session_id AND r.run_id = p.run_id
LEFT JOIN
(
    SELECT
        tenant_id, session_id, run_id, count() AS calls, sum(failed) AS failed_tries,
        arrayMap(x -> x.2, arraySort(groupArray((place, tool)))) AS tools
    FROM
    (
        SELECT
            tenant_id, session_id, run_id, JSONExtractString(payload_json, 'tool_call_id') AS call_id,
            toString(any(name)) AS tool, min(source_offset) AS place, countIf(state = 'failed') AS failed
        FROM {database}.v_run_events
        WHERE subject = 'tool_call' AND payload_json != ''
        GROUP BY tenant_id, session_id, run_id, call_id
    )
    GROUP BY tenant_id, session_id, run_id
) AS c ON c.tenant_id = p.tenant_id AND c.session_id = p.session_id AND c.run_id = p.run_id
LEFT JOIN
(
    SELECT
        tenant_id, session_id, ifNull(run_id, '') AS run_id, count() AS calls, sum(tokens_in) AS tokens_in,
        sum(tokens_out) AS tokens_out, sum(model_cost_usd_nanos + tool_cost_usd_nanos) AS cost_usd_nanos
    FROM {database}.v_usage_calls
    GROUP BY tenant_id, session_id, run_id
) AS u ON u.tenant_id = p.tenant_id AND u.session_id = p.session_id AND u.run_id = p.run_id;

ALTER TABLE {database}.v_prompt_runs
    MODIFY COMMENT 'each run with the version of each of its prompts: the tools that it called, what it cost, and its outcome',
    COMMENT COLUMN time 'log time of the run''s first event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run, unique in its session',
    COMMENT COLUMN task_type 'type of the task',
    COMMENT COLUMN prompt_id 'prompt that the run used',
    COMMENT COLUMN prompt_version 'version of that prompt',
    COMMENT COLUMN status 'queued, started, running, paused, completed, failed, cancelled or rejected',
    COMMENT COLUMN score 'member score of the run''s result; null without one, and once personal data has expired',
    COMMENT COLUMN duration_s 'seconds from the first event to the end, or until now',
    COMMENT COLUMN tools 'names of the called tools, in the order in which the calls began; those whose personal data has expired are left out',
    COMMENT COLUMN calls 'number of tool calls',
    COMMENT COLUMN failed_tries 'number of their tries that failed',
    COMMENT COLUMN model_calls 'number of paid calls of models and tools',
    COMMENT COLUMN tokens_in 'tokens of their input',
    COMMENT COLUMN tokens_out 'tokens of their output',
    COMMENT COLUMN cost_usd_nanos 'their cost in billionths of a US dollar';
