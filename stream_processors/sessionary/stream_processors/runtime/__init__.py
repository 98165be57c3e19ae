"""Kafka around the core: assignment, fetching, transactions."""
