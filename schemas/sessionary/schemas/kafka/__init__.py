"""What all roles need around their clients of Kafka.

    clients               consumers, producers and admin clients: their settings, errors and answers
    log_progress          the ends of logs, and which partitions stand still

No module here knows a role.
"""
