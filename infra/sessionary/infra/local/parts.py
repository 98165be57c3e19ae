"""Pure: which supervised part starts when, how long a dead one waits, and in which order all stop.

    WAITING ──its `after` are ready, its wait is over──▶ STARTING ──answers──▶ READY
       ▲                                                    │                    │
       └──────────────── dies: waits 0.2 s, 0.4 s … 5 s ────┴────────────────────┘

A part that lived for 30 s has earned a fresh start: the next wait is the first one again. Times are seconds of any
monotonic clock that the caller hands in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter

from sessionary.infra.local.errors import BadParts

__all__ = ["BackOff", "PartState", "Schedule"]


class PartState(Enum):
    """Where a part stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long a dead part waits: doubling from `first_s` to `most_s`, anew after `reset_after_s` of life."""

    first_s: float = 0.2
    most_s: float = 5.0
    reset_after_s: float = 30.0

    def wait_s(self, deaths: int) -> float:
        """The wait after the `deaths`-th early death in a row, counted from 1."""
        # The exponent is capped, or a long-dead part would overflow the float.
        return min(self.most_s, self.first_s * 2.0 ** min(deaths - 1, 32))


@dataclass(slots=True)
class _Entry:
    state: PartState = PartState.WAITING
    not_before: float = 0.0
    started_at: float = 0.0
    deaths: int = 0


class Schedule:
    """The book of all parts. Not thread-safe."""

    def __init__(self, after: Mapping[str, Sequence[str]], back_off: BackOff) -> None:
        """`after`: each part's name with the names that must be ready first. Raises BadParts."""
        unknown = {name for names in after.values() for name in names} - after.keys()
        if unknown:
            raise BadParts(f"parts wait for unknown parts: {', '.join(sorted(unknown))}")
        try:
            self._order = tuple(TopologicalSorter(after).static_order())
        except CycleError as error:
            raise BadParts(f"parts wait for each other: {' → '.join(error.args[1])}") from error
        self._after = {name: tuple(names) for name, names in after.items()}
        self._back_off = back_off
        self._entries = {name: _Entry() for name in after}

    @property
    def start_order(self) -> tuple[str, ...]:
        """All names, each behind those it waits for."""
        return self._order

    @property
    def stop_order(self) -> tuple[str, ...]:
        """The reverse of the start order."""
        return self._order[::-1]

    @property
    def leaves(self) -> tuple[str, ...]:
        """The parts that no other part waits for."""
        needed = {name for names in self._after.values() for name in names}
        return tuple(name for name in self.stop_order if name not in needed)

    def state(self, name: str) -> PartState:
        """Where this part stands."""
        return self._entries[name].state

    def in_state(self, state: PartState) -> tuple[str, ...]:
        """The parts that stand there, in start order."""
        return tuple(name for name in self._order if self._entries[name].state is state)

    def all_ready(self) -> bool:
        """Whether every part is ready."""
        return all(entry.state is PartState.READY for entry in self._entries.values())

    def startable(self, now: float) -> tuple[str, ...]:
        """The waiting parts whose wait is over and whose `after` are all ready."""
        return tuple(
            name
            for name in self.in_state(PartState.WAITING)
            if self._free(name) and self._entries[name].not_before <= now
        )

    def next_due(self, now: float) -> float | None:
        """Seconds until a wait ends that is all a part waits for; None if there is none."""
        waits = [self._entries[name].not_before for name in self.in_state(PartState.WAITING) if self._free(name)]
        return max(0.0, min(waits) - now) if waits else None

    def started(self, name: str, now: float) -> None:
        """The part's process runs."""
        entry = self._entries[name]
        entry.state, entry.started_at = PartState.STARTING, now

    def ready(self, name: str) -> None:
        """The part answers."""
        self._entries[name].state = PartState.READY

    def died(self, name: str, now: float) -> float:
        """The part's process ended unasked, or could not be started; returns how long it now waits, in seconds."""
        entry = self._entries[name]
        alive = entry.state in (PartState.STARTING, PartState.READY)
        if alive and now - entry.started_at >= self._back_off.reset_after_s:
            entry.deaths = 0
        entry.deaths += 1
        wait_s = self._back_off.wait_s(entry.deaths)
        entry.state, entry.not_before = PartState.WAITING, now + wait_s
        return wait_s

    def stopped(self, name: str) -> None:
        """The part was ended on purpose and will not start again."""
        self._entries[name].state = PartState.STOPPED

    def _free(self, name: str) -> bool:
        return all(self._entries[other].state is PartState.READY for other in self._after[name])
