-- The merged state with its name in each source machine: the governance text, and machines A and B of the second
-- source.
CREATE OR REPLACE VIEW {database}.v_state_names AS
SELECT
    time, tenant_id, session_id, state,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['(before Active)', 'Active', 'Paused', 'Timeout', 'Active', 'Terminated', 'Archived'], '') AS name_000,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Initialising', 'Running', 'Paused', 'Paused', 'Running', 'Closed', 'Closed'], '') AS name_001_a,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Idle', 'Active', 'Paused', 'Paused', 'Error', 'Idle', 'Idle'], '') AS name_001_b
FROM
(
    SELECT max(appended_at) AS time, tenant_id, session_id, argMax(toString(to_state), audit_seq) AS state
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND audit_seq > 0
    GROUP BY tenant_id, session_id
)
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_state_names
    MODIFY COMMENT 'each session''s state, and its names in the two source state machines',
    COMMENT COLUMN time 'time of the latest transition',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN state 'state of the session',
    COMMENT COLUMN name_000 'name in the governance text',
    COMMENT COLUMN name_001_a 'name in machine A of the second source',
    COMMENT COLUMN name_001_b 'name in machine B of the second source';
