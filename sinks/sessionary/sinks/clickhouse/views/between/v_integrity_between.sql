-- Each transaction reports the numbers of judged records, of rejected records and of written audit records. This view
-- compares these counts with the rows. The records of a transaction include heartbeats that it only counted. Tables are
-- read without FINAL, so that a row that is stored twice is visible before a merge hides it.
--
-- The view has the faults of transactions that began within a period. `late_s`: rows of a transaction count as missing
-- so many seconds after the transaction's own row, or earlier if later rows of their table exist (each table has a
-- sink) that landed a minute ago, longer than an insert takes: the parts of a block become visible one by one. A
-- table's last rows count as missing after two minutes, because ticks and heartbeats may wait for one. The expiry of a
-- missing row is unknown. Rows are kept for at least 30 days, and Kafka may have held a record for 7 days before.
-- Therefore history and audit are compared for 22 days, rejections for 357. If transactions are kept for a shorter
-- time, their first rows may be gone (a year is allowed for partitions that were silent).
--
-- If a partition's first transaction of a period is not its first one at all, the one before it must be stored.
-- Therefore a loss of all rows is visible in every period that begins after it, as long as another transaction follows.
-- From 1970 on, all transactions of a partition must be stored.
--
-- Rows of run_events are compared with those of history, of which they are made. Faults that a person dismissed are left
-- out: dismissed_faults has them.
--
-- Rows are first counted by groups of 1,024 transactions, and by single transactions only in groups with a difference.
-- A lane is a partition's rows of one table: 4 * partition, + 1 for rejections, + 2 for the audit trail.
--
-- The engine analyses a subquery again at each place that names it, although the result is known. Therefore the bounds
-- are one tuple: as a table, they were read for six columns at a hundred places, which took half as much processor time
-- again.
CREATE OR REPLACE VIEW {database}_between.v_integrity_between AS
WITH
(
    SELECT greatest(if(count() = 0, 2557, argMax(days, applied_at)) - 365, 0) FROM {database}.retention_days
    WHERE table_name = 'batches'
) AS known_days,
(
    SELECT groupArray((
        toString(fault), toString(tenant_id), session_id, ifNull(toInt64(partition), -1), rows,
        ifNull(toInt64(first_offset), -1), ifNull(toInt64(last_offset), -1)))
    FROM {database}.dismissed_faults
) AS dismissed,
transactions AS
(
    SELECT
        partition, number, first_offset, last_offset, applied + duplicate + rejected + fenced_beats + ticks AS records, rejected,
        audited,
        started_at, landed_at
    FROM {database}.batches
    WHERE started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
        AND started_at > now() - INTERVAL 357 DAY
),
-- A transaction of timers or decisions alone has no record: the one at its offset is the next one's.
expected AS
(
    SELECT
        arrayJoin(if(started_at > now() - INTERVAL 22 DAY,
            [(0, records), (1, rejected), (2, audited)], [(1, rejected)])) AS pair,
        4 * toUInt64(partition) + pair.1 AS lane, pair.2 AS wanted,
        number, first_offset, last_offset, landed_at
    FROM transactions
    WHERE records > 0 OR pair.1 = 2
),
(
    SELECT CAST(
        (
            greatest(min(first_offset), 0), max(last_offset), min(number), max(number),
            toYYYYMM(min(started_at) - INTERVAL 8 DAY), toYYYYMM(max(started_at) + INTERVAL 1 DAY)
        ),
        'Tuple(low UInt64, high UInt64, low_number UInt64, high_number UInt64, first_month UInt32, last_month UInt32)')
    FROM {database}.batches
    WHERE started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
) AS bounds,
-- `place` is compared with a transaction's range, and `identity` distinguishes rows of one place.
stored_rows AS
(
    SELECT 4 * toUInt64(source_partition) AS lane, toInt64(source_offset) AS place, toUInt64(source_offset) AS identity
    FROM {database}.history
    WHERE source_offset BETWEEN bounds.low AND bounds.high
        AND _partition_value.2 BETWEEN bounds.first_month AND bounds.last_month
    UNION ALL
    SELECT 4 * toUInt64(source_partition) + 1, toInt64(source_offset), source_offset
    FROM {database}.rejected
    WHERE source_offset BETWEEN bounds.low AND bounds.high
        AND _partition_value.1 BETWEEN bounds.first_month AND bounds.last_month
    UNION ALL
    SELECT 4 * toUInt64(source_partition) + 2, toInt64(batch_number), bitXor(bitShiftLeft(toUInt64(source_n), 44), source_offset)
    FROM {database}.audit
    WHERE batch_number BETWEEN bounds.low_number AND bounds.high_number
        AND _partition_value.2 BETWEEN bounds.first_month AND bounds.last_month
),
chunks AS
(
    SELECT
        lane, intDiv(number, 1024) AS chunk,
        if(lane % 4 = 2, toInt64(min(number)), min(first_offset)) AS first_place,
        if(lane % 4 = 2, toInt64(max(number)), max(last_offset)) AS last_place,
        sum(wanted) AS total
    FROM expected
    GROUP BY lane, chunk
),
(
    SELECT groupArray((lane, chunk))
    FROM
    (
        SELECT lane, chunk
        FROM
        (
            SELECT lane, chunk, total, 0 AS is_row, toUInt64(0) AS identity FROM chunks
            UNION ALL
            SELECT c.lane, c.chunk, 0, 1, r.identity
            FROM stored_rows AS r
            ASOF INNER JOIN chunks AS c ON c.lane = r.lane AND r.place >= c.first_place
            WHERE r.place <= c.last_place
        )
        GROUP BY lane, chunk
        -- Two rows that differ only beyond 32 bits are checked once more, which does no harm.
        HAVING sum(total) != sum(is_row) OR sum(is_row) !=
            bitmapCardinality(groupBitmapStateIf(toUInt32(bitXor(identity, bitShiftRight(identity, 18))), is_row = 1))
    )
) AS suspects,
-- From here on only rows of these groups.
places AS
(
    SELECT
        lane, number, first_offset, last_offset, wanted, landed_at,
        if(lane % 4 = 2, toInt64(number), first_offset) AS first_place,
        if(lane % 4 = 2, toInt64(number), last_offset) AS last_place
    FROM expected
    WHERE (lane, intDiv(number, 1024)) IN (SELECT arrayJoin(suspects))
),
suspect_rows AS
(
    SELECT 4 * toUInt64(source_partition) AS lane, toInt64(source_offset) AS place, toUInt64(source_offset) AS identity, landed_at
    FROM {database}.history
    WHERE notEmpty(suspects) AND source_offset BETWEEN bounds.low AND bounds.high
        AND _partition_value.2 BETWEEN bounds.first_month AND bounds.last_month
    UNION ALL
    SELECT 4 * toUInt64(source_partition) + 1, toInt64(source_offset), source_offset, landed_at
    FROM {database}.rejected
    WHERE notEmpty(suspects) AND source_offset BETWEEN bounds.low AND bounds.high
        AND _partition_value.1 BETWEEN bounds.first_month AND bounds.last_month
    UNION ALL
    SELECT 4 * toUInt64(source_partition) + 2, toInt64(batch_number), bitXor(bitShiftLeft(toUInt64(source_n), 44), source_offset),
        landed_at
    FROM {database}.audit
    WHERE notEmpty(suspects) AND batch_number BETWEEN bounds.low_number AND bounds.high_number
        AND _partition_value.2 BETWEEN bounds.first_month AND bounds.last_month
),
compared AS
(
    SELECT
        lane, number, first_offset, last_offset, max(wanted) AS wanted_rows, sum(is_row) AS stored,
        uniqExactIf(identity, is_row = 1) AS kept, groupUniqArrayIf(identity, is_row = 1 AND lane % 4 = 0) AS offsets,
        max(landed) AS landed, minIf(row_landed, is_row = 1) AS first_landed
    FROM
    (
        SELECT
            lane, number, first_offset, last_offset, wanted, 0 AS is_row, toUInt64(0) AS identity, landed_at AS landed,
            landed_at AS row_landed
        FROM places
        UNION ALL
        SELECT p.lane, p.number, p.first_offset, p.last_offset, 0, 1, r.identity, toDateTime64(0, 3, 'UTC'), r.landed_at
        FROM suspect_rows AS r
        ASOF INNER JOIN places AS p ON p.lane = r.lane AND r.place >= p.first_place
        WHERE r.place <= p.last_place
    )
    GROUP BY lane, number, first_offset, last_offset
),
faulty AS
(
    SELECT lane, number, first_offset, last_offset, offsets, fault.1 AS kind, fault.2 AS rows
    FROM
    (
        SELECT
            lane, number, first_offset, last_offset, offsets,
            landed <= now64(3) - toIntervalSecond({late_s:UInt32})
                OR number < maxIf(number, stored > 0 AND first_landed <= now64(3) - toIntervalSecond(least({late_s:UInt32}, 60)))
                    OVER (PARTITION BY lane) AS is_settled,
            arrayJoin([
                ('missing', if(is_settled, toInt64(wanted_rows) - toInt64(kept), 0)),
                ('unexpected', toInt64(kept) - toInt64(wanted_rows)),
                ('doubled', toInt64(stored) - toInt64(kept))
            ]) AS fault
        FROM compared
    )
    WHERE rows > 0
),
-- The exact offsets without a row in history. Markers of transactions have an offset and no row, so there may be more
-- such offsets than missing rows.
located AS
(
    SELECT
        lane, number, kind, rows,
        if(lane % 4 = 0 AND kind = 'missing' AND last_offset - first_offset < 1000000,
            arrayFilter(x -> NOT has(offsets, x), range(toUInt64(first_offset), toUInt64(last_offset + 1))),
            [toUInt64(first_offset), toUInt64(last_offset)]) AS lacking,
        number - row_number() OVER (PARTITION BY lane, kind ORDER BY number) AS neighbours
    FROM faulty
),
-- Transactions by number. A worker's clock may be behind its predecessor's, so all numbers between the first and the
-- last one of the period belong to it, independent of their times.
numbers AS
(
    SELECT
        b.partition AS partition, b.number AS number, count() AS stored, min(b.first_offset) AS first_offset,
        max(b.last_offset) AS last_offset, min(b.started_at) AS began_at, any(s.low) AS low_number
    FROM {database}.batches AS b
    INNER JOIN
    (
        SELECT partition, min(number) AS low, max(number) AS high
        FROM {database}.batches
        WHERE started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
        GROUP BY partition
    ) AS s ON s.partition = b.partition
    WHERE b.number + 1 >= s.low AND b.number <= s.high  -- with the one before, if it is there
    GROUP BY partition, number
),
-- The transaction before the first stored one: from 1970 on there must be none, else exactly this one must be stored.
number_gaps AS
(
    SELECT
        partition, number, stored, first_offset,
        began_at > now() - toIntervalDay(known_days) AND number >= low_number AS is_known,
        toUnixTimestamp({from:DateTime('UTC')}) = 0 AS is_all,
        lagInFrame(number, 1, toUInt64(multiIf(NOT is_known, number - 1, is_all, 0, greatest(number, 2) - 2))) OVER w
            AS former_number,
        lagInFrame(last_offset, 1, if(is_all, toInt64(-1), greatest(first_offset - 2, toInt64(-1)))) OVER w AS former_offset
    FROM numbers
    WINDOW w AS (PARTITION BY partition ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
),
-- Transactions after the last stored one, with rows in other tables.
number_ends AS
(
    SELECT k.partition AS partition, max(k.number) AS known, any(b.last_number) AS stored, any(b.end_offset) AS last_offset
    FROM
    (
        SELECT source_partition AS partition, max(batch_number) AS number
        FROM {database}.audit
        WHERE landed_at <= now64(3) - toIntervalSecond({late_s:UInt32})
        GROUP BY partition
        UNION ALL
        SELECT partition, max(number)
        FROM {database}.batch_acknowledgements
        WHERE landed_at <= now64(3) - toIntervalSecond({late_s:UInt32})
        GROUP BY partition
    ) AS k
    LEFT JOIN
    (
        SELECT partition, max(number) AS last_number, argMax(last_offset, number) AS end_offset
        FROM {database}.batches
        GROUP BY partition
    ) AS b ON b.partition = k.partition
    WHERE {to:DateTime('UTC')} > now()
    GROUP BY partition
),
-- Audit numbers run from 1, and each transition begins in the final state of the one before it. Rows expire from a
-- session's beginning on, after 30 days at the earliest: an older session may begin above 1.
sessions AS
(
    SELECT
        tenant_id, session_id,
        arraySort(groupUniqArray((
            audit_seq, source_offset, source_n, source_partition,
            kind = 'transition', toString(from_state), toString(to_state)))) AS trail,
        arrayUniq(arrayMap(x -> x.1, trail)) AS distinct_found, trail[-1].1 AS last_seq,
        if(toUnixTimestamp({from:DateTime('UTC')}) = 0 AND min(appended_at) > now() - INTERVAL 29 DAY, 1, trail[1].1) AS first_seq,
        arrayFilter(x -> x.5, trail) AS transitions,
        arrayCount((a, b) -> a.7 != b.6, arrayPopBack(transitions), arrayPopFront(transitions)) AS breaks
    FROM {database}.audit
    WHERE audit_seq > 0 AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY tenant_id, session_id
),
-- What run_events has of the rows that its materialized view takes from history, by places. The condition is the view's,
-- in two parts: contents are read of tool calls without a run only.
run_places AS
(
    SELECT topic_id, source_partition, source_offset, false AS is_stored
    FROM {database}.history
    WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')} AND appended_at > now() - INTERVAL 22 DAY
        AND landed_at <= now64(3) - toIntervalSecond({late_s:UInt32}) AND retain_until > now() + INTERVAL 1 DAY
        AND decode_error = '' AND session_id != '' AND event_type != 'heartbeat'
        AND (ifNull(run_id, '') != '' OR startsWith(event_type, 'artifact_'))
    UNION ALL
    SELECT topic_id, source_partition, source_offset, false
    FROM {database}.history
    PREWHERE startsWith(event_type, 'tool_call_') AND ifNull(run_id, '') = ''
    WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')} AND appended_at > now() - INTERVAL 22 DAY
        AND landed_at <= now64(3) - toIntervalSecond({late_s:UInt32}) AND retain_until > now() + INTERVAL 1 DAY
        AND decode_error = '' AND session_id != ''
        AND JSONExtractString(payload_json, 'idem_key') NOT IN ('', JSONExtractString(payload_json, 'tool_call_id'))
    UNION ALL
    SELECT topic_id, source_partition, source_offset, true
    FROM {database}.run_events
    WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')} AND appended_at > now() - INTERVAL 22 DAY
)
SELECT * FROM
(
    SELECT
        concat(['history', 'rejected', 'audit'][lane % 4 + 1], '_rows_', kind) AS fault, '' AS tenant_id, '' AS session_id,
        toNullable(toUInt32(intDiv(lane, 4))) AS partition, toUInt64(sum(rows)) AS rows,
        toNullable(min(arrayMin(lacking))) AS first_offset, toNullable(max(arrayMax(lacking))) AS last_offset
    FROM located
    GROUP BY lane, kind, neighbours
    UNION ALL
    SELECT
        'batch_missing', '', '', partition, toUInt64(sum(number - former_number - 1)),
        toUInt64(min(former_offset + 1)), toUInt64(max(greatest(first_offset - 1, former_offset + 1)))
    FROM number_gaps WHERE number > former_number + 1 GROUP BY partition
    UNION ALL
    SELECT 'batch_missing', '', '', partition, toUInt64(known - stored), toUInt64(if(stored = 0, 0, last_offset + 1)), NULL
    FROM number_ends WHERE known > stored
    UNION ALL
    SELECT 'batch_doubled', '', '', partition, toUInt64(sum(stored - 1)), toUInt64(min(first_offset)), toUInt64(max(last_offset))
    FROM numbers WHERE stored > 1 AND number >= low_number GROUP BY partition
    UNION ALL
    SELECT
        fault.1, toString(tenant_id), session_id, NULL, toUInt64(fault.2), NULL, NULL
    FROM
    (
        SELECT
            tenant_id, session_id,
            arrayJoin([
                ('audit_missing', toInt64(last_seq - first_seq + 1) - toInt64(distinct_found)),
                ('audit_doubled', toInt64(length(trail)) - toInt64(distinct_found)),
                ('chain_broken', toInt64(breaks))
            ]) AS fault
        FROM sessions
    )
    WHERE fault.2 > 0
    UNION ALL
    SELECT
        'run_events_missing', '', '', source_partition, bitmapCardinality(lacking), bitmapMin(lacking), bitmapMax(lacking)
    FROM
    (
        SELECT
            source_partition,
            bitmapAndnot(
                groupBitmapStateIf(toUInt64(source_offset), NOT is_stored), groupBitmapStateIf(toUInt64(source_offset), is_stored)
            ) AS lacking
        FROM run_places
        GROUP BY topic_id, source_partition
    )
    WHERE bitmapCardinality(lacking) > 0
    UNION ALL
    SELECT
        concat(sink, '_dead_letters'), '', '', source_partition, uniqExact(source_offset), min(source_offset), max(source_offset)
    FROM {database}.sink_dead_letters
    WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY sink, source_partition
)
WHERE NOT arrayExists(
    d -> d.1 = fault AND d.2 = tenant_id AND d.3 = session_id AND d.4 = ifNull(toInt64(partition), -1) AND d.5 >= rows
        AND d.6 <= ifNull(toInt64(first_offset), -1) AND d.7 >= ifNull(toInt64(last_offset), -1),
    dismissed);

ALTER TABLE {database}_between.v_integrity_between
    MODIFY COMMENT 'v_integrity of transactions that began within a period';
