"""Kafka records to rows of ClickHouse's tables, one module per table; pure.

A row depends on its record's bytes, position and log time alone: a replay of the same records
must give the same block.

    shared          the common parts: the raw record, its columns, times
    history         rows of `history`: every record of the events topic, readable or not
    event_columns   columns of `history` made of events' bytes at once, in a native build
    outputs         rows of audit, batches, rejected, and dead letters
"""
