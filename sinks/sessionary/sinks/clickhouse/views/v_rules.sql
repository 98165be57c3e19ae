-- One row per partition and version. The version's first record is at from_offset. Rules that replaced others were
-- activated by `principal`, with a record that the broker stamped `time`. The principal is taken from the audit trail,
-- because any client can write to the log.
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
    MODIFY COMMENT 'rules of each partition, with their first offset and the principal that activated them',
    COMMENT COLUMN time 'broker''s timestamp of the activating record; null without such a record',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN from_offset 'first offset that was judged by this version',
    COMMENT COLUMN version 'version of the rules',
    COMMENT COLUMN principal 'principal that activated the rules',
    COMMENT COLUMN at 'the same as time; the next release removes it';
