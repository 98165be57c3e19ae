-- Audit records of the kind run: what a clock or the end of a session did to a run.
ALTER TABLE {database}.audit
    ADD COLUMN IF NOT EXISTS run_id Nullable(String) COMMENT 'run that a record of the kind run is about'
        AFTER personal_until,
    ADD COLUMN IF NOT EXISTS from_run_state LowCardinality(Nullable(String)) COMMENT 'the run''s state before' AFTER run_id,
    ADD COLUMN IF NOT EXISTS to_run_state LowCardinality(Nullable(String)) COMMENT 'the run''s state after'
        AFTER from_run_state;
