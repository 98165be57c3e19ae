"""Sinks carry audit trail, history, rejected events and batches from Kafka into ClickHouse.

Each row is stored exactly once in effect. A sink is a plain Kafka consumer.

    app           run one sink until it is asked to stop
    settings      the settings of the sinks
    runtime/      the running sink: consumer loop, block writer, dead letters
    core/         what to write and when: rows, blocks, the intent protocol; pure
    clickhouse/   connections, migrations, the Native format, inserts
    integrity/    whether ClickHouse has what Kafka had
    metrics       Prometheus metrics and their endpoint
    memory        allocator settings for large blocks
    errors        the errors of a sink, by what it does about them
    block_spans   the spans of blocks that hold records of sampled traces
"""
