"""Bytes to events and records, and back."""

from sessionary.schemas.codec.framing import (
    CONFLUENT,
    SINGLE_OBJECT,
    Decoder,
    Event,
    Record,
    SchemaRegistry,
    encode_confluent,
    encode_event,
    encode_record,
    read_compiled,
    record_header,
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
    "encode_record",
    "read_compiled",
    "record_header",
    "write_generally",
]
