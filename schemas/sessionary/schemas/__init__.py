"""The contract that all roles share. It imports no other package of ours, and opens no
connection unless it is asked to.

    types         types that several schemas share: small records, the envelope
    enums         the enums themselves
    events/       the payload of each event, which clients send
    records       the records that processors write
    codec/        events and records to bytes, and back
    headers       record headers: CloudEvents and trace context
    signatures    signatures of the records that only server roles may make
    fast_replace  replaces fields of a record at a third of the cost
    ids           ids, record keys and the partitioner
    topics        the topics as data: names, size limits and retention
    snapshots     snapshots as deltas, compressed, and in chains
    limits        a session's limits: defaults and recommended ranges
    retention     how long records are kept, by the classes of their data
    settings/     settings from the environment, and the Kafka clients' shared configuration
    tls           the context of clients that ask over HTTPS
    errors        the errors that every role shares
    rules         the versions of the rules by which events are judged
    http/         requests to the control API, of clients and commands
    kafka/        helpers for the Kafka clients of all roles
    telemetry/    logs and traces of the server roles

The Avro schemas are in `avro/`: `common`, `events`, `records`, and those of every release in
`released`.
"""
