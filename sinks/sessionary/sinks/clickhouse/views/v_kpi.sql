-- One row. Clean-up figures cover timed-out sessions (T06). A lost host reclaims nothing, which is no failure of a
-- handler: such clean-ups are excluded from the rate's divisor, and have a column. Bytes are those of the topics that
-- sinks read (without the changelog), so the true share of audit traffic is not above `audit_io_share`.
CREATE OR REPLACE VIEW {database}.v_kpi AS
SELECT
    c.timed_out AS timed_out, c.reclaimed AS reclaimed, c.host_lost AS host_lost,
    c.timed_out - c.reclaimed - c.host_lost AS unreclaimed,
    if(c.timed_out = c.host_lost, NULL, c.reclaimed / (c.timed_out - c.host_lost)) AS reclaim_rate,
    c.latency_avg AS cleanup_latency_avg_s, c.latency_p95 AS cleanup_latency_p95_s, c.latency_p99 AS cleanup_latency_p99_s,
    b.audit AS audit_bytes, b.total AS total_bytes, if(b.total = 0, NULL, b.audit / b.total) AS audit_io_share
FROM
(
    SELECT
        count() AS timed_out, countIf(confirmed) AS reclaimed, countIf(host_lost) AS host_lost,
        avgOrNullIf(assumeNotNull(latency_s), confirmed) AS latency_avg,
        quantileExactOrNullIf(0.95)(assumeNotNull(latency_s), confirmed) AS latency_p95,
        quantileExactOrNullIf(0.99)(assumeNotNull(latency_s), confirmed) AS latency_p99
    FROM {database}.v_cleanups
    WHERE transition = 'T06'
) AS c
CROSS JOIN
(
    SELECT sumIf(bytes, audit) AS audit, sum(bytes) AS total
    FROM
    (
        SELECT sum(toUInt64(value_size)) AS bytes, true AS audit FROM {database}.audit FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.history FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.rejected FINAL WHERE retain_until > now64(6)
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batches FINAL
    )
) AS b
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_kpi
    MODIFY COMMENT 'clean-up latency, reclaim rate, share of audit bytes',
    COMMENT COLUMN timed_out 'sessions that timed out',
    COMMENT COLUMN reclaimed 'sessions with a confirmed clean-up',
    COMMENT COLUMN host_lost 'sessions whose host is gone',
    COMMENT COLUMN unreclaimed 'sessions without a confirmation',
    COMMENT COLUMN reclaim_rate 'reclaimed over timed out, without lost hosts',
    COMMENT COLUMN cleanup_latency_avg_s 'mean seconds from timeout to confirmation',
    COMMENT COLUMN cleanup_latency_p95_s '95th percentile of these seconds',
    COMMENT COLUMN cleanup_latency_p99_s '99th percentile of these seconds',
    COMMENT COLUMN audit_bytes 'bytes of audit records',
    COMMENT COLUMN total_bytes 'bytes of all topics that sinks read',
    COMMENT COLUMN audit_io_share 'audit_bytes over total_bytes';
