-- Runs, steps, tool calls and artifacts, from their events and the audit trail. The view has events of the last 90 days
-- (30 for tool calls), and a setting changes the 90 days.
--
-- Each event that was judged and not rejected counts once. A replayed event that filled its gap was applied to its
-- session, and to no run.
CREATE OR REPLACE VIEW {database}.v_run_events AS
SELECT
    appended_at AS time, tenant_id, session_id, run_id,
    if(is_of_run, row_number() OVER (PARTITION BY tenant_id, session_id, run_id, is_of_run ORDER BY source_offset), NULL) AS seq,
    event_id, event_type, subject, state, name, number, idem_key, mode, side_effect, queryable, error_class, error_code,
    progress, processed_count, bytes, artifact_id, sha256, step_id, causation_id, user_id, agent_id, service_id, actor,
    payload_json, occurred_at, personal_expires, source_partition, source_offset, producer_id
FROM
(
    SELECT
        *,
        run_id != '' AND NOT startsWith(event_type, 'session_')
            AND event_type NOT IN ('run_rejected', 'state_updated', 'snapshot_created', 'resources_released',
                'txn_begun', 'txn_committed', 'txn_rolled_back') AS is_of_run
    FROM
    (
        SELECT
            *,
            {is_first_judged} AS is_judged
        FROM {database}.run_events FINAL
    )
    WHERE is_judged
        AND NOT (is_replay AND (tenant_id, session_id, source_partition, source_offset) IN
            (SELECT tenant_id, session_id, source_partition, source_offset FROM {database}.audit WHERE kind = 'gap_filled'))
)
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_run_events
    MODIFY COMMENT 'each accepted event of a run, a reserved tool call or an artifact, with its number in its run',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run that the event names; empty without one',
    COMMENT COLUMN seq 'number of the event among the applied and kept events of its run, in the order of the log, from 1; the last one is the run''s `run_seq`. Null if no run counts the event',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN subject 'run, step, tool_call or artifact, if the event can change its state; else empty',
    COMMENT COLUMN state 'state of the subject after the event; empty without a change',
    COMMENT COLUMN name 'name of the step or tool, type of the task or artifact, or operation of the checkpoint',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN idem_key 'idempotency key of a reserved call; empty for other events',
    COMMENT COLUMN mode 'attached or detached, at the beginning of a run',
    COMMENT COLUMN side_effect 'at the beginning of a call: true if the call has a side effect',
    COMMENT COLUMN queryable 'at the beginning of a call: true if the tool can be asked for the outcome later',
    COMMENT COLUMN error_class 'retryable or fatal, for a failure',
    COMMENT COLUMN error_code 'code of a failure',
    COMMENT COLUMN progress 'progress of the run as reported, 0 to 1',
    COMMENT COLUMN processed_count 'items done, for a checkpoint',
    COMMENT COLUMN bytes 'bytes written, for a checkpoint or chunk; size of a complete artifact',
    COMMENT COLUMN artifact_id 'id of the artifact that the event names',
    COMMENT COLUMN sha256 'hash of the artifact or chunk',
    COMMENT COLUMN step_id 'step that the event names',
    COMMENT COLUMN causation_id 'id of the event that caused this one',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN actor 'the principal that acted, if it was not the agent itself',
    COMMENT COLUMN payload_json 'payload, for events that report the work of a run; empty once personal data has expired',
    COMMENT COLUMN occurred_at 'agent''s clock',
    COMMENT COLUMN personal_expires 'time at which personal columns are blanked; the end of time without personal data',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition',
    COMMENT COLUMN producer_id 'client process that sent the event';
