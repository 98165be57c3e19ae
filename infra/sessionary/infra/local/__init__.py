"""The local stack's servers: real Kafka brokers, the real ClickHouse engine, and a supervisor.

They need neither Docker nor root. Nothing in the product depends on this package: production names
a Kafka and a ClickHouse by address.

    kafka/         one Kafka broker, or a cluster of three, over a folder
    clickhouse/    the ClickHouse engine behind its HTTP interface, over a folder
    schedule       pure: order, restarts and back-off of supervised processes
    supervisor     runs processes by a schedule, and restarts those that end
    process        a child process, and one that serves a port
    ports          free loopback ports
    errors         errors of this package
"""
