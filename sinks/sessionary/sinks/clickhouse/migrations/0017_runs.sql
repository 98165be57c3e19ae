-- What the audit trail says of runs: what a clock or a session did to one.

ALTER TABLE {database}.audit
    ADD COLUMN IF NOT EXISTS run_id Nullable(String) COMMENT 'run that changed, for records of the kind run' AFTER personal_until,
    ADD COLUMN IF NOT EXISTS from_run_state LowCardinality(Nullable(String)) COMMENT 'state of the run before' AFTER run_id,
    ADD COLUMN IF NOT EXISTS to_run_state LowCardinality(Nullable(String)) COMMENT 'state of the run after' AFTER from_run_state,
    COMMENT COLUMN kind 'transition, refusal, gap, gap_filled, release, limit, take_over, run or decision';
