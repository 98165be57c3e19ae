"""A family of rows: the forms that its rows have, their bytes, and their clock.

A partition keeps rows of several families under one clock. A live row *fires* when it is due; one
that is not live vanishes then. Every family answers the same questions about its rows (`Rows`).
The judge decides what an event means for its rows (`judge`).

Everything here is pure and sees time as data, in ms of log time.
"""

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.model import Decision, RowFate, RowLookup

RowT = TypeVar("RowT")


class Remains(Enum):
    """A stand-in that a judge gets for a packed tombstone: there was a row under this key."""

    REMAINS = "remains"


REMAINS: Final = Remains.REMAINS


class RowParts(NamedTuple):
    """How the content of a row becomes a separate changelog record, so that few events write it.

    A row's deadline does not depend on its content.
    """

    split: Callable[[Any, int], tuple[Any, bytes | None]]  # row, rules → the rest, the content; None: it stays
    is_split: Callable[[Any], bool]  # whether a row, as it was read, lacks its content
    join: Callable[[Any, bytes], Any]  # undoes `split`; raises `DecodeError`
    prefixes: frozenset[bytes]  # with which the contents, as any release wrote them, begin


class RowKind(NamedTuple):
    """A class of rows, and its bytes in the changelog and in stores.

    A live row keeps its partition's clock going and fires when it is due. A row that is not live is
    the remainder of a live one; it vanishes without a record when it is due.

    A tombstone is packed if it has an `expiry_ms`: only a hash of its key is kept. Packed or not,
    the judge gets `REMAINS` instead of the tombstone, and must not change it.

    A child belongs to another row, its parent: its key is the parent's and a suffix
    (`schemas.ids`). It vanishes with its parent, or when only a tombstone is left of the parent.
    The deadline of a child that is not live has no meaning.
    """

    row_class: type[Any]
    live: bool
    prefixes: frozenset[bytes]  # with which the bytes of this kind, as any release wrote them, begin
    encode: Callable[[Any, int], bytes]  # a row, and the version of the rules in force
    parts: RowParts | None = None  # None: rows are always written whole
    # when a row that is not live vanishes, ms of log time; None: it is never packed
    expiry_ms: Callable[[Any], int] | None = None
    label: Callable[[Any], Hashable] | None = None  # rows are counted by it, for metrics; None: they are not counted
    is_child: bool = False
    # since when a row holds a connection open, ms of log time; None: rows of this kind hold none
    open_since_ms: Callable[[Any], int | None] | None = None
    # what remains under the key of a row that vanishes, and is not live; None: nothing does
    remains: Callable[[Any], Any] | None = None

    @property
    def fate(self) -> RowFate:
        """The life cycle of rows of this kind."""
        return RowFate(self.live, self.expiry_ms is not None, self.is_child, self.label is not None)


class Rows(Protocol[RowT]):
    """One family of rows. Holds no state; one instance serves any number of partitions."""

    @property
    def kinds(self) -> Sequence[RowKind]:
        """The classes of the family's rows."""
        ...

    def decode(self, value: bytes) -> RowT:
        """Return a row from bytes that any release wrote. Raises `DecodeError` for other bytes."""
        ...

    def estimate_bytes(self, row: RowT) -> int:
        """Return about how many bytes a row takes in the changelog; no text of it is left out.

        Encodes nothing: it is called once per row and batch.
        """
        ...

    def due_ms(self, row: RowT, outage_end_ms: int = 0) -> int:
        """Return when a row is due, in ms of log time.

        `outage_end_ms`: when the partition's last outage ended. It may
        postpone a live row, and never makes one due earlier.
        """
        ...

    def repair_times(self, row: RowT, repairs: Sequence[ClockRepair]) -> RowT:
        """Return a live row with its times as they are after repairs of the partition's clock.

        The same object if it includes them all. `repairs`: the partition's, at least one.
        """
        ...

    def is_only_postponed(self, row: RowT, after: RowT) -> bool:
        """Return True only if `after` cannot be due earlier than `row`. Saves working out `due_ms`.

        Both rows are live.
        """
        ...

    def fire(self, key: bytes, row: RowT, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        """Return the decision on a live row whose deadline has passed.

        `key` is the row's; `outage_end_ms` is as in `due_ms`. The decision's facts are for the row
        of the session to which the row belongs, or for the row itself if it is a home row.
        """
        ...


AnyRows = Rows[Any]
