-- Runs, steps and calls whose personal data has expired are excluded: their missing values may have expired.
CREATE OR REPLACE VIEW {database}.v_run_faults AS
SELECT 'run_without_owner' AS fault, tenant_id, count() AS rows
FROM {database}.v_run_events
WHERE event_type IN ('run_queued', 'run_started') AND personal_expires > now()
    AND (run_id = '' OR tenant_id = '' OR ifNull(user_id, '') = '')
GROUP BY tenant_id
UNION ALL
SELECT 'step_without_input_or_output', tenant_id, count()
FROM {database}.v_steps
WHERE state = 'succeeded' AND is_input_known AND (input IS NULL OR output IS NULL)
GROUP BY tenant_id
UNION ALL
SELECT 'call_without_key', tenant_id, count()
FROM {database}.v_run_events
WHERE event_type = 'tool_call_started' AND side_effect AND idem_key = ''
GROUP BY tenant_id
UNION ALL
SELECT 'key_with_two_effects', tenant_id, count()
FROM {database}.v_reserved_calls
WHERE side_effect AND effects > 1
GROUP BY tenant_id
UNION ALL
SELECT 'failure_without_class', tenant_id, count()
FROM {database}.v_run_events
WHERE state = 'failed' AND event_type != 'tool_call_resolved' AND error_class NOT IN ('retryable', 'fatal')
GROUP BY tenant_id
UNION ALL
SELECT 'too_many_attempts', tenant_id, count()
FROM {database}.v_run_events
WHERE event_type IN ('step_started', 'tool_call_started') AND number > 6
GROUP BY tenant_id;

ALTER TABLE {database}.v_run_faults
    MODIFY COMMENT 'faults of runs, counted by tenant; empty without faults',
    COMMENT COLUMN fault 'kind of the fault: run_without_owner, step_without_input_or_output, call_without_key, key_with_two_effects, failure_without_class or too_many_attempts (more than six)',
    COMMENT COLUMN tenant_id 'tenant',
    COMMENT COLUMN rows 'number of faults';
