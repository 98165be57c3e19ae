"""The local stack: a real Kafka broker, the real ClickHouse engine and a supervisor, without Docker and without root.

Nothing in the product depends on this package: production names a Kafka and a ClickHouse by address.

    ports.py            free loopback ports
    process.py          child processes that cannot outlive their parent
    kafka_jars.py       the broker's jars, from Maven Central into jgo's cache
    broker.py           one Kafka node (KRaft) over a folder
    sql.py              pure: what a statement is, and whether this engine may run it
    bodies.py           pure: request bodies (lz4, gzip, zstd)
    engine.py           the ClickHouse engine over a folder
    clickhouse_http.py  ClickHouse's HTTP interface in front of the engine
    clickhouse.py       the endpoint as a role and as a child process
    parts.py            pure: order, restarts and back-off of supervised parts
    supervisor.py       the shell around parts.py
"""
