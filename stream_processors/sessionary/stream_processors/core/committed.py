"""The committed state of a partition as data: what a batch reads, and what it is merged into."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import Position
from sessionary.schemas.types import ClockRepair, RuleSet
from sessionary.stream_processors.core.clock import Clock
from sessionary.stream_processors.core.gravestones.chunk_index import ChunkIndex, end_of_day
from sessionary.stream_processors.core.gravestones.packing import ChunkSizes
from sessionary.stream_processors.core.machine import AnyMachine
from sessionary.stream_processors.core.model import EventLog
from sessionary.stream_processors.core.timers import Timers


class PartitionSettings(NamedTuple):
    """What a state depends on besides the log, and the bounds of one batch."""

    events_topic: str
    partitions: int
    hole_ms: int = 5_000
    quiet_ms: int = 25_000
    records_max: int = 5_000
    bytes_max: int = 8 << 20
    timers_max: int = 5_000
    output_bytes_max: int = 16 << 20
    chunk_sizes: ChunkSizes = ChunkSizes()


class Families(NamedTuple):
    """The machines of a processor, by what they answer for."""

    home: AnyMachine  # its rows are under the records' own keys; it also answers for unreadable records
    by_event_type: Mapping[str, AnyMachine]  # of the events that are not the home's
    by_row_class: Mapping[type[Any], AnyMachine]
    live_classes: frozenset[type[Any]]
    expiries_ms: Mapping[type[Any], Callable[[Any], int]]  # of the rows that are packed by rules 2


def arrange_families(machines: Sequence[AnyMachine]) -> Families:
    """Arrange machines.

    The first is the home; a later one takes its event types from earlier ones.
    """
    by_event_type: dict[str, AnyMachine] = {}
    by_row_class: dict[type[Any], AnyMachine] = {}
    live: set[type[Any]] = set()
    expiries_ms: dict[type[Any], Callable[[Any], int]] = {}
    for machine in machines:
        if machine is not machines[0]:
            by_event_type.update(dict.fromkeys(machine.event_types, machine))
        for kind in machine.row_kinds:
            by_row_class[kind.row_class] = machine
            if kind.live:
                live.add(kind.row_class)
            if kind.expiry_ms is not None:
                expiries_ms[kind.row_class] = kind.expiry_ms
    return Families(machines[0], by_event_type, by_row_class, frozenset(live), expiries_ms)


class CommittedState:
    """Rows, position and timers after the last acknowledged transaction.

    `timers` and `expiries` are hints that are derived from the rows: an entry is never later than
    its row is due. `expiries` is a heap of the rows that vanish when they are due. `chunks` has the
    gravestones that are packed.
    """

    def __init__(
        self,
        partition: int,
        settings: PartitionSettings,
        decoder: Decoder,
        machines: Sequence[AnyMachine],
        rows: MutableMapping[bytes, Any] | None = None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.decoder = decoder
        self.families = arrange_families(machines)
        self.log = EventLog(settings.events_topic, partition, settings.partitions)
        self.rows: MutableMapping[bytes, Any] = {} if rows is None else rows
        self.position = Position(0, 0, 0, 0, 0)
        self.timers = Timers()
        self.expiries: list[tuple[int, bytes]] = []
        self.chunks = ChunkIndex()
        self.live = 0

    def is_live(self, row: Any) -> bool:
        """Return whether a row fires when it is due; False for None and for what only vanishes."""
        return type(row) in self.families.live_classes

    def repair_times(self, row: Any, repairs: Sequence[ClockRepair]) -> Any:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return self.families.by_row_class[type(row)].repair_times(row, repairs) if self.is_live(row) else row

    def due_ms(self, row: Any, hole_end_ms: int = 0) -> int:
        """Return when a row is due, in ms of log time; without the hole's end, not later."""
        return self.families.by_row_class[type(row)].due_ms(row, hole_end_ms)

    def expiry_ms(self, row: Any) -> int | None:
        """Return when a gravestone vanishes by rules 2, at the end of a day; None for other rows.

        It is the same whether the gravestone is packed or not.
        """
        expiry_ms = self.families.expiries_ms.get(type(row))
        return None if expiry_ms is None else end_of_day(expiry_ms(row))

    def is_packed(self, key: bytes) -> bool:
        """Return whether of the row under a key a packed gravestone remains."""
        return self.chunks.holds(key, self.position.clock_ms)

    def hole_end_ms(self, clock: Clock, rules: RuleSet) -> int:
        """Return when the last hole ended (ms of log time); 0 if `rules` do not look at that."""
        return clock.hole_end_ms(self.settings.quiet_ms) if rules.version >= 2 else 0


__all__ = ["CommittedState", "Families", "PartitionSettings", "arrange_families"]
