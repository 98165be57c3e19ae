"""The local Kafka broker."""
