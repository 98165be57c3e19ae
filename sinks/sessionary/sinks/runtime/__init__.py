"""Kafka records in, batches out."""
