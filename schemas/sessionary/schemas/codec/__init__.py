"""Bytes to events and records, and back: `encode_event`, `encode_record` and `Decoder`.

    catalogue          the Avro schemas of today and of every release, with their fingerprints
    mapping            our classes to fastavro's dicts, and back
    codegen            builds a Python function as text
    generated/         readers and writers of known schemas, which the build made
    compiled_helpers   finds generated readers and writers; their helper functions
    formats            schema, header and conversions of each class, by the rules in force
    framing            encoding and decoding: the first bytes of a value name its schema
    value_bounds       which value of an event exceeds its bound, by compiled checks
    record_sizes       how large a record is in Kafka; records cut to their topic's limit
    registry           a schema registry, also asked on other threads
    from_settings      makes a decoder from settings

Compiled functions give up at anything unusual, and fastavro takes over.
"""

from sessionary.schemas.codec.framing import (
    CONFLUENT,
    SINGLE_OBJECT,
    Decoder,
    Event,
    Record,
    SchemaRegistry,
    encode_confluent,
    encode_event,
    encode_position,
    encode_record,
    event_schema_headers,
    read_compiled,
    read_identity,
    record_headers,
    write_generally,
)

__all__ = [
    "CONFLUENT",
    "SINGLE_OBJECT",
    "Decoder",
    "Event",
    "Record",
    "SchemaRegistry",
    "encode_confluent",
    "encode_event",
    "encode_position",
    "encode_record",
    "event_schema_headers",
    "read_compiled",
    "read_identity",
    "record_headers",
    "write_generally",
]
