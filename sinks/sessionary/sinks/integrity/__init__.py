"""Whether ClickHouse has what Kafka had, and how it gets back what is missing.

The view `v_integrity_between` compares ClickHouse's tables with each other. These modules compare
them with Kafka.

    landed_ends     the last record that each sink has written, looked up in its table
    end_report      a running sink tells ClickHouse which record that is
    repair          records of a time that have no row, read again and inserted
"""
