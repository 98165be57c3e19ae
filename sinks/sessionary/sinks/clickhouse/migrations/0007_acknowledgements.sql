-- When a transaction was acknowledged says the next one, or, after the last one before a pause, a record of its own.
-- Such a record may be lost or come twice.

CREATE TABLE IF NOT EXISTS {database}.batch_acknowledgements
(
    partition UInt32,
    number UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'of the row in batches',
    acknowledged_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    instance LowCardinality(String),
    src_topic LowCardinality(String),
    src_partition UInt32,
    src_offset UInt64 CODEC(Delta, ZSTD(1)),
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(acknowledged_at)
ORDER BY (partition, number)
TTL toDateTime(acknowledged_at) + INTERVAL 7 YEAR
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 10;

-- One row per transaction whose acknowledgement is known.
CREATE OR REPLACE VIEW {database}.v_acknowledgements AS
SELECT partition, acknowledged_number AS number, min(at) AS acknowledged_at
FROM
(
    SELECT partition, toUInt64(number - 1) AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS at
    FROM {database}.batches FINAL
    WHERE previous_acknowledged_at IS NOT NULL
    UNION ALL
    SELECT partition, number AS acknowledged_number, acknowledged_at AS at
    FROM {database}.batch_acknowledgements FINAL
)
GROUP BY partition, acknowledged_number;

CREATE OR REPLACE VIEW {database}.v_transition_latency AS
SELECT
    a.tenant_id AS tenant_id, a.session_id AS session_id, a.audit_seq AS audit_seq, a.transition AS transition,
    a.from_state AS from_state, a.to_state AS to_state, a.service_id AS service_id, a.timer AS timer,
    a.began_at AS began_at, b.acknowledged_at AS acknowledged_at,
    dateDiff('microsecond', a.began_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT
        tenant_id, session_id, audit_seq, transition, from_state, to_state, owner_service AS service_id,
        source_partition, batch_number, due_at IS NOT NULL AS timer, ifNull(due_at, appended_at) AS began_at
    FROM {database}.audit FINAL
    WHERE kind = 'transition'
) AS a
INNER JOIN {database}.v_acknowledgements AS b ON b.partition = a.source_partition AND b.number = a.batch_number;

CREATE OR REPLACE VIEW {database}.v_audit_write_latency AS
SELECT
    a.partition AS partition, a.number AS number, a.audited AS audited, a.started_at AS started_at,
    b.acknowledged_at AS acknowledged_at, dateDiff('microsecond', a.started_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT partition, number, audited, started_at
    FROM {database}.batches FINAL
    WHERE audited > 0
) AS a
INNER JOIN {database}.v_acknowledgements AS b ON b.partition = a.partition AND b.number = a.number;
