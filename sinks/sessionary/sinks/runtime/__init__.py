"""The running sink: Kafka records in, blocks out, offsets committed in between.

One thread per sink does everything but keep the group membership.

    ports                   the loop's interfaces to Kafka and ClickHouse
    kafka_client            the Kafka consumer's configuration; its messages as records
    consumer                the loop of one sink
    blocked_partitions      partitions that wait while the others continue
    log_watch               the ends of logs, and reports of positions; the host's clock
    group_offsets           the group's offsets: read and committed; the meaning of their errors
    plan_writer             the blocks of plans, with the commits around each; shared blocks
    block_writer            one block from records to stored rows
    hung_calls              ends the process if a call never returns
"""
