-- Runs, steps, tool calls and artifacts as their events and the audit trail tell them. Events of the last 90 days (of tool
-- calls 30) are there; settings change the former.
--
-- Events that were judged and not rejected, each once. A rejection counts whenever it comes: it is looked up when the view is
-- read. Of an event's deliveries the first one that was judged counts: one that comes after it, applied or rejected, is a
-- duplicate, of which nothing is recorded. The rejections that are listed by name left the number free for a later delivery,
-- as do those of another session: their record only says that it is of this one. An event that was sent again and filled a
-- gap was applied to its session, and to no run.
CREATE OR REPLACE VIEW {database}.v_run_events AS
SELECT
    appended_at AS time, tenant_id, session_id, run_id,
    if(is_of_run, row_number() OVER (PARTITION BY tenant_id, session_id, run_id, is_of_run ORDER BY source_offset), NULL) AS seq,
    event_id, event_type, subject, state, name, number, idem_key, mode, side_effect, queryable, error_class, error_code,
    progress, processed_count, bytes, artifact_id, sha256, step_id, causation_id, user_id, agent_id, service_id, actor,
    payload_json, occurred_at, personal_expires, source_partition, source_offset
FROM
(
    SELECT
        *,
        run_id != '' AND NOT startsWith(event_type, 'session_')
            AND event_type NOT IN ('run_rejected', 'state_updated', 'snapshot_created', 'resources_released') AS is_of_run
    FROM
    (
        SELECT
            *,
            (source_partition, source_offset, appended_at) NOT IN
                (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected) AS is_kept,
            countIf(is_kept OR (source_partition, source_offset, appended_at, tenant_id, session_id) IN
            (
                SELECT
                    source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC'), toString(tenant_id),
                    toString(session_id)
                FROM {database}.rejected
                WHERE tenant_id IS NOT NULL AND session_id IS NOT NULL AND reason NOT IN ('unknown_session',
                    'wrong_partition', 'late_filler', 'producer_conflict', 'too_many_producers', 'session_archived')
            ))
                OVER (PARTITION BY tenant_id, session_id, producer_id, producer_seq ORDER BY source_offset
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS deliveries_before
        FROM {database}.run_events FINAL
    )
    WHERE is_kept AND deliveries_before = 0
        AND NOT (is_replay AND (tenant_id, session_id, source_partition, source_offset) IN
            (SELECT tenant_id, session_id, source_partition, source_offset FROM {database}.audit WHERE kind = 'gap_filled'))
)
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_run_events
    MODIFY COMMENT 'each event of a run, a reserved tool call or an artifact that was not rejected, with its number in its run',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names; empty if it names none',
    COMMENT COLUMN seq 'place of the event among those of its run that were applied and are kept, in the order of the log, from 1; the last one is the run''s `run_seq`. Null if no run counts it',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN subject 'run, step, tool_call or artifact, if the event can change the state of one; else empty',
    COMMENT COLUMN state 'state that the event leaves its subject in; empty if it changes none',
    COMMENT COLUMN name 'name of the step or tool, type of the task or artifact, or operation of the checkpoint',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN idem_key 'idempotency key of a reserved call; empty for other events',
    COMMENT COLUMN mode 'of the beginning of a run: attached or detached',
    COMMENT COLUMN side_effect 'of the beginning of a call: whether it changes something outside',
    COMMENT COLUMN queryable 'of the beginning of a call: whether the tool can be asked later what came of it',
    COMMENT COLUMN error_class 'of a failure: retryable or fatal',
    COMMENT COLUMN error_code 'of a failure: its code',
    COMMENT COLUMN progress 'progress of the run as reported, 0 to 1',
    COMMENT COLUMN processed_count 'of a checkpoint: items done',
    COMMENT COLUMN bytes 'of a checkpoint or chunk: bytes written; of a complete artifact: its size',
    COMMENT COLUMN artifact_id 'id of the artifact that the event names',
    COMMENT COLUMN sha256 'hash of the artifact or chunk',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN causation_id 'event that caused it',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN actor 'who acted, if it was not the agent itself',
    COMMENT COLUMN payload_json 'payload, of events that say what a run did; empty once personal data has expired',
    COMMENT COLUMN occurred_at 'agent''s clock',
    COMMENT COLUMN personal_expires 'when personal columns are blanked; the end of time if there are none',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
