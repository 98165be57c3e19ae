"""What measurements run on, and how they observe it from outside.

    stack             the servers: a broker and, if needed, a ClickHouse endpoint
    pipeline          a pipeline: events in, a processor process, its batch records
    sink_processes    the sink processes
    verdict_times     when the verdict on each event was in the log
    consumption       how fast a consumer group commits, and its CPU time
    proc_stats        CPU time and memory of a process, from /proc
    peers             installs the other engines: Kafka Streams and Quix Streams
    java_build        resolves jars and compiles Java programs

Nothing here belongs to a single measurement.
"""
