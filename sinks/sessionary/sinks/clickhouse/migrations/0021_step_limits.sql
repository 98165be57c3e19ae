-- What the audit trail says of steps that failed by their limit, and of the last checkpoint of a run that changed.

ALTER TABLE {database}.audit
    ADD COLUMN IF NOT EXISTS step_name Nullable(String) COMMENT 'step that changed, for records of the kind step' AFTER to_call_state,
    ADD COLUMN IF NOT EXISTS from_step_state LowCardinality(Nullable(String)) COMMENT 'state of the step before' AFTER step_name,
    ADD COLUMN IF NOT EXISTS to_step_state LowCardinality(Nullable(String)) COMMENT 'state of the step after' AFTER from_step_state,
    ADD COLUMN IF NOT EXISTS checkpoint_id Nullable(String) COMMENT 'last checkpoint of the run, for records of the kind run' AFTER to_step_state,
    COMMENT COLUMN run_id 'run that changed, for records of the kind run; run of the call or step, for those of the kinds tool_call and step';
