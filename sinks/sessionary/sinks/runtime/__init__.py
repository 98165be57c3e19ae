"""The running sink: Kafka records in, blocks out, offsets committed in between.

One thread per sink does everything but keep the group membership.

    ports                   what the loop needs of Kafka and of ClickHouse
    kafka_client            the Kafka consumer's configuration; its messages as records
    consumer                the loop of one sink
    blocked_partitions      partitions that wait while the others go on
    log_watch               how far logs go on, and reports of positions; the host's clock
    group_offsets           the group's offsets: read and committed, and what their errors mean
    plan_writer             the blocks of plans, with the commits around each; shared blocks
    block_writer            one block from records to stored rows
    hung_calls              ends the process if a call never returns
"""
