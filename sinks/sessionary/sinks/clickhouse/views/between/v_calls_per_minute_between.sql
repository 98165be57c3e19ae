-- All tool calls, reserved or not. Each event counts once, even if it was delivered again. A rejected event does not
-- count. A call that was cancelled is no failure.
CREATE OR REPLACE VIEW {database}_between.v_calls_per_minute_between AS
SELECT
    toStartOfMinute(at) AS time, tenant_id, service_id, tool_name, countIf(NOT is_failure) AS calls,
    countIf(NOT is_failure AND try_number_of > 1) AS retries, countIf(is_failure) AS failures
FROM
(
    SELECT
        tenant_id, any(service_id) AS service_id, min(appended_at) AS at, any(event_type = 'tool_call_failed') AS is_failure,
        any(JSONExtractString(payload_json, 'tool_name')) AS tool_name,
        any(try_number) AS try_number_of,
        argMin(
            (source_partition, source_offset, appended_at) NOT IN
            (
                SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
                FROM {database}.rejected
                WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
            ),
            (appended_at, source_offset)) AS is_kept
    FROM {database}.history
    WHERE event_type IN ('tool_call_started', 'tool_call_failed')
        AND NOT is_cancelled
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
    GROUP BY tenant_id, session_id, producer_id, producer_seq, event_id
    HAVING is_kept
)
GROUP BY time, tenant_id, service_id, tool_name;

ALTER TABLE {database}_between.v_calls_per_minute_between
    MODIFY COMMENT 'v_calls_per_minute of a time';
