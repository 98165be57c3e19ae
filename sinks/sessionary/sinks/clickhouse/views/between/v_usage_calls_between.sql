-- One row per call: an event counts once, even if it was delivered again, and only if it was not rejected. A rejection
-- names the record by place and time, because a topic that was created again has the same places. Numbers below zero
-- count as 0. FINAL is not used, because few calls have several rows: `copies` finds these by a hash, and only they are
-- grouped, which takes a third of the time.
--
-- The first judged delivery of an event counts, as in v_run_events: an event that was rejected and delivered again does
-- not count. The reasons that are listed by name left the event's number free: such a delivery was not judged against
-- the number. Reasons outlive all other data of a rejection, so old rows count like young ones.
CREATE OR REPLACE VIEW {database}_between.v_usage_calls_between AS
WITH
deliveries AS
(
    SELECT
        appended_at, tenant_id, session_id, user_id, agent_id, service_id, run_id, step_id, model,
        greatest(tokens_in, 0) AS tokens_in, greatest(tokens_out, 0) AS tokens_out,
        greatest(model_cost_usd_nanos, 0) AS model_cost_usd_nanos,
        greatest(tool_cost_usd_nanos, 0) AS tool_cost_usd_nanos, is_timeout_retry,
        cache_read_input_tokens, cache_write_input_tokens, reasoning_output_tokens, time_to_first_token_ms, retries,
        JSONExtract(payload_json, 'response_id', 'Nullable(String)') AS response_id,
        producer_id, producer_seq, source_offset, cityHash64(tenant_id, session_id, producer_id, producer_seq) AS call_hash,
        (source_partition, source_offset, appended_at) NOT IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
            FROM {database}.rejected
            WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        ) AS is_kept
    FROM {database}.history
    WHERE event_type = 'usage_recorded'
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        AND (source_partition, source_offset, appended_at) NOT IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
            FROM {database}.rejected
            WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
                AND reason IN ('undecodable', 'unknown_schema', 'unknown_event_type', 'bad_key', 'key_mismatch',
                    'foreign_tenant', 'wrong_partition', 'unknown_session', 'session_archived', 'late_filler',
                    'too_many_producers', 'producer_conflict', 'bad_row', 'internal_error', 'skipped')
        )
),
(
    SELECT groupArray(call_hash) FROM (SELECT call_hash FROM deliveries GROUP BY call_hash HAVING count() > 1)
) AS copies
SELECT
    appended_at AS time, tenant_id, session_id, user_id, agent_id, service_id, run_id, step_id, model, tokens_in, tokens_out,
    model_cost_usd_nanos, tool_cost_usd_nanos, is_timeout_retry, cache_read_input_tokens, cache_write_input_tokens,
    reasoning_output_tokens, time_to_first_token_ms, retries, response_id
FROM deliveries
WHERE is_kept AND (empty(copies) OR call_hash NOT IN (SELECT arrayJoin(copies)))
UNION ALL
SELECT
    appended_at, tenant_id, session_id, user_id, agent_id, service_id, run_id, step_id, model, tokens_in, tokens_out,
    model_cost_usd_nanos, tool_cost_usd_nanos, is_timeout_retry, cache_read_input_tokens, cache_write_input_tokens,
    reasoning_output_tokens, time_to_first_token_ms, retries, response_id
FROM
(
    SELECT *
    FROM deliveries
    WHERE notEmpty(copies) AND call_hash IN (SELECT arrayJoin(copies))
    ORDER BY appended_at, source_offset
    LIMIT 1 BY tenant_id, session_id, producer_id, producer_seq
)
WHERE is_kept;

ALTER TABLE {database}_between.v_usage_calls_between
    MODIFY COMMENT 'v_usage_calls of a time';
