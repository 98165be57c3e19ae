-- Nearly all rows are here, and each merge packs its rows again: lightly on their first day, well from then on. Columns
-- without a codec take the part's. Sixteen parts of a size become one: a row is merged fewer times.
--
-- Rows of the class default, and ticks and heartbeats (idle), are kept as long as settings say: `sessionary db migrate`
-- changes the TTL to them. A row of the class idle may hold personal data: then its retain_until comes first.
CREATE TABLE IF NOT EXISTS {database}.history
(
    source_partition UInt32 COMMENT 'partition of the record in the events topic',
    source_offset UInt64 CODEC(Delta, ZSTD(1)) COMMENT 'offset of the record in the events topic',
    appended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'the log''s time of the record',
    decode_error LowCardinality(String) COMMENT 'why the bytes are no event; empty if they are one',
    event_id String COMMENT 'id of the event, given by its client',
    event_type LowCardinality(String) COMMENT 'tick for ticks, empty if undecodable',
    schema_version Int32 COMMENT 'version of the event''s schema',
    tenant_id LowCardinality(String) COMMENT 'tenant of the session',
    session_id String COMMENT 'id of the session',
    user_id Nullable(String) TTL personal_expires COMMENT 'user for whom the agent works; null once personal data has expired',
    agent_id String COMMENT 'agent that the event names',
    agent_role LowCardinality(Nullable(String)) COMMENT 'role of that agent in the session',
    service_id LowCardinality(String) COMMENT 'service that sent the event',
    actor Nullable(String) COMMENT 'who acted, if it was not the agent itself',
    epoch Int64 COMMENT 'number of the session''s owner: each one that takes over raises it',
    producer_id String COMMENT 'client that sent the event',
    producer_seq Int64 COMMENT 'the event''s number among those of its producer, from 1 without gaps',
    run_id Nullable(String) COMMENT 'run that the event belongs to',
    run_seq Nullable(Int64) COMMENT 'the event''s number within its run',
    step_id Nullable(String) COMMENT 'step that the event belongs to',
    causation_id Nullable(String) COMMENT 'id of the event that caused this one',
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'agent''s clock; the nearest time of the years 1900 to 2299',
    occurred_at_text String COMMENT 'agent''s clock as it was reported, if that is before 1900 or after 2299; else empty',
    data_classes Array(LowCardinality(String)) COMMENT 'classes of the data in it, by which retention follows',
    context_bytes Nullable(Int64) COMMENT 'size of the agent''s context in bytes, as reported',
    server_version LowCardinality(Nullable(String)) COMMENT 'version of the agent''s server, as reported',
    protocol_version LowCardinality(Nullable(String)) COMMENT 'version of its protocol, as reported',
    payload_json String TTL personal_expires COMMENT 'the event''s payload; texts are cut after 1,000 characters; empty once personal data has expired',
    -- Figures stay true as rows grow old: what they need of a payload has a column, without a TTL. The server makes it of
    -- payload_json when a row is inserted.
    model LowCardinality(Nullable(String))
        DEFAULT if(event_type = 'usage_recorded', JSONExtract(payload_json, 'model', 'Nullable(String)'), NULL)
        COMMENT 'model that was called',
    tokens_in Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'tokens_in'), 0)
        COMMENT 'tokens of the input',
    tokens_out Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'tokens_out'), 0)
        COMMENT 'tokens of the output',
    model_cost_usd_nanos Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'model_cost_usd_nanos'), 0)
        COMMENT 'cost of the model in billionths of a US dollar',
    tool_cost_usd_nanos Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'tool_cost_usd_nanos'), 0)
        COMMENT 'cost of tools in billionths of a US dollar',
    is_timeout_retry Bool
        DEFAULT if(event_type = 'usage_recorded', JSONExtractBool(payload_json, 'is_timeout_retry'), false)
        COMMENT 'whether the call repeats one that timed out',
    cache_read_input_tokens Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'cache_read_input_tokens'), 0)
        COMMENT 'tokens of the input that the provider had in its cache; they are in tokens_in too',
    cache_write_input_tokens Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'cache_write_input_tokens'), 0)
        COMMENT 'tokens of the input that the provider wrote into its cache; they are in tokens_in too',
    reasoning_output_tokens Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'reasoning_output_tokens'), 0)
        COMMENT 'tokens of the output that were spent on reasoning; they are in tokens_out too',
    retries Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'retries'), 0)
        COMMENT 'requests that were repeated before the call had its answer',
    execution_time_ms Nullable(Int64)
        DEFAULT if(event_type IN ('tool_call_succeeded', 'tool_call_failed', 'step_succeeded'),
            JSONExtract(payload_json, 'execution_time_ms', 'Nullable(Int64)'), NULL)
        COMMENT 'reported time of a tool call or step in milliseconds',
    time_to_first_token_ms Nullable(Int64)
        DEFAULT if(event_type = 'usage_recorded',
            JSONExtract(payload_json, 'time_to_first_token_ms', 'Nullable(Int64)'), NULL)
        COMMENT 'from the request to the first token of the answer, in milliseconds',
    state_bytes Nullable(UInt64)
        DEFAULT multiIf(event_type IN ('state_updated', 'txn_committed'), length(JSONExtractString(payload_json, 'state_json')),
            event_type IN ('session_created', 'snapshot_created')
            AND JSONExtractString(payload_json, 'snapshot', 'encoding') = 'full'
            AND JSONExtractString(payload_json, 'snapshot', 'compression') = 'none',
            length(JSONExtractString(payload_json, 'snapshot', 'state_json')), NULL)
        COMMENT 'size of the session''s content in bytes, of events that carry it whole',
    state_version Nullable(Int64)
        DEFAULT if(event_type = 'state_updated', JSONExtract(payload_json, 'new_version', 'Nullable(Int64)'), NULL)
        COMMENT 'of an update of the state: the version that it makes',
    external_id Nullable(String)
        DEFAULT if(event_type = 'session_created', JSONExtract(payload_json, 'external_id', 'Nullable(String)'), NULL)
        TTL personal_expires
        COMMENT 'of a session''s first event: the text that was given as its id; null once personal data has expired',
    parent_session_id Nullable(String)
        DEFAULT if(event_type = 'session_created', JSONExtract(payload_json, 'parent_session_id', 'Nullable(String)'), NULL)
        COMMENT 'of a session''s first event: the session that it belongs to or continues',
    restored_from_snapshot_id Nullable(String)
        DEFAULT if(event_type = 'session_created', JSONExtract(payload_json, 'restored_from_snapshot_id', 'Nullable(String)'), NULL)
        COMMENT 'of a session''s first event: the snapshot whose content it started with',
    try_number Int64
        DEFAULT if(event_type = 'tool_call_started', JSONExtractInt(payload_json, 'try_number'), 0)
        COMMENT 'of the beginning of a tool call: the number of its try',
    is_cancelled Bool
        DEFAULT if(event_type = 'tool_call_failed', JSONExtractString(payload_json, 'error', 'code') = 'cancelled', false)
        COMMENT 'of the failure of a tool call: whether it was cancelled',
    key_bytes Nullable(String) COMMENT 'the record''s key',
    value_bytes Nullable(String) TTL personal_expires COMMENT 'the record as Kafka delivered it; empty once personal data has expired',
    headers Array(Tuple(name String, value String)) TTL personal_expires
        COMMENT 'of an event: what they say beyond the envelope, all of them if they contradict it; empty once personal data has expired',
    retention_class LowCardinality(String) COMMENT 'the law''s tag with the longest period, default, or idle for ticks and heartbeats',
    retain_until DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when the row may be deleted',
    personal_until Nullable(DateTime64(6, 'UTC')) COMMENT 'when personal columns are emptied; null without personal data',
    personal_expires DateTime('UTC') CODEC(Delta, ZSTD(1)) COMMENT 'personal_until, or the end of time if that is null',
    src_topic LowCardinality(String) COMMENT 'topic that the row was read from',
    topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic',
    src_partition UInt32 ALIAS source_partition COMMENT 'the same as source_partition',
    src_offset UInt64 ALIAS source_offset COMMENT 'the same as source_offset',
    value_size UInt32 COMMENT 'bytes of the record''s key and value in Kafka',
    landed_at DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)) COMMENT 'when the row was inserted, by ClickHouse''s clock',
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_user user_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_event event_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time appended_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY (retention_class, toYYYYMM(appended_at))
PRIMARY KEY (tenant_id, session_id, source_partition, source_offset)
ORDER BY (tenant_id, session_id, source_partition, source_offset, topic_id)
TTL
    toDateTime(retain_until) DELETE WHERE retention_class NOT IN ('default', 'idle'),
    toDateTime(appended_at) + INTERVAL 365 DAY DELETE WHERE retention_class = 'default',
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL 30 DAY) DELETE WHERE retention_class = 'idle',
    toDateTime(appended_at) + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(1))
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 10000,
    replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800,
    min_bytes_for_wide_part = 268435456, merge_selector_base = 16
COMMENT 'one row per record of the events topic, with those of processors (tick, rules_activation) and unreadable bytes';
