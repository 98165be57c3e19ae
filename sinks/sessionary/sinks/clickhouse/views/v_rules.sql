-- One row per partition and version; the version's first record is the one at from_offset. Rules that replaced others
-- were activated by `principal`, with a record that the broker stamped `time`. The audit trail names the principal: a
-- record of the log may come from any client.
CREATE OR REPLACE VIEW {database}.v_rules AS
SELECT
    if(h.found, h.at, NULL) AS time, b.partition AS partition, b.from_offset AS from_offset, b.version AS version,
    d.principal AS principal, time AS at
FROM
(
    SELECT partition, rules AS version, min(first_offset) AS from_offset
    FROM {database}.batches FINAL
    GROUP BY partition, rules
) AS b
LEFT JOIN
(
    SELECT
        source_partition, toUInt32OrZero(extract(reason, '^rules (\\d+) begin')) AS version,
        argMin(ifNull(actor, ''), source_offset) AS principal
    FROM {database}.audit FINAL
    WHERE kind = 'decision' AND event_type = 'rules_announced'
    GROUP BY source_partition, version
) AS d ON d.source_partition = b.partition AND d.version = b.version
LEFT JOIN
(
    SELECT source_partition, source_offset, true AS found, appended_at AS at
    FROM {database}.history FINAL
    WHERE event_type = 'rules_activation'
) AS h ON h.source_partition = b.partition AND h.source_offset = b.from_offset
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_rules
    MODIFY COMMENT 'from which offset on each partition was judged by which rules, and who activated them',
    COMMENT COLUMN time 'when the broker stamped the record that activated it; null for those that no record activated',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN from_offset 'first offset that was judged by this version',
    COMMENT COLUMN version 'version of the rules',
    COMMENT COLUMN principal 'who activated it',
    COMMENT COLUMN at 'the same as time; goes with the next release';
