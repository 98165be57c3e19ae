-- Offsets of a topic that was deleted and made again begin at 0: its id is part of a row's identity, so that the new
-- topic's rows replace none of the former one's. Rows of before this migration have none.

ALTER TABLE {database}.audit
    ADD COLUMN IF NOT EXISTS topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic' AFTER src_topic,
    MODIFY ORDER BY (tenant_id, session_id, audit_seq, source_partition, source_offset, source_n, topic_id);
ALTER TABLE {database}.history
    ADD COLUMN IF NOT EXISTS topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic' AFTER src_topic,
    MODIFY ORDER BY (tenant_id, session_id, source_partition, source_offset, topic_id);
ALTER TABLE {database}.rejected
    ADD COLUMN IF NOT EXISTS topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic' AFTER src_topic,
    MODIFY ORDER BY (source_topic, source_partition, source_offset, topic_id);
ALTER TABLE {database}.batches
    ADD COLUMN IF NOT EXISTS topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic' AFTER src_topic,
    MODIFY ORDER BY (partition, number, first_offset, last_offset, topic_id);
ALTER TABLE {database}.batch_acknowledgements
    ADD COLUMN IF NOT EXISTS topic_id LowCardinality(String) COMMENT 'Kafka''s id of src_topic' AFTER src_topic,
    MODIFY ORDER BY (partition, number, topic_id);
ALTER TABLE {database}.sink_dead_letters
    ADD COLUMN IF NOT EXISTS topic_id LowCardinality(String) COMMENT 'Kafka''s id of source_topic' AFTER source_topic,
    MODIFY ORDER BY (sink, source_topic, source_partition, source_offset, topic_id);
