"""The schedule of supervised parts: when each one starts, restarts and stops. Pure.

    WAITING ──its `after` are ready, its wait is over──▶ STARTING ──answers──▶ READY
       ▲                                                    │                    │
       └───────────── ends: waits 0.2 s, 0.4 s … 5 s ───────┴────────────────────┘
                      needs set-up: 0.2 s, 0.4 s, 0.8 s, then 60 s each time

After a part has run for 30 s its next wait is the first one again. Times are seconds of any
monotonic clock; the caller passes them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter

from sessionary.infra.local.errors import InvalidPartOrder

_PASSING_MAX = 3


class PartState(Enum):
    """The state of a part."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BackOff:
    """The wait of a part before its restart.

    The wait doubles from `first_s` to `most_s`. The wait starts again at `first_s` after the part
    has run for `reset_after_s`. A part that lacks something which only a person can set up waits
    for `set_up_s`, from the fourth such exit on: the cause of the first ones may pass, as a port
    that a killed process still held.
    """

    first_s: float = 0.2
    most_s: float = 5.0
    reset_after_s: float = 30.0
    set_up_s: float = 60.0

    def wait_s(self, deaths: int, *, needs_set_up: bool = False) -> float:
        """Return the wait after the `deaths`-th early exit in a row, counted from 1."""
        if needs_set_up and deaths > _PASSING_MAX:
            return self.set_up_s
        # The exponent is capped, so that a part that never starts does not overflow the float.
        return min(self.most_s, self.first_s * 2.0 ** min(deaths - 1, 32))


@dataclass(slots=True)
class _Entry:
    state: PartState = PartState.WAITING
    not_before: float = 0.0
    started_at: float = 0.0
    deaths: int = 0


class Schedule:
    """The states of all parts, and the resulting actions. Not thread-safe."""

    def __init__(self, after: Mapping[str, Sequence[str]], back_off: BackOff) -> None:
        """`after` maps each part's name to the names that must be ready first.

        Raises `InvalidPartOrder`.
        """
        unknown = {name for names in after.values() for name in names} - after.keys()
        if unknown:
            raise InvalidPartOrder(f"parts wait for unknown parts: {', '.join(sorted(unknown))}")
        try:
            self._order = tuple(TopologicalSorter(after).static_order())
        except CycleError as error:
            raise InvalidPartOrder(f"parts wait for each other: {' → '.join(error.args[1])}") from error
        self._after = {name: tuple(names) for name, names in after.items()}
        self._back_off = back_off
        self._entries = {name: _Entry() for name in after}

    @property
    def start_order(self) -> tuple[str, ...]:
        """All names; each comes after the names that it waits for."""
        return self._order

    @property
    def stop_order(self) -> tuple[str, ...]:
        """The reverse of the start order."""
        return self._order[::-1]

    @property
    def leaf_parts(self) -> tuple[str, ...]:
        """The parts that no other part waits for."""
        needed = {name for names in self._after.values() for name in names}
        return tuple(name for name in self.stop_order if name not in needed)

    def state_of(self, name: str) -> PartState:
        """Return the state of a part."""
        return self._entries[name].state

    def in_state(self, state: PartState) -> tuple[str, ...]:
        """Return the parts in this state, in start order."""
        return tuple(name for name in self._order if self._entries[name].state is state)

    def all_ready(self) -> bool:
        """Return True if every part is ready."""
        return all(entry.state is PartState.READY for entry in self._entries.values())

    def startable_parts(self, now: float) -> tuple[str, ...]:
        """Return the waiting parts whose wait is over and whose `after` are all ready."""
        return tuple(
            name
            for name in self.in_state(PartState.WAITING)
            if self._dependencies_ready(name) and self._entries[name].not_before <= now
        )

    def next_due(self, now: float) -> float | None:
        """Return the seconds until the next wait ends; None if no part waits for time alone."""
        waits = [
            self._entries[name].not_before
            for name in self.in_state(PartState.WAITING)
            if self._dependencies_ready(name)
        ]
        return max(0.0, min(waits) - now) if waits else None

    def mark_started(self, name: str, now: float) -> None:
        """Record that the part's process runs."""
        entry = self._entries[name]
        entry.state, entry.started_at = PartState.STARTING, now

    def mark_ready(self, name: str) -> None:
        """Record that the part answers."""
        self._entries[name].state = PartState.READY

    def record_death(self, name: str, now: float, *, needs_set_up: bool = False) -> float:
        """Record that the process ended or could not be started; return its wait in seconds.

        `needs_set_up`: it ended because something must be set up first.
        """
        entry = self._entries[name]
        alive = entry.state in (PartState.STARTING, PartState.READY)
        if alive and now - entry.started_at >= self._back_off.reset_after_s:
            entry.deaths = 0
        entry.deaths += 1
        wait_s = self._back_off.wait_s(entry.deaths, needs_set_up=needs_set_up)
        entry.state, entry.not_before = PartState.WAITING, now + wait_s
        return wait_s

    def mark_stopped(self, name: str) -> None:
        """Record that the part was stopped for good."""
        self._entries[name].state = PartState.STOPPED

    def _dependencies_ready(self, name: str) -> bool:
        return all(self._entries[other].state is PartState.READY for other in self._after[name])
