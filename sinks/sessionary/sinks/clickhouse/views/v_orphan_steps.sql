-- The beginning of a run is looked up in history, which is kept for longer than the run's own rows.
CREATE OR REPLACE VIEW {database}.v_orphan_steps AS
WITH rejections AS
(
    SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') AS at, reason FROM {database}.rejected
)
SELECT
    appended_at AS time, tenant_id, session_id, run_id, event_type, name, number, step_id, nullIf(idem_key, '') AS idem_key,
    event_id, service_id, is_rejected, source_partition, source_offset
FROM
(
    SELECT *, (source_partition, source_offset, appended_at) IN (SELECT source_partition, source_offset, at FROM rejections) AS is_rejected
    FROM {database}.run_events FINAL
    WHERE subject IN ('step', 'tool_call') AND run_id != ''
)
WHERE if(is_rejected,
    (source_partition, source_offset, appended_at) IN
        (SELECT source_partition, source_offset, at FROM rejections WHERE reason = 'unknown_run'),
    (tenant_id, session_id, run_id) NOT IN
    (
        SELECT tenant_id, session_id, assumeNotNull(run_id) FROM {database}.history
        WHERE event_type IN ('run_queued', 'run_started') AND run_id IS NOT NULL
            AND (source_partition, source_offset, appended_at) NOT IN (SELECT source_partition, source_offset, at FROM rejections)
    ))
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_orphan_steps
    MODIFY COMMENT 'each event of a step or a tool call that names an unknown run',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN name 'name of the step or tool',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN idem_key 'idempotency key of a reserved call',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN is_rejected 'true if the event was rejected, because its run is unknown',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
