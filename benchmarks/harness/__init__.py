"""Servers and processes of the measurements, and observations of them from outside.

    stack             the servers: a broker and, if needed, a ClickHouse endpoint
    pipeline          a pipeline: events in, a processor process, its batch records
    sink_processes    the sink processes
    verdict_times     the time at which the verdict on each event was in the log
    consumption       the rate at which a consumer group commits, and its CPU time
    proc_stats        CPU time and memory of a process, from /proc
    peers             installs the other engines: Kafka Streams and Quix Streams
    java_build        resolves jars and compiles Java programs

Nothing here belongs to a single measurement.
"""
