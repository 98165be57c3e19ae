-- Rules and programs that know other states than these find theirs here.
CREATE OR REPLACE VIEW {database}.v_state_names AS
SELECT
    time, tenant_id, session_id, state,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['(before Active)', 'Active', 'Paused', 'Timeout', 'Active', 'Terminated', 'Archived'], '') AS governance_state,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Initialising', 'Running', 'Paused', 'Paused', 'Running', 'Closed', 'Closed'], '') AS process_state,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Idle', 'Active', 'Paused', 'Paused', 'Error', 'Idle', 'Idle'], '') AS activity_state
FROM
(
    SELECT max(appended_at) AS time, tenant_id, session_id, argMax(toString(to_state), audit_seq) AS state
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND audit_seq > 0
    GROUP BY tenant_id, session_id
)
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_state_names
    MODIFY COMMENT 'each session''s state, and its names in three coarser lists of states: governance, process, activity',
    COMMENT COLUMN time 'time of the latest transition',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN state 'state of the session',
    COMMENT COLUMN governance_state 'state of the governed life: Active, Paused, Timeout, Terminated, Archived; (before Active) at first',
    COMMENT COLUMN process_state 'state of the agent''s process: Initialising, Running, Paused or Closed',
    COMMENT COLUMN activity_state 'state of the work: Idle, Active, Paused or Error';
