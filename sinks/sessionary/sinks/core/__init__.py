"""The contents and times of a sink's writes, without clock, I/O or logging; pure.

It imports neither Kafka's nor ClickHouse's client.

    sink_kinds      the four sinks as data: topic, table, row builder
    intent          when a partition's records become a block, and which offsets are committed
    block_due       when a block is due: idle records may wait
    rows/           Kafka records to rows, one module per table
    outcomes        the outcome of a session by the reason code of its end
    payload_json    an event's payload as JSON
"""
