"""One partition's part of a list, read in slices of a few milliseconds.

No index by tenant is kept: the keys of the rows are in memory anyway, for the timers, and begin
with the tenant. Only rows of the tenant are read, and not more than `ROWS_MAX` for one answer.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sessionary.stream_processors.api.lists.list_part import ListPart
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner

ROWS_MAX: Final = 1_000  # that are read for one answer of a partition
_KEYS_SLICE = 5_000  # keys that are looked at before other requests have their turn
_SLICE_S = 0.005  # how long rows are read before that; one row may take longer

Describe = Callable[[Any, PartitionState], dict[str, Any] | None]


class Wanted(NamedTuple):
    """What a list is of."""

    prefix: bytes  # with which the keys of the rows begin: the tenant's
    fits_key: Callable[[bytes], bool]  # whether a key may be of a row of the list
    describe: Describe  # a row's document; None if it is not of the list
    after: bytes  # the key after which the list begins, without the prefix
    limit: int


async def scan_partition(owner: PartitionOwner, wanted: Wanted) -> ListPart | None:
    """Return a partition's part of a list; None if the partition is not open, or lost meanwhile.

    Rows may be newer than the position, never older.
    """
    if not owner.is_readable:
        return None
    state = owner.state
    position = state.position.next_offset
    keys = await _next_keys(state, wanted)
    rows: list[tuple[bytes, dict[str, Any]]] = []
    begun_s = time.monotonic()
    for n, key in enumerate(keys):
        if n >= ROWS_MAX or len(rows) >= wanted.limit:
            return ListPart(rows, keys[n - 1][len(wanted.prefix) :], {f"{owner.partition}": position})
        if time.monotonic() - begun_s > _SLICE_S:
            await asyncio.sleep(0)
            begun_s = time.monotonic()
        if owner.state is not state or not owner.is_readable:
            return None
        row = state.rows.get(key)
        document = None if row is None else wanted.describe(row, state)
        if document is not None:
            rows.append((key[len(wanted.prefix) :], document))
    return ListPart(rows, None, {f"{owner.partition}": position})


async def _next_keys(state: PartitionState, wanted: Wanted) -> list[bytes]:
    """Return the first keys of the list, one more than are read, in order."""
    prefix, fits_key, after = wanted.prefix, wanted.fits_key, wanted.prefix + wanted.after
    listed = state.keys_to_list()
    found: set[bytes] = set()
    for first in range(0, len(listed), _KEYS_SLICE):
        if first:
            await asyncio.sleep(0)
        part = listed[first : first + _KEYS_SLICE]
        found.update(key for key in part if key.startswith(prefix) and key > after and fits_key(key))
        if len(found) > _KEYS_SLICE:
            found = set(sorted(found)[: ROWS_MAX + 1])
    return sorted(found)[: ROWS_MAX + 1]
