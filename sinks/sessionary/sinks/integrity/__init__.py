"""Whether ClickHouse has all records that Kafka had, and the repair of missing ones.

The view `v_integrity_between` compares ClickHouse's tables with each other. These modules compare
them with Kafka.

    landed_ends     the last written record of each partition, as found and as reported
    repair          records of a time that have no row, read again and inserted
    topic_counts    requests and notices, which no sink reads, against the counts of transactions
"""
