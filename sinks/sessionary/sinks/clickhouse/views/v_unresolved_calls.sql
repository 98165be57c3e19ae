CREATE OR REPLACE VIEW {database}.v_unresolved_calls AS
SELECT
    entered_at AS time, tenant_id, session_id, run_id, step_id, tool_name, idem_key, args, `try`, queryable, service_id, user_id,
    entered_at AS since, dateDiff('millisecond', since, now64(3, 'UTC')) / 1e3 AS waiting_s
FROM {database}.v_reserved_calls
WHERE state = 'unknown' AND side_effect;

ALTER TABLE {database}.v_unresolved_calls
    MODIFY COMMENT 'each tool call with a side effect and an unknown outcome, which a person must resolve',
    COMMENT COLUMN time 'time at which the outcome became unknown',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the call; empty for a call of the session',
    COMMENT COLUMN step_id 'attempt at a step that made the call',
    COMMENT COLUMN tool_name 'name of the tool',
    COMMENT COLUMN idem_key 'idempotency key of the call',
    COMMENT COLUMN args 'arguments as JSON; null once personal data has expired',
    COMMENT COLUMN `try` 'number of the latest try, from 1',
    COMMENT COLUMN queryable 'true if the tool can be asked for the outcome',
    COMMENT COLUMN service_id 'service that made the call',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN since 'time at which the outcome became unknown',
    COMMENT COLUMN waiting_s 'seconds since that time';
