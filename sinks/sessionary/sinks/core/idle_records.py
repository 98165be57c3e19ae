"""Records that say nothing but that time passes or that an agent lives: idle records; pure.

    events     ticks, heartbeats
    batches    transactions of ticks alone, acknowledgements

A row of one of them may come a minute later than its record. They are known by their first ten
bytes, so those in a registry's framing count as others.
"""

from collections.abc import Callable, Mapping
from typing import Final

from sessionary.schemas.codec import Decoder, event_schema_headers, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import Heartbeat
from sessionary.schemas.records import BatchAcknowledged, BatchRecord, Tick
from sessionary.schemas.topics import SinkTopic

IsIdle = Callable[[bytes | None], bool]
"""Tells by a record's value whether the record is idle."""

_HEADER_BYTES: Final = 10
_IDLE_EVENTS: Final = record_headers(Tick) | event_schema_headers(Heartbeat)
_ACKNOWLEDGEMENTS: Final = record_headers(BatchAcknowledged)
_BATCHES: Final = record_headers(BatchRecord)
_DECODER: Final = Decoder()


def _is_idle_event(value: bytes | None) -> bool:
    return value is not None and value[:_HEADER_BYTES] in _IDLE_EVENTS


def _is_idle_batch(value: bytes | None) -> bool:
    header = b"" if value is None else value[:_HEADER_BYTES]
    if header in _ACKNOWLEDGEMENTS:
        return True
    if header not in _BATCHES:
        return False
    try:
        batch = _DECODER.decode_record(value)
    except DecodeError:
        return False
    assert isinstance(batch, BatchRecord)
    return not (
        batch.applied or batch.duplicate or batch.refused or batch.fenced_beats or batch.audited or batch.timers
    )


IDLE_RECORDS: Final[Mapping[SinkTopic, IsIdle]] = {"events": _is_idle_event, "batches": _is_idle_batch}
