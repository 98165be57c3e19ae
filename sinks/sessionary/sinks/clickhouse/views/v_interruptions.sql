-- A run was interrupted if it is resumed, or if another process begins to work on it. The work since its last checkpoint,
-- or since it began or was resumed, may be done again.
CREATE OR REPLACE VIEW {database}.v_interruptions AS
SELECT
    time, tenant_id, session_id, run_id, resumed_by, checkpoints,
    if(lost_from = checkpoint_at AND checkpoints > 0, last_checkpoint, '') AS checkpoint_id,
    if(checkpoints > 0, checkpoint_at, NULL) AS checkpoint_at, interrupted_at,
    greatest(dateDiff('millisecond', lost_from, interrupted_at), 0) / 1e3 AS lost_s, lost_events, source_partition, source_offset
FROM
(
    SELECT
        *, greatest(checkpoint_at, began_at) AS lost_from,
        events_before - greatest(events_at_checkpoint, events_at_begin) AS lost_events
    FROM
    (
        SELECT
            *,
            max(checkpoint_number) OVER former AS events_at_checkpoint, max(begin_number) OVER former AS events_at_begin
        FROM
        (
            SELECT
                time, tenant_id, session_id, run_id, event_type, producer_id AS resumed_by, source_partition, source_offset,
                event_type = 'run_resumed' OR (event_type = 'run_running' AND former_producer NOT IN ('', producer_id)) AS is_resumption,
                argMaxIf(producer_id, source_offset, event_type IN ('run_started', 'run_resumed', 'run_running')) OVER before AS former_producer,
                countIf(event_type = 'checkpoint_saved') OVER before AS checkpoints,
                maxIf(time, event_type = 'checkpoint_saved') OVER before AS checkpoint_at,
                argMaxIf(JSONExtractString(payload_json, 'checkpoint_id'), source_offset, event_type = 'checkpoint_saved') OVER before
                    AS last_checkpoint,
                maxIf(time, event_type IN ('run_started', 'run_resumed')) OVER before AS began_at,
                max(time) OVER before AS interrupted_at, count() OVER before AS events_before,
                if(event_type = 'checkpoint_saved', events_before + 1, 0) AS checkpoint_number,
                if(event_type IN ('run_started', 'run_resumed'), events_before + 1, 0) AS begin_number
            FROM {database}.v_run_events
            WHERE seq IS NOT NULL
            WINDOW before AS
                (PARTITION BY tenant_id, session_id, run_id ORDER BY source_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        )
        WINDOW former AS
            (PARTITION BY tenant_id, session_id, run_id ORDER BY source_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    )
)
WHERE is_resumption;

ALTER TABLE {database}.v_interruptions
    MODIFY COMMENT 'each interruption of a run that was resumed, with the work that may be done again',
    COMMENT COLUMN time 'log time at which the run was resumed',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'id of the run',
    COMMENT COLUMN resumed_by 'client process that resumed the run',
    COMMENT COLUMN checkpoints 'checkpoints of the run before the interruption',
    COMMENT COLUMN checkpoint_id 'checkpoint since which work is lost; empty if that is the begin, or personal data has expired',
    COMMENT COLUMN checkpoint_at 'log time of the last checkpoint; null without one',
    COMMENT COLUMN interrupted_at 'log time of the last event before the interruption',
    COMMENT COLUMN lost_s 'seconds of work that may be done again: from checkpoint, begin or resumption to the interruption',
    COMMENT COLUMN lost_events 'events of that work',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
