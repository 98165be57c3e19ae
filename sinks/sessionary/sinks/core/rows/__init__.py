"""Kafka records to rows of ClickHouse's tables, one module per table; pure.

A row depends on its record's bytes, position and log time alone: a replay of the same records
must give the same block.

    raw_record      a Kafka record before it becomes a row
    shared          types, source columns and decoding that the row builders share
    audit           rows of `audit`
    history         rows of `history`: every record of the events topic, readable or not
    figures         the columns of `history` that keep what figures need of a payload
    event_columns   columns of `history` made of events' bytes at once, in a native build
    rejected        rows of `rejected`: events that the processor refused
    batches         rows of `batches`: the processor's transactions
    dead_letters    letter and row of a record that a sink cannot store
"""
