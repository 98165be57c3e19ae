"""What all roles need around their clients of Kafka.

    clients               discards a stuck client
    admin_connection      an admin client that is renewed after a failure
    log_ends              asks for the ends of a topic's partitions
    topic_ids             asks for a topic's id
    log_progress          tells which partitions and consumers stand still
    unreadable_batches    tells batches that stay in a log although they cannot be read

No module here knows a role.
"""
