-- The next transition that changes the state is a pause's end. An operator's pause of a session in Paused changes none.
CREATE OR REPLACE VIEW {database}.v_pauses AS
SELECT
    paused_at AS time, tenant_id, session_id, audit_seq, owner_service AS service_id, agent_id, reason_code, reason,
    actor, snapshot_id, version, paused_at, ended.1 AS ended_at, ended.2 AS ended_state,
    ended.3 AS ended_reason_code, ended.4 AS ended_reason, ended.5 AS ended_by,
    dateDiff('millisecond', paused_at, ifNull(ended_at, now64(6, 'UTC'))) / 1e3 AS length_s
FROM
(
    SELECT
        tenant_id, session_id, audit_seq, transition, owner_service, agent_id, toString(reason_code) AS reason_code, reason,
        actor, snapshot_id, version, ifNull(fired_at, appended_at) AS paused_at,
        argMinIf(
            (toNullable(ifNull(fired_at, appended_at)), toString(to_state), toString(reason_code), reason, actor),
            audit_seq, from_state != to_state
        ) OVER w AS ended
    FROM {database}.audit FINAL
    WHERE kind = 'transition'
    WINDOW w AS (PARTITION BY tenant_id, session_id ORDER BY audit_seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
WHERE transition = 'T04'
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_pauses
    MODIFY COMMENT 'each pause of a session, with its snapshot, its requester and its end',
    COMMENT COLUMN time 'the same as paused_at',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN reason_code 'manual, review or migration',
    COMMENT COLUMN reason 'reason in words, or the question; empty once personal data has expired',
    COMMENT COLUMN actor 'principal that requested the pause, if it was not the agent itself',
    COMMENT COLUMN snapshot_id 'snapshot of the state at the pause; null without one',
    COMMENT COLUMN version 'version of the session''s state',
    COMMENT COLUMN paused_at 'log time of the pause',
    COMMENT COLUMN ended_at 'time of the end; null while open',
    COMMENT COLUMN ended_state 'state after the pause: Active or Terminated; empty while open',
    COMMENT COLUMN ended_reason_code 'resumed, approved, denied, expired, cancelled or timeout_cleanup; empty while open',
    COMMENT COLUMN ended_reason 'reason of the end in words; empty once personal data has expired',
    COMMENT COLUMN ended_by 'principal that ended the pause, if it was not the agent itself',
    COMMENT COLUMN length_s 'seconds until the end, or until now';
