"""Helpers for the Kafka clients of all roles.

    clients               consumers, producers and admin clients: their settings, errors and answers
    log_progress          the ends of logs, and which partitions stand still

No module here knows a role.
"""
