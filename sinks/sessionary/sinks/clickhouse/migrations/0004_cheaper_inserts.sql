-- What an insert costs is mostly its files: parts are one file for all columns until they are large. Ten parts of a size
-- become one, not five: a row is merged fewer times.

ALTER TABLE {database}.audit MODIFY SETTING min_bytes_for_wide_part = 268435456, merge_selector_base = 10;
ALTER TABLE {database}.history MODIFY SETTING min_bytes_for_wide_part = 268435456, merge_selector_base = 10;
ALTER TABLE {database}.rejected MODIFY SETTING min_bytes_for_wide_part = 268435456, merge_selector_base = 10;
ALTER TABLE {database}.batches MODIFY SETTING min_bytes_for_wide_part = 268435456, merge_selector_base = 10;
ALTER TABLE {database}.sink_dead_letters MODIFY SETTING min_bytes_for_wide_part = 268435456, merge_selector_base = 10;

-- Nearly all rows are the history's, and each is packed again by each merge: lightly on its first day, well from then
-- on. Columns without a codec of their own take the part's.
ALTER TABLE {database}.history
    MODIFY COLUMN event_id REMOVE CODEC,
    MODIFY COLUMN session_id REMOVE CODEC,
    MODIFY COLUMN user_id REMOVE CODEC,
    MODIFY COLUMN agent_id REMOVE CODEC,
    MODIFY COLUMN actor REMOVE CODEC,
    MODIFY COLUMN producer_id REMOVE CODEC,
    MODIFY COLUMN run_id REMOVE CODEC,
    MODIFY COLUMN step_id REMOVE CODEC,
    MODIFY COLUMN causation_id REMOVE CODEC,
    MODIFY COLUMN payload_json REMOVE CODEC,
    MODIFY COLUMN key_bytes REMOVE CODEC,
    MODIFY COLUMN value_bytes REMOVE CODEC,
    MODIFY COLUMN headers REMOVE CODEC;

ALTER TABLE {database}.history MODIFY TTL toDateTime(retain_until),
    toDateTime(appended_at) + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(1));
ALTER TABLE {database}.history COMMENT COLUMN payload_json 'texts are cut behind 1,000 characters';
