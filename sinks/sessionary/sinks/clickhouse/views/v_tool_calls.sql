CREATE OR REPLACE VIEW {database}.v_tool_calls AS
SELECT * FROM {database}_between.v_tool_calls_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_tool_calls
    MODIFY COMMENT 'one row per tool call, reserved or not: tool, state, duration, tries, error',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the call; empty for a call of the session',
    COMMENT COLUMN step_id 'attempt at a step that made the call',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that made the call',
    COMMENT COLUMN service_id 'service that made the call',
    COMMENT COLUMN tool_name 'name of the tool',
    COMMENT COLUMN tool_call_id 'id of the call in its events',
    COMMENT COLUMN idem_key 'idempotency key of a reserved call; empty for others',
    COMMENT COLUMN is_reserved 'true for a call of @tool, which v_reserved_calls has with arguments and result',
    COMMENT COLUMN state 'running, succeeded, failed, cancelled or unknown',
    COMMENT COLUMN `try` 'number of the latest try, from 1',
    COMMENT COLUMN failed_tries 'number of its tries that failed',
    COMMENT COLUMN duration_s 'seconds of the last try that ended: as reported, or from its beginning by the agent''s clock; null if neither is known',
    COMMENT COLUMN error_class 'retryable or fatal, for a failed call',
    COMMENT COLUMN error_code 'code of the error of a failed call',
    COMMENT COLUMN error 'error of a failed call, in words',
    COMMENT COLUMN started_at 'log time of the first try''s beginning; null if it was not reported',
    COMMENT COLUMN ended_at 'log time of the outcome; null while the call runs';
