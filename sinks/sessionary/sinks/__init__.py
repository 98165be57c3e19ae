"""Sinks carry audit trail, history, rejected events and batches from Kafka into ClickHouse.

Each row is stored exactly once in effect. A sink is a plain Kafka consumer.

    app           run one sink until it is asked to stop
    settings      the settings of the sinks
    runtime/      the running sink: consumer loop, block writer, dead letters
    core/         the contents and times of writes: rows, blocks, the intent protocol; pure
    clickhouse/   connections, migrations, the Native format, inserts
    integrity/    whether ClickHouse has what Kafka had
    metrics       Prometheus metrics and their endpoint
    memory        allocator settings for large blocks
    errors        the errors of a sink, by its reaction
    block_spans   the spans of blocks that hold records of sampled traces
"""
