"""Rows with a limit, such as a running call: their times after repairs of the partition's clock."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sessionary.schemas.records import TimedStep, ToolCallState
from sessionary.schemas.types import ClockRepair

LimitedT = TypeVar("LimitedT", TimedStep, ToolCallState)


def repair_limit(row: LimitedT, repairs: Sequence[ClockRepair]) -> LimitedT:
    """Return a row after repairs of the clock; the same object if it includes them all.

    Of its limit never more than the whole is left.
    """
    for number, _, clock_ms, shift_ms, _ in repairs:
        if number > row.clock_repair:
            repaired: Any = row._replace(
                started_at=min(row.started_at + shift_ms, clock_ms),
                due_at=min(row.due_at + shift_ms, clock_ms + row.limit_ms),
                clock_repair=number,
            )
            row = repaired  # the compiler's type checker wants this step
    return row
