"""When the records that wait in a partition become a block; pure.

Most blocks are due after `seconds`. Idle records (`idle_records`) alone wait for up to
`idle_seconds`, because an insert costs nearly the same for one row and for many. As soon as another
record comes, the block is due as if that record had come alone.
"""

from typing import Final, NamedTuple

from sessionary.sinks.core.idle_records import IsIdle

# If more records wait in the log than a young block holds, it is filled for this many times as
# long: an insert costs nearly the same for few rows and many, so small blocks would make the
# waiting records wait even longer.
_BACKLOG_PATIENCE: Final = 4
# A block of so many idle records costs little per row. So they do not fill the memory.
_IDLE_ROWS: Final = 5_000


class BlockLimits(NamedTuple):
    """How much is collected for a block before it is written.

    `idle_seconds`: how long idle records wait if nothing else comes. `is_idle` tells them; None if
    the topic has none.
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
