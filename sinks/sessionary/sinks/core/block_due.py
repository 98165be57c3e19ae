"""When the records that wait in a partition become a block; pure.

Most blocks are due after `seconds`. Idle records (`idle_records`) alone wait for up to
`idle_seconds`, because an insert costs nearly the same for one row and for many. As soon as another
record comes, the block is due as if that record had come alone.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sessionary.schemas.codec import Decoder, event_schema_headers, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import Heartbeat
from sessionary.schemas.records import BatchAcknowledged, BatchRecord, Tick
from sessionary.schemas.topics import SinkTopic

# Idle records: they only say that time passes, or that an agent lives; pure.
#
#     events     ticks, heartbeats
#     batches    transactions of ticks alone, acknowledgements
#
# A row of one of them may come a minute later than its record. They are known by their first ten
# bytes, so those in a registry's framing count as others.


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
        batch.applied or batch.duplicate or batch.rejected or batch.fenced_beats or batch.audited or batch.timers
    )


IDLE_RECORDS: Final[Mapping[SinkTopic, IsIdle]] = {"events": _is_idle_event, "batches": _is_idle_batch}


# If more records wait in the log than a young block holds, it is filled for this many times as
# long: an insert costs nearly the same for few rows and many, so small blocks would make the
# waiting records wait even longer.
_BACKLOG_PATIENCE: Final = 4
# A block of so many idle records costs little per row. So they do not fill the memory.
_IDLE_ROWS: Final = 5_000


class BlockLimits(NamedTuple):
    """How much is collected for a block before it is written.

    `idle_seconds`: how long idle records wait if nothing else comes. `is_idle` recognises them;
    None if the topic has none.
    """

    rows: int
    bytes: int
    seconds: float
    idle_seconds: float = 0.0
    is_idle: IsIdle | None = None


class WaitingRecords(NamedTuple):
    """The records of one partition that wait, at least one. Times are monotonic seconds."""

    rows: int
    bytes: int
    since_s: float  # when the first one arrived
    idle_until_s: float  # until then they may wait if all are idle
    busy_since_s: float | None = None  # when the first one arrived that is not idle; None: all are
    is_far_behind: bool = False  # more records are known to wait in the log


def is_block_due(waiting: WaitingRecords, limits: BlockLimits, now_s: float) -> bool:
    """Return whether a block should be taken now."""
    if waiting.rows >= limits.rows or waiting.bytes >= limits.bytes:
        return True
    patience_s = limits.seconds * (_BACKLOG_PATIENCE if waiting.is_far_behind else 1)
    if waiting.busy_since_s is not None:
        return now_s - waiting.busy_since_s >= patience_s
    return now_s - waiting.since_s >= patience_s and (now_s >= waiting.idle_until_s or waiting.rows >= _IDLE_ROWS)
