CREATE OR REPLACE VIEW {database}_between.v_audit_write_latency_between AS
SELECT
    a.started_at AS time, a.partition AS partition, a.number AS number, a.audited AS audited, a.started_at AS started_at,
    b.acknowledged_at AS acknowledged_at, dateDiff('microsecond', a.started_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT partition, number, audited, started_at
    FROM {database}.batches FINAL
    WHERE audited > 0 AND started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
) AS a
INNER JOIN {database}_between.v_acknowledgements_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS b
    ON b.partition = a.partition AND b.number = a.number
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_audit_write_latency_between
    MODIFY COMMENT 'v_audit_write_latency of a time';
