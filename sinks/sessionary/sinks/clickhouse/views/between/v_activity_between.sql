-- One row per event of a session except heartbeats, with its payload unpacked. The end of work that has a beginning and
-- an end (tool calls, steps, runs) has the duration: as reported, or since a beginning within the period. Payloads are
-- read once per row, and only if a query names one of their columns.
CREATE OR REPLACE VIEW {database}_between.v_activity_between AS
SELECT
    h.appended_at AS time, h.occurred_at AS occurred_at, h.tenant_id AS tenant_id, h.session_id AS session_id,
    h.event_type AS event_type, h.p.kind AS kind,
    arrayFirst(x -> x != '', [h.p.tool_name, h.p.name, h.p.task, h.p.operation, h.p.role, h.p.prompt_name]) AS name,
    arrayFirst(x -> x != '', [h.p.text, h.p.message, h.p.content, h.p.output_text, h.p.reason, h.p.error.message]) AS text,
    h.p.error.error_class AS error_class, h.p.error.code AS error_code,
    h.p.progress AS progress, toUInt32(greatest(h.p.try_number, h.p.attempt)) AS try_number,
    if(h.event_type = 'usage_recorded', h.model, nullIf(h.p.model, '')) AS model,
    h.tokens_in AS tokens_in, h.tokens_out AS tokens_out, h.model_cost_usd_nanos AS model_cost_usd_nanos,
    h.tool_cost_usd_nanos AS tool_cost_usd_nanos, h.is_timeout_retry AS is_timeout_retry,
    h.cache_read_input_tokens AS cache_read_input_tokens, h.cache_write_input_tokens AS cache_write_input_tokens,
    h.reasoning_output_tokens AS reasoning_output_tokens, h.time_to_first_token_ms AS time_to_first_token_ms,
    h.retries AS retries, nullIf(h.p.response_id, '') AS response_id,
    arrayFirst(x -> x != '', [h.p.args_json, h.p.input_json]) AS input_json,
    arrayFirst(x -> x != '', [h.p.result_json, h.p.output_json]) AS output_json,
    multiIf(h.execution_time_ms IS NOT NULL, h.execution_time_ms / 1e3,
        h.is_end AND b.began_at > 0, (toUnixTimestamp64Micro(h.occurred_at) - b.began_at) / 1e6, NULL) AS duration_s,
    h.run_id AS run_id, h.step_id AS step_id, nullIf(h.p.tool_call_id, '') AS tool_call_id,
    h.user_id AS user_id, h.agent_id AS agent_id, h.agent_role AS agent_role, h.service_id AS service_id,
    h.actor AS actor, h.epoch AS epoch, h.producer_id AS producer_id, h.producer_seq AS producer_seq,
    h.event_id AS event_id, h.context_bytes AS context_bytes,
    (h.source_partition, h.source_offset, h.appended_at) IN
    (
        SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
        FROM {database}.rejected
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    ) AS is_rejected,
    h.source_partition AS source_partition, h.source_offset AS source_offset
FROM
(
    SELECT
        *,
        JSONExtract(payload_json, 'Tuple(kind String, tool_name String, name String, task String, operation String,
            role String, prompt_name String, text String, message String, content String, output_text String, reason String,
            error Tuple(error_class String, code String, message String), progress Nullable(Float64), try_number Int32,
            attempt Int32, model String, tool_call_id String, response_id String, args_json String, input_json String,
            result_json String, output_json String)') AS p,
        event_type IN ('tool_call_succeeded', 'tool_call_failed', 'tool_call_unknown', 'tool_call_resolved',
            'step_succeeded', 'step_failed', 'run_completed', 'run_failed', 'run_cancelled') AS is_end,
        multiIf(event_type LIKE 'tool\_call\_%', concat('tool ', p.tool_call_id),
            event_type LIKE 'step\_%', concat('step ', ifNull(run_id, ''), ' ', ifNull(step_id, p.name), ' ', toString(p.attempt)),
            event_type LIKE 'run\_%', concat('run ', ifNull(run_id, '')), '') AS work
    FROM {database}.history FINAL
    WHERE session_id != '' AND decode_error = '' AND event_type != 'heartbeat'
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
) AS h
LEFT JOIN
(
    SELECT
        tenant_id, session_id,
        multiIf(event_type = 'tool_call_started', concat('tool ', JSONExtractString(payload_json, 'tool_call_id')),
            event_type = 'step_started', concat('step ', ifNull(run_id, ''), ' ',
                ifNull(step_id, JSONExtractString(payload_json, 'name')), ' ', JSONExtractRaw(payload_json, 'attempt')),
            concat('run ', ifNull(run_id, ''))) AS work,
        toUnixTimestamp64Micro(min(occurred_at)) AS began_at
    FROM {database}.history
    WHERE event_type IN ('tool_call_started', 'step_started', 'run_started')
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY tenant_id, session_id, work
) AS b ON b.tenant_id = h.tenant_id AND b.session_id = h.session_id AND b.work = h.work
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_activity_between
    MODIFY COMMENT 'v_activity of a time';
