"""A processor's errors, by their consequence.

SessionaryError
├── ProcessorFault
│   ├── Aborted          the transaction was undone: fold the same records again
│   ├── Lost             the producer is fenced or broken: open the partition again
│   │   └── EndInDoubt   its last transaction's end may come once more, so it may begin no other one
│   ├── Halted(reason)   this partition stops until the cause is removed, the others continue
│   ├── RebuildRefused   a partition's rows cannot be rebuilt in the way that was asked for
│   ├── PointUnknown     a session has no such point in its history
│   ├── StateExpired     a session's state at a point cannot be told any more
│   └── ProcessorFailed  the process cannot continue
└── TableFault
    ├── NotLocal(key, partition)   the session is another worker's, or its partition is not open yet
    └── ReadOnly                   the table of sessions cannot be written
"""

import traceback
from collections.abc import Iterable
from typing import Final, Literal

from sessionary.schemas.errors import SessionaryError, Unavailable

HaltReason = Literal[
    "log_gap",  # the log begins after the position: records were deleted before they were folded
    "log_truncated",  # the log ended below the position: it lost records that were folded already
    "topic_replaced",  # the events or the changelog were deleted and made again: another log has the same name
    "wrong_timestamp_type",  # a record has a client's time, not the broker's, by which deadlines are judged
    "clock_ahead",  # a record's time lies too far ahead of the worker's clock: one of two clocks is wrong
    "batch_unreadable",  # a batch of events is damaged, or cannot be unpacked
    "store_disk_full",  # the disk of the local store (RocksDB) has no room left
    "record_too_large",  # the broker refuses a record of this processor for its size
    "changelog_incomplete",  # the changelog lost rows: their number or checksum is not the position record's
    "position_lost",  # the changelog has not the last position: the partition was folded beyond it
    "transaction_open",  # an open transaction hides the end of the changelog
    "changelog_unreadable",  # a changelog record cannot be decoded
    "unknown_rules",  # the partition is judged by rules that this release does not know
    "judge_failed",  # an unexpected exception while a record was folded: it would come up again
]


class ProcessorFault(SessionaryError):
    """Base of a processor's errors."""


class Aborted(ProcessorFault):
    """A transaction was aborted; nothing of it is visible."""


class Lost(ProcessorFault):
    """A partition's producer or reader cannot continue."""


class EndInDoubt(Lost):
    """A request that ended a producer's last transaction may still be under way."""


class Halted(ProcessorFault):
    """A partition stops; `reason` says why, `detail` what happened where, and what to do.

    The partition is opened again now and then, in case the cause is gone; most causes need an
    operator. `clears_in_s`: seconds until the cause is gone by itself; None if unknown. `offset`
    and `key` are those of the record that cannot be folded, if a record is the cause: an operator
    may skip this record.
    """

    def __init__(
        self,
        reason: HaltReason,
        detail: str,
        clears_in_s: float | None = None,
        offset: int | None = None,
        key: bytes | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: HaltReason = reason
        self.detail = detail
        self.clears_in_s = clears_in_s
        self.offset = offset
        self.key = key


class RebuildRefused(ProcessorFault):
    """A partition's rows cannot be rebuilt so; the message says what is missing, and what can."""


class PointUnknown(ProcessorFault):
    """A session has no such point in its history; the message says where that begins and ends."""


class StateExpired(ProcessorFault):
    """What a state at a point is made of is gone; the message says what, and since when."""


# Errors while a record is folded that are not its fault: a store or the machine fails.
EXPECTED_ERRORS: Final = (ProcessorFault, Unavailable, OSError, MemoryError)


def describe_exception(error: Exception) -> str:
    """Return an exception's type and place in the code. Its text may repeat a record.

    The same in every build: Cython names a function by its whole path, and a file from its root on.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    module, name = f"/{frame.filename}".rpartition("/sessionary/")[2], frame.name.rpartition(".")[2]
    return f"{type(error).__name__} at {module}:{frame.lineno}, in {name}"


def judge_failed(where: str, error: Exception, offset: int | None = None, key: bytes | None = None) -> Halted:
    """Return the halt after an unexpected exception of the fold.

    `where` names partition and offset; `offset` and `key` are the record's, if one caused it.
    """
    return Halted("judge_failed", f"{where}: {describe_exception(error)}", offset=offset, key=key)


class ProcessorFailed(ProcessorFault):
    """The process ended by itself; the message says why."""


class TableFault(SessionaryError):
    """Base of the errors of the table of sessions."""


class NotLocal(TableFault):
    """A session's partition is not open on this worker, so it is not known whether it exists.

    This is no `KeyError`: `get` of such a key must not answer that there is no such session.
    """

    def __init__(self, key: object, partition: int, open_partitions: Iterable[int]) -> None:
        here = ", ".join(map(str, sorted(open_partitions))) or "none"
        super().__init__(
            f"session {key!r} belongs to partition {partition}, which is not open on this worker (open: {here}). "
            "Either the partition is moving, or the record with this key was sent by a producer with another "
            "partitioner than Kafka's murmur2 (librdkafka: partitioner=murmur2_random)"
        )
        self.key, self.partition = key, partition


class ReadOnly(TableFault):
    """The table of sessions cannot be written."""
