"""Parts of a list that several partitions and workers answer, and how they are merged. Pure.

A list is in the order of its rows' keys. Each part is complete up to a key, its `end`; of several
parts together, rows are known to be complete up to the lowest `end`.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

CURSOR_CHARACTERS_MAX: Final = 2_000


class ListPart(NamedTuple):
    """A part of a list: documents by their keys, in the order of these.

    `end`: the key up to which no row is missing; None: there are no more rows. `positions`: the
    next offset of each partition that answered.
    """

    rows: Sequence[tuple[bytes, dict[str, Any]]]
    end: bytes | None
    positions: Mapping[str, int]


def merge_parts(parts: Iterable[ListPart], limit: int) -> ListPart:
    """Return the first `limit` rows of all parts, as far as all of them are complete."""
    parts = tuple(parts)
    ends = [part.end for part in parts if part.end is not None]
    end = min(ends, default=None)
    # While a partition changes hands, two workers may answer for it.
    by_key = {key: document for part in parts for key, document in part.rows}
    rows = sorted(by_key.items(), key=lambda row: row[0])
    if end is not None:
        rows = [row for row in rows if row[0] <= end]
    if len(rows) > limit:
        rows = rows[:limit]
        end = rows[-1][0]
    positions = {partition: at for part in parts for partition, at in part.positions.items()}
    return ListPart(rows, end, positions)


def cursor_of(key: bytes) -> str:
    """Return the text from which a list goes on after a row; `key` lacks the tenant."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def parse_cursor(text: str) -> bytes:
    """Return the key that a cursor is of. Raises `ValueError` for another text."""
    if not text or len(text) > CURSOR_CHARACTERS_MAX:
        raise ValueError(f"a cursor has 1 to {CURSOR_CHARACTERS_MAX} characters")
    try:
        key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if cursor_of(key) != text:  # the decoder skips what it does not know
        raise ValueError("it has characters that no cursor has")
    return key
