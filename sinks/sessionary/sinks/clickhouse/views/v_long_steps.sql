-- Long steps without a checkpoint: such a step is repeated as a whole if the agent dies in it. An interrupted attempt
-- has no end, so its length is unknown.
CREATE OR REPLACE VIEW {database}.v_long_steps AS
SELECT
    s.time AS time, s.tenant_id AS tenant_id, s.session_id AS session_id, s.run_id AS run_id, s.name AS name, s.attempt AS attempt,
    s.state AS state, s.started_at AS started_at, s.finished_at AS finished_at,
    dateDiff('millisecond', s.started_at, ifNull(s.finished_at, now64(3))) / 1e3 AS duration_s
FROM {database}.v_steps AS s
LEFT JOIN
(
    SELECT tenant_id, session_id, run_id, groupArray(time) AS saved_at
    FROM {database}.v_checkpoints
    GROUP BY tenant_id, session_id, run_id
) AS c ON c.tenant_id = s.tenant_id AND c.session_id = s.session_id AND c.run_id = s.run_id
WHERE (s.finished_at IS NOT NULL OR s.state = 'running') AND duration_s > 60
    AND NOT arrayExists(at -> at >= s.started_at AND at < ifNull(s.finished_at, now64(3)), c.saved_at);

ALTER TABLE {database}.v_long_steps
    MODIFY COMMENT 'each attempt at a step of more than 60 seconds without a checkpoint of its run: split it, or save a checkpoint',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the step',
    COMMENT COLUMN name 'name of the step, unique in its run',
    COMMENT COLUMN attempt 'number of the attempt, from 1',
    COMMENT COLUMN state 'running, succeeded, failed, cancelled or skipped',
    COMMENT COLUMN started_at 'time of the beginning',
    COMMENT COLUMN finished_at 'time of the end; null while it runs',
    COMMENT COLUMN duration_s 'seconds from the beginning to the end, or until now';
