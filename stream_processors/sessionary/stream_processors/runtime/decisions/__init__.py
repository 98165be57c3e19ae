"""What is decided about halted partitions, mostly by operators, and how an owner carries it out.

    pending_decision    a decision from the opening of its partition until it is committed
    skipped_records     reads the records that are skipped
    truncated_log       fills a log that was cut, and finds what has the offsets of folded records
    broker_time         asks the broker for the time that a clock is set to

Each decision leaves an audit record in the transaction that carries it out.
"""
