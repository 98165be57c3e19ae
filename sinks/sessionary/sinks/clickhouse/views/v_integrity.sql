-- One row per fault. No row: no record is missing or duplicated, and every chain of states is unbroken. Offsets are
-- those of the events topic, and for dead letters those of the sink's topic. Reports of the sinks (landed_ends) are
-- compared for a week: a record of the 22 days before keeps its row for 30 days.
CREATE OR REPLACE VIEW {database}.v_integrity AS
SELECT *
FROM {database}_between.v_integrity_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00', late_s = 120)
UNION ALL
SELECT * FROM
(
    SELECT
        concat(sink, '_', lost.1) AS fault, '' AS tenant_id, '' AS session_id, toNullable(partition) AS partition,
        toUInt64(lost.3 - lost.2 + 1) AS rows, toNullable(lost.2) AS first_offset, toNullable(lost.3) AS last_offset
    FROM
    (
        SELECT
            e.sink AS sink, e.partition AS partition,
            arrayJoin(arrayFilter(x -> x.4,
            [
                ('deleted_unread', e.committed, toUInt64(e.log_start - 1), e.committed < e.log_start),
                ('log_shorter', e.log_end, toUInt64(e.committed - 1), e.committed > e.log_end),
                ('end_missing', ifNull(e.last_offset, 0), ifNull(e.last_offset, 0),
                    e.last_offset IS NOT NULL AND NOT hasAny(r.topic_ids, ['', toString(e.topic_id)]))
            ])) AS lost
        FROM
        (
            SELECT sink, partition, topic_id, committed, log_start, log_end, last_offset
            FROM {database}.landed_ends FINAL
            WHERE reported_at > now() - INTERVAL 7 DAY
        ) AS e
        LEFT JOIN
        (
            SELECT table, place.1 AS partition, place.2 AS offset, groupUniqArray(topic_id) AS topic_ids
            FROM
            (
                SELECT 'audit' AS table, (src_partition, src_offset) AS place, toString(topic_id) AS topic_id
                FROM {database}.audit
                WHERE place IN (SELECT partition, assumeNotNull(last_offset) FROM {database}.landed_ends WHERE sink = 'audit')
                UNION ALL
                SELECT 'history', (source_partition, source_offset) AS place, toString(topic_id)
                FROM {database}.history
                WHERE place IN (SELECT partition, assumeNotNull(last_offset) FROM {database}.landed_ends WHERE sink = 'history')
                UNION ALL
                SELECT 'rejected', (src_partition, src_offset) AS place, toString(topic_id)
                FROM {database}.rejected
                WHERE place IN (SELECT partition, assumeNotNull(last_offset) FROM {database}.landed_ends WHERE sink = 'rejected')
                UNION ALL
                SELECT 'batches', (src_partition, src_offset) AS place, toString(topic_id)
                FROM {database}.batches
                WHERE place IN (SELECT partition, assumeNotNull(last_offset) FROM {database}.landed_ends WHERE sink = 'batches')
                UNION ALL
                SELECT 'batches', (src_partition, src_offset) AS place, toString(topic_id)
                FROM {database}.batch_acknowledgements
                WHERE place IN (SELECT partition, assumeNotNull(last_offset) FROM {database}.landed_ends WHERE sink = 'batches')
                UNION ALL
                SELECT toString(sink), (source_partition, source_offset) AS place, toString(topic_id)
                FROM {database}.sink_dead_letters
            )
            GROUP BY table, place
        ) AS r ON r.table = e.sink AND r.partition = e.partition AND r.offset = e.last_offset
    )
)
WHERE NOT arrayExists(
    d -> d.1 = fault AND d.2 = ifNull(toInt64(partition), -1) AND d.3 >= rows AND d.4 <= ifNull(toInt64(first_offset), -1)
        AND d.5 >= ifNull(toInt64(last_offset), -1),
    (
        SELECT groupArray((
            toString(fault), ifNull(toInt64(partition), -1), rows, ifNull(toInt64(first_offset), -1),
            ifNull(toInt64(last_offset), -1)))
        FROM {database}.dismissed_faults
    ));

ALTER TABLE {database}.v_integrity
    MODIFY COMMENT 'missing, duplicate and broken records, with their offsets; empty without faults',
    COMMENT COLUMN fault 'kind of the fault',
    COMMENT COLUMN tenant_id 'its tenant',
    COMMENT COLUMN session_id 'session, if the fault concerns one',
    COMMENT COLUMN partition 'partition of the events topic, if the fault concerns one',
    COMMENT COLUMN rows 'number of rows',
    COMMENT COLUMN first_offset 'first offset',
    COMMENT COLUMN last_offset 'last offset';
