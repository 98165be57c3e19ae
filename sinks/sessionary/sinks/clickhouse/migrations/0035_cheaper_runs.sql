-- Rows of run_events are written, merged and packed as those of history are: one file for all columns until a part is large,
-- sixteen parts of a size become one, and rows are packed lightly on their first day.

ALTER TABLE {database}.run_events MODIFY SETTING min_bytes_for_wide_part = 268435456, merge_selector_base = 16;
ALTER TABLE {database}.run_events
    MODIFY COLUMN session_id CODEC(Default),
    MODIFY COLUMN run_id CODEC(Default),
    MODIFY COLUMN event_id CODEC(Default),
    MODIFY COLUMN idem_key CODEC(Default),
    MODIFY COLUMN artifact_id CODEC(Default),
    MODIFY COLUMN sha256 CODEC(Default),
    MODIFY COLUMN step_id CODEC(Default),
    MODIFY COLUMN causation_id CODEC(Default),
    MODIFY COLUMN user_id CODEC(Default),
    MODIFY COLUMN agent_id CODEC(Default),
    MODIFY COLUMN actor CODEC(Default),
    MODIFY COLUMN producer_id CODEC(Default),
    MODIFY COLUMN payload_json CODEC(Default);

-- By the defaults, and noted so: sessionary db migrate applies a setting of other days again, which it does next. Until then
-- rows are kept for longer, if anything.
ALTER TABLE {database}.run_events MODIFY TTL
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL 30 DAY) DELETE WHERE subject = 'tool_call',
    toDateTime(retain_until) DELETE WHERE subject = 'artifact',
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL 90 DAY) DELETE
        WHERE subject NOT IN ('tool_call', 'artifact'),
    toDateTime(appended_at) + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(1))
    SETTINGS materialize_ttl_after_modify = 0;
INSERT INTO {database}.retention_days (table_name, days) VALUES ('runs', 90);
