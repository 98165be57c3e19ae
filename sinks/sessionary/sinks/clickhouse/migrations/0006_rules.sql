-- Which rules judged a record: each transaction says it, and all records of one are judged by the same.

ALTER TABLE {database}.batches
    ADD COLUMN IF NOT EXISTS rules UInt32 DEFAULT 1 COMMENT 'version of the rules that its records were judged by'
    AFTER instance;

-- One row per partition and version; the version's first record is the one at from_offset. Rules that replaced others
-- were activated by `principal`, with a record that the broker stamped `at`. The audit trail names the principal: a
-- record of the log may come from any client.
CREATE OR REPLACE VIEW {database}.v_rules AS
SELECT
    b.partition AS partition, b.from_offset AS from_offset, b.version AS version,
    d.principal AS principal, if(h.found, h.at, NULL) AS at
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
) AS h ON h.source_partition = b.partition AND h.source_offset = b.from_offset;
