"""The committed state of a partition as data: a batch reads it, and is merged into it.

Besides rows and position, it has the data derived from them: timers, counts, and three indexes (of
children by their parents, of tasks by their ids, and of packed tombstones).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import SessionKey, is_task_id, split_child_key, split_run_key
from sessionary.schemas.records import Position
from sessionary.schemas.signatures import NO_KEYS, SigningKeys
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.clock import Clock, Timers
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import EventLog, RowFate
from sessionary.stream_processors.core.rows import AnyRows
from sessionary.stream_processors.core.tombstones import ChunkIndex, ChunkSizes, end_of_day

_SUFFIX_BYTES: Final = 17


class ChildIndex:
    """The children of a partition's committed rows, by their parents."""

    def __init__(self) -> None:
        self._suffixes: dict[bytes, bytearray] = {}

    def add(self, key: bytes) -> None:
        """Take the key of a child that is not there. Raises `ValueError` for another key."""
        split = split_child_key(key)
        if split is None:
            raise ValueError(f"{key!r} is no key of a child")
        self.extend(split[0], [split[1]])

    def extend(self, parent: bytes, suffixes: list[bytes]) -> None:
        """Add new children by their suffixes, the part of a key after the parent's key."""
        self._suffixes.setdefault(parent, bytearray()).extend(b"".join(map(_pack_suffix, suffixes)))

    def keys_of(self, parent: bytes) -> list[bytes]:
        """Return the keys of a row's children, in the order in which they were added."""
        packed = self._suffixes.get(parent, b"")
        starts = range(0, len(packed), _SUFFIX_BYTES)
        return [parent + _unpack_suffix(packed[start : start + _SUFFIX_BYTES]) for start in starts]

    def count(self, parent: bytes) -> int:
        """Return how many children a row has."""
        return len(self._suffixes.get(parent, b"")) // _SUFFIX_BYTES

    def drop(self, parent: bytes) -> None:
        """Forget the children of a row."""
        self._suffixes.pop(parent, None)


class ChildChanges:
    """The children that a batch adds and drops; nothing of the index changes before the merge."""

    def __init__(self, index: ChildIndex) -> None:
        self._index = index
        self._added: dict[bytes, list[bytes]] = {}  # the suffixes of new keys, by their parents' keys
        self._dropped: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Take the key of a child that is not there. Raises `ValueError` for another key."""
        split = split_child_key(key)
        if split is None:
            raise ValueError(f"{key!r} is no key of a child")
        self._added.setdefault(split[0], []).append(split[1])

    def keys_of(self, parent: bytes) -> list[bytes]:
        """Return the keys of a row's children, with those of the batch."""
        committed = [] if parent in self._dropped else self._index.keys_of(parent)
        return committed + [parent + suffix for suffix in self._added.get(parent, ())]

    def count(self, parent: bytes) -> int:
        """Return how many children a row has, with those of the batch."""
        committed = 0 if parent in self._dropped else self._index.count(parent)
        return committed + len(self._added.get(parent, ()))

    def drop(self, parent: bytes) -> None:
        """Forget the children of a row."""
        self._added.pop(parent, None)
        self._dropped.add(parent)

    def merge(self) -> None:
        """Apply the changes of the batch to the index."""
        for parent in self._dropped:
            self._index.drop(parent)
        for parent, suffixes in self._added.items():
            self._index.extend(parent, suffixes)


def _pack_suffix(suffix: bytes) -> bytes:
    return suffix[1:2] + bytes.fromhex(suffix[2:].decode())


def _unpack_suffix(packed: bytes | bytearray) -> bytes:
    return b"\0%b%b" % (bytes(packed[:1]), packed[1:].hex().encode())


class TaskIndex:
    """The runs of a partition whose ids are those of tasks, by tenant and id."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add_run(self, key: bytes) -> None:
        """Take the key of a run's row; does nothing if the run is no task."""
        tenant_id, session_id, run_id = split_run_key(key)
        if self._sessions.get((tenant_id, run_id)) == session_id:
            return  # as for each further event of a task
        if is_task_id(run_id, SessionKey(tenant_id, session_id)):
            self._sessions[tenant_id, run_id] = session_id

    def drop_run(self, key: bytes) -> None:
        """Forget the run whose row had this key."""
        tenant_id, session_id, run_id = split_run_key(key)
        if self._sessions.get((tenant_id, run_id)) == session_id:
            del self._sessions[tenant_id, run_id]

    def find_session(self, tenant_id: str, task_id: str) -> SessionKey | None:
        """Return the session of a tenant's task; None if there is no such task."""
        session_id = self._sessions.get((tenant_id, task_id))
        return None if session_id is None else SessionKey(tenant_id, session_id)


class PartitionSettings(NamedTuple):
    """The inputs of a state besides the log, and the bounds of one batch."""

    events_topic: str
    partitions: int
    outage_ms: int = 5_000
    outage_grace_ms: int = 25_000
    records_max: int = 5_000
    bytes_max: int = 8 << 20
    timers_max: int = 5_000
    output_bytes_max: int = 16 << 20
    chunk_sizes: ChunkSizes = ChunkSizes()
    keys: SigningKeys = NO_KEYS  # whose records count as those of server roles


class Families(NamedTuple):
    """The families of a judge's rows, by what they answer for."""

    home: AnyRows  # its rows are under the records' own keys
    by_row_class: Mapping[type[Any], AnyRows]
    live_classes: frozenset[type[Any]]
    foreign_classes: frozenset[type[Any]]  # of the rows that are not of `home`
    unpacked_classes: frozenset[type[Any]]  # of the rows that only vanish, and are never packed
    child_classes: frozenset[type[Any]]  # of the rows that vanish with their parents
    fates: Mapping[type[Any], RowFate]
    expiries_ms: Mapping[type[Any], Callable[[Any], int]]  # of the rows that are packed
    labels: Mapping[type[Any], Callable[[Any], Hashable]]  # of the rows that are counted
    openings: Mapping[type[Any], Callable[[Any], int | None]]  # of the rows that hold connections open
    remains: Mapping[type[Any], Callable[[Any], Any]]  # of the rows that leave a tombstone when they vanish


def arrange_families(families: Sequence[AnyRows]) -> Families:
    """Arrange families of rows; the first is the home."""
    by_row_class = {kind.row_class: family for family in families for kind in family.kinds}
    kinds = [kind for family in families for kind in family.kinds]
    live = frozenset(kind.row_class for kind in kinds if kind.live)
    children = frozenset(kind.row_class for kind in kinds if kind.is_child)
    expiries_ms = {kind.row_class: kind.expiry_ms for kind in kinds if kind.expiry_ms is not None}
    return Families(
        home=families[0],
        by_row_class=by_row_class,
        live_classes=live,
        foreign_classes=frozenset(kind.row_class for family in families[1:] for kind in family.kinds),
        unpacked_classes=frozenset(by_row_class) - live - frozenset(expiries_ms) - children,
        child_classes=children,
        fates={kind.row_class: kind.fate for kind in kinds},
        expiries_ms=expiries_ms,
        labels={kind.row_class: kind.label for kind in kinds if kind.label is not None},
        openings={kind.row_class: kind.open_since_ms for kind in kinds if kind.open_since_ms is not None},
        remains={kind.row_class: kind.remains for kind in kinds if kind.remains is not None},
    )


class RowTally:
    """The number of committed rows by label, in `counts`; rows without a label are not in it.

    `open_since_ms` has since when rows hold connections open, by key (ms of log time).

    A row's `RowKind` returns its label. A partition that opens decodes no rows, so its rows are
    counted later, a few at a time, between batches. A batch that touches an uncounted row counts
    it.
    """

    def __init__(
        self,
        labels: Mapping[type[Any], Callable[[Any], Hashable]],
        openings: Mapping[type[Any], Callable[[Any], int | None]],
    ) -> None:
        """`labels`: functions from a row to its label, for each class of rows that has one.

        `openings`: functions from a row to the time since which it holds a connection open.
        """
        self._labels = labels
        self._openings = openings
        self._waiting: set[bytes] = set()
        self.counts: Counter[Hashable] = Counter()
        self.open_since_ms: dict[bytes, int] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every row is counted."""
        return not self._waiting

    def label_of(self, row: Any) -> Hashable:
        """Return a row's label; None if the row has none, or is None."""
        label = self._labels.get(type(row))
        return None if label is None else label(row)

    def start_again(self, keys: Iterable[bytes]) -> None:
        """Forget all counts; the rows under these keys wait to be counted."""
        self._waiting, self.counts = set(keys), Counter()
        self.open_since_ms = {}

    def count_waiting(self, read_row: Callable[[bytes], Any], rows_max: int) -> None:
        """Count at most `rows_max` of the rows that wait. `read_row` returns a committed one."""
        for _ in range(min(rows_max, len(self._waiting))):
            key = self._waiting.pop()
            row = read_row(key)
            label = self.label_of(row)
            if label is not None:
                self.counts[label] += 1
            self._note_opening(key, row)
        if not self._waiting:
            self._waiting = set()  # an empty set keeps the room that it had

    def replace_rows(self, before: Mapping[bytes, Hashable], rows: Mapping[bytes, Any]) -> None:
        """Take the rows that a batch put in place of others; `before`: the labels of these."""
        labels, counts, waiting = self._labels, self.counts, self._waiting
        for key, was in before.items():
            row = rows[key]
            if type(row) in self._openings or key in self.open_since_ms:
                self._note_opening(key, row)
            label = labels.get(type(row))
            after = None if label is None else label(row)
            if waiting and key in waiting:
                waiting.discard(key)
                was = None  # it was never counted
            if was != after:
                if was is not None:
                    counts[was] -= 1
                if after is not None:
                    counts[after] += 1

    def _note_opening(self, key: bytes, row: Any) -> None:
        opening = self._openings.get(type(row))
        since_ms = None if opening is None else opening(row)
        if since_ms is None:
            self.open_since_ms.pop(key, None)
        else:
            self.open_since_ms[key] = since_ms


class CommittedState:
    """Rows, position and timers after the last acknowledged transaction.

    `timers` and `expiries` are hints that are derived from the rows: an entry is never later than
    its row is due. `expiries` is a heap of the rows that vanish when they are due, and may be
    packed before; `unpacked_expiries` is one of those that are never packed. `chunks` has the
    tombstones that are packed, `child_index` the keys of the rows that vanish with others, `tasks`
    the sessions of the tasks. `live` and `vanishing` are the numbers of rows that fire and that
    only vanish, without chunks and children that are not live; `unpacked` of these that are never
    packed. `tally` counts rows by their labels. `judge` decides on the log's records.
    """

    def __init__(
        self,
        partition: int,
        settings: PartitionSettings,
        decoder: Decoder,
        judge: Judge,
        rows: MutableMapping[bytes, Any] | None = None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.judge = judge
        self.decoder = decoder
        self.families = arrange_families(judge.families)
        self.log = EventLog(settings.events_topic, partition, settings.partitions, settings.keys)
        self.rows: MutableMapping[bytes, Any] = {} if rows is None else rows
        self.position = Position(0, 0, 0, 0, 0)
        self.timers = Timers()
        self.expiries: list[tuple[int, bytes]] = []
        self.unpacked_expiries: list[tuple[int, bytes]] = []
        self.chunks = ChunkIndex()
        self.child_index = ChildIndex()
        self.tasks = TaskIndex()
        self.live = self.vanishing = self.unpacked = 0
        self.tally = RowTally(self.families.labels, self.families.openings)

    @property
    def tombstones(self) -> int:
        """How many rows have vanished but for their tombstones, packed or not."""
        return self.vanishing - self.unpacked + len(self.chunks)

    @property
    def peek_row(self) -> Callable[[bytes], Any]:
        """A look-up of committed rows that are read just once, so need not stay decoded."""
        peek: Callable[[bytes], Any] = getattr(self.rows, "peek", self.rows.get)
        return peek

    def is_live(self, row: Any) -> bool:
        """Return whether a row fires when it is due; False for None, and if it only vanishes."""
        return type(row) in self.families.live_classes

    def repair_times(self, row: Any, repairs: Sequence[ClockRepair]) -> Any:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return self.families.by_row_class[type(row)].repair_times(row, repairs) if self.is_live(row) else row

    def due_ms(self, row: Any, outage_end_ms: int = 0) -> int:
        """Return when a row is due, in ms of log time; without the outage's end, not later."""
        return self.families.by_row_class[type(row)].due_ms(row, outage_end_ms)

    def has_vanishing(self, now_ms: int) -> bool:
        """Whether a row waits to be dropped that vanishes by `now_ms`, of log time."""
        return any(heap and heap[0][0] <= now_ms for heap in (self.expiries, self.unpacked_expiries))

    def expiries_of(self, row_class: type[Any]) -> list[tuple[int, bytes]]:
        """Return the heap for rows of a class that only vanish."""
        return self.unpacked_expiries if row_class in self.families.unpacked_classes else self.expiries

    def expiry_ms(self, row: Any) -> int | None:
        """Return when a tombstone vanishes, at the end of a day; None for other rows.

        It is the same whether the tombstone is packed or not.
        """
        expiry_ms = self.families.expiries_ms.get(type(row))
        return None if expiry_ms is None else end_of_day(expiry_ms(row))

    def is_packed(self, key: bytes) -> bool:
        """Return whether a packed tombstone remains of the row under a key."""
        return self.chunks.holds(key, self.position.clock_ms)

    def outage_end_ms(self, clock: Clock) -> int:
        """Return when the last outage ended (ms of log time); 0 if there was none yet."""
        if not clock.outage_grace_until_ms:
            return 0  # as of most partitions, which had no outage yet
        return clock.outage_end_ms(self.settings.outage_grace_ms)
