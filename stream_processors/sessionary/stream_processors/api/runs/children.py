"""Rows that belong to a run or to a session: steps and reserved tool calls."""

import asyncio
from typing import TypeVar

from sessionary.stream_processors.core.partition import PartitionState

RowT = TypeVar("RowT")
_SLICE = 50  # rows that are read before other requests have their turn


async def read_children(state: PartitionState, parent: bytes, *row_classes: type[RowT]) -> list[RowT]:
    """Return the rows of these classes that belong to the row under the key `parent`, in any order.

    Others have their turn meanwhile, so a row may be newer than one before it.
    """
    found: list[RowT] = []
    for n, key in enumerate(state.children(parent)):
        if n and n % _SLICE == 0:
            await asyncio.sleep(0)
        row = state.rows.get(key)
        if isinstance(row, row_classes):
            found.append(row)
    return found


__all__ = ["read_children"]
