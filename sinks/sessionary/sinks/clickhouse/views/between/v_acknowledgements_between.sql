-- One row per transaction whose acknowledgement is known.
CREATE OR REPLACE VIEW {database}_between.v_acknowledgements_between AS
SELECT min(at) AS time, partition, acknowledged_number AS number, time AS acknowledged_at
FROM
(
    SELECT partition, toUInt64(number - 1) AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS at
    FROM {database}.batches FINAL
    WHERE previous_acknowledged_at IS NOT NULL
        AND started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')} + INTERVAL 1 DAY
    UNION ALL
    SELECT partition, number AS acknowledged_number, acknowledged_at AS at
    FROM {database}.batch_acknowledgements FINAL
    WHERE acknowledged_at >= {from:DateTime('UTC')} AND acknowledged_at < {to:DateTime('UTC')} + INTERVAL 1 DAY
)
GROUP BY partition, acknowledged_number
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_acknowledgements_between
    MODIFY COMMENT 'v_acknowledgements of a time';
