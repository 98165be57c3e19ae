CREATE OR REPLACE VIEW {database}_between.v_transition_latency_between AS
SELECT
    a.time AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.audit_seq AS audit_seq,
    a.transition AS transition, a.from_state AS from_state, a.to_state AS to_state, a.service_id AS service_id,
    a.timer AS timer, a.began_at AS began_at, b.acknowledged_at AS acknowledged_at,
    dateDiff('microsecond', a.began_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT
        appended_at AS time, tenant_id, session_id, audit_seq, transition, from_state, to_state,
        owner_service AS service_id, source_partition, batch_number, due_at IS NOT NULL AS timer,
        ifNull(due_at, appended_at) AS began_at
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
) AS a
INNER JOIN {database}_between.v_acknowledgements_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS b
    ON b.partition = a.source_partition AND b.number = a.batch_number
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_transition_latency_between
    MODIFY COMMENT 'v_transition_latency of a time';
