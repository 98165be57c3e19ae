"""From a payload to an acknowledged record in Kafka.

In the order in which an event passes:

    emitter           builds records: identity, sequence number, epoch, bytes
    record_ids        event ids, and records from templates
    spool             policy spool: a file first, then Kafka; replays the events of dead processes
    direct_transport  policies block and drop: librdkafka's queue in memory only
    kafka_producer    the librdkafka producer, its poll thread, the meaning of its errors
    first_records     sends the first record to each partition alone, as brokers require
    tracing_transport  a span for each event, around one of the two transports, if asked for
"""
