-- The key figures of a period, for a query every half minute: one row, without FINAL, from rows of the period alone. A
-- row that is stored twice counts once in ratios and costs, but its bytes count twice until a merge. A figure without a
-- row is NULL, not 0.
--
-- Clean-up figures cover sessions that timed out (T06) `late_s` seconds or more before `to`: a confirmation takes some
-- time. Lost hosts are excluded from the ratio's divisor, as in v_kpi.
-- Latencies are those of v_transition_latency and v_audit_write_latency. Bytes are those of the topics that sinks read.
-- Costs and contexts are those of events that were not rejected.
CREATE OR REPLACE VIEW {database}_between.v_kpi_between AS
WITH
acknowledgements AS
(
    SELECT partition, acknowledged_number AS number, min(at) AS acknowledged_at
    FROM
    (
        SELECT partition, toUInt64(number - 1) AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS at
        FROM {database}.batches
        WHERE started_at >= {from:DateTime('UTC')} AND previous_acknowledged_at IS NOT NULL
        UNION ALL
        SELECT partition, number AS acknowledged_number, acknowledged_at AS at
        FROM {database}.batch_acknowledgements
        WHERE acknowledged_at >= {from:DateTime('UTC')}
    )
    GROUP BY partition, acknowledged_number
)
SELECT
    c.timed_out AS timed_out, c.reclaimed AS reclaimed, c.host_lost AS host_lost,
    if(c.timed_out = c.host_lost, NULL, c.reclaimed / (c.timed_out - c.host_lost)) AS reclaim_ratio,
    c.latency_avg AS cleanup_avg_s,
    c.latency_p50 AS cleanup_p50_s, c.latency_p95 AS cleanup_p95_s, c.latency_p99 AS cleanup_p99_s,
    t.latency_p50 AS transition_latency_p50_s, t.latency_p95 AS transition_latency_p95_s,
    t.latency_p99 AS transition_latency_p99_s,
    w.latency_p50 AS audit_write_latency_p50_s, w.latency_p95 AS audit_write_latency_p95_s,
    w.latency_p99 AS audit_write_latency_p99_s,
    if(b.total = 0, NULL, b.audit / b.total) AS audit_io_ratio,
    if(u.cost = 0, NULL, u.retry_cost / u.cost) AS timeout_retry_cost_ratio,
    x.context_bytes_max AS session_context_bytes_max
FROM
(
    SELECT
        count() AS timed_out, countIf(confirmed) AS reclaimed, countIf(host_gone) AS host_lost,
        avgOrNullIf(latency_s, confirmed) AS latency_avg,
        quantileExactOrNullIf(0.5)(latency_s, confirmed) AS latency_p50,
        quantileExactOrNullIf(0.95)(latency_s, confirmed) AS latency_p95,
        quantileExactOrNullIf(0.99)(latency_s, confirmed) AS latency_p99
    FROM
    (
        SELECT
            countIf(is_release) > 0 AS released,
            released AND argMinIf(host_lost, appended_at, is_release) AS host_gone,
            released AND NOT host_gone AND empty(argMinIf(actions_failed, appended_at, is_release)) AS confirmed,
            dateDiff('microsecond', minIf(requested_at, NOT is_release), minIf(appended_at, is_release)) / 1e6 AS latency_s
        FROM
        (
            SELECT
                tenant_id, session_id, cleanup_id, kind = 'release' AS is_release, host_lost, actions_failed, appended_at,
                ifNull(fired_at, appended_at) AS requested_at
            FROM {database}.audit
            WHERE appended_at >= {from:DateTime('UTC')} AND cleanup_id IS NOT NULL
                AND (kind = 'release' OR (kind = 'transition' AND transition = 'T06'
                    AND appended_at < {to:DateTime('UTC')} - toIntervalSecond({late_s:UInt32})))
        )
        GROUP BY tenant_id, session_id, cleanup_id
        HAVING countIf(NOT is_release) > 0
    )
) AS c
CROSS JOIN
(
    SELECT
        quantileExactOrNull(0.5)(latency_s) AS latency_p50, quantileExactOrNull(0.95)(latency_s) AS latency_p95,
        quantileExactOrNull(0.99)(latency_s) AS latency_p99
    FROM
    (
        SELECT dateDiff('microsecond', any(a.began_at), any(k.acknowledged_at)) / 1e6 AS latency_s
        FROM
        (
            SELECT
                tenant_id, session_id, audit_seq, source_partition, batch_number, ifNull(due_at, appended_at) AS began_at
            FROM {database}.audit
            WHERE kind = 'transition' AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        ) AS a
        INNER JOIN acknowledgements AS k ON k.partition = a.source_partition AND k.number = a.batch_number
        GROUP BY a.tenant_id, a.session_id, a.audit_seq
    )
) AS t
CROSS JOIN
(
    SELECT
        quantileExactOrNull(0.5)(latency_s) AS latency_p50, quantileExactOrNull(0.95)(latency_s) AS latency_p95,
        quantileExactOrNull(0.99)(latency_s) AS latency_p99
    FROM
    (
        SELECT dateDiff('microsecond', any(a.started_at), any(k.acknowledged_at)) / 1e6 AS latency_s
        FROM {database}.batches AS a
        INNER JOIN acknowledgements AS k ON k.partition = a.partition AND k.number = a.number
        WHERE a.audited > 0 AND a.started_at >= {from:DateTime('UTC')} AND a.started_at < {to:DateTime('UTC')}
        GROUP BY a.partition, a.number
    )
) AS w
CROSS JOIN
(
    SELECT sumIf(bytes, is_audit) AS audit, sum(bytes) AS total
    FROM
    (
        SELECT sum(toUInt64(value_size)) AS bytes, true AS is_audit FROM {database}.audit
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.history
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.rejected
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batches
        WHERE started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batch_acknowledgements
        WHERE acknowledged_at >= {from:DateTime('UTC')} AND acknowledged_at < {to:DateTime('UTC')}
    )
) AS b
CROSS JOIN
(
    SELECT
        sum(model_cost_usd_nanos + tool_cost_usd_nanos) AS cost,
        sumIf(model_cost_usd_nanos + tool_cost_usd_nanos, is_timeout_retry) AS retry_cost
    FROM {database}_between.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')})
) AS u
CROSS JOIN
(
    SELECT max(context_bytes) AS context_bytes_max
    FROM {database}.history
    WHERE context_bytes IS NOT NULL
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        AND (source_partition, source_offset, appended_at) NOT IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
            FROM {database}.rejected
            WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        )
) AS x;

ALTER TABLE {database}_between.v_kpi_between
    MODIFY COMMENT 'all figures with a target, of a period and without FINAL';
