"""Rows that belong to a run or to a session: steps, reserved tool calls, artifacts."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sessionary.stream_processors.api.runs.run_pages import require_run
from sessionary.stream_processors.api.session_questions import AskedOwner, require_session
from sessionary.stream_processors.core.partition import PartitionState

RowT = TypeVar("RowT")
_SLICE = 50  # rows that are read before other requests have their turn
_KIND_BYTES = 2  # that follow the parent's key in the key of a child, and say what it is


def require_parent(asked: AskedOwner, run_id: str | None) -> bytes:
    """Return the key of the run, or of the session if `run_id` is None. Raises `Problem`."""
    if run_id is not None:
        return require_run(asked, run_id)
    require_session(asked)
    return asked.question.key.encoded()


async def read_children(
    state: PartitionState, parent: bytes, key_of: Callable[[bytes, str], bytes], *row_classes: type[RowT]
) -> list[RowT]:
    """Return the rows of these classes that belong to the row under the key `parent`, in any order.

    `key_of` makes their keys of the parent's and a name, as `step_key` does. No other row is read:
    the turns of a session may be large. Others have their turn meanwhile, so a row may be newer
    than one before it.
    """
    found: list[RowT] = []
    kind = key_of(parent, "")[: len(parent) + _KIND_BYTES]
    keys = [key for key in state.children(parent) if key.startswith(kind)]
    for n, key in enumerate(keys):
        if n and n % _SLICE == 0:
            await asyncio.sleep(0)
        row = state.rows.get(key)
        if isinstance(row, row_classes):
            found.append(row)
    return found
