"""Whether ClickHouse has what Kafka had, and how it gets back what is missing.

The view `v_integrity_between` compares ClickHouse's tables with each other. These modules compare
them with Kafka.

    landed_ends     what was written last of each partition, as found and as reported
    repair          records of a time that have no row, read again and inserted
"""
