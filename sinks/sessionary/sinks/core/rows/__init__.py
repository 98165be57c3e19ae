"""Kafka records to rows of ClickHouse's tables; pure."""
