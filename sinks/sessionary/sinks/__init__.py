"""Sinks: plain Kafka consumers that carry audit trail, history, refusals and batches into ClickHouse, each row once."""
