"""Kills a process between any two things that it does outside of itself.

A port is wrapped so that each call crosses two crash points: one before, one after it. A life dies
at the point of a given number; from then on nothing leaves it.
"""

from collections.abc import Callable
from typing import Any, Final

from sessionary.producers.ports import Ports

# The ports of a client through which anything leaves it, and their methods.
GUARDED_PORTS: Final = {
    "transport": ("send",),
    "control": ("fetch_session",),
    "tasks": ("fetch_task",),
    "runs": ("fetch_run", "fetch_steps", "fetch_step", "fetch_calls", "fetch_call"),
}


class Killed(BaseException):
    """The process dies here. No `except Exception` of the product may go on after it."""


class Life:
    """One life of a process, which dies at a crash point, or never."""

    def __init__(self, dies_at: int | None, die: Callable[[], None] | None = None) -> None:
        """`dies_at`: number of the crash point, from 0. `die`: what kills; default: `Killed`."""
        self.crossed: list[str] = []
        self.is_dead = False
        self._dies_at = dies_at
        self._die = die

    def cross(self, point: str) -> None:
        """Pass a crash point, or die at it."""
        if not self.is_dead and len(self.crossed) == self._dies_at:
            self.is_dead = True
            if self._die is not None:
                self._die()
        if self.is_dead:
            raise Killed(point)
        self.crossed.append(point)

    def guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that crosses a point before and after `call`."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.cross(f"before {name}")
            answer = call(*args, **kwargs)
            self.cross(f"after {name}")
            return answer

        return guarded

    def guard_ports(self, ports: Ports) -> dict[str, Any]:
        """Return a client's ports by name, with methods that cross crash points."""
        return {name: _GuardedPort(self, getattr(ports, name), methods) for name, methods in GUARDED_PORTS.items()}


class _GuardedPort:
    def __init__(self, life: Life, port: Any, names: tuple[str, ...]) -> None:
        self._life, self._port, self._names = life, port, names

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        return self._life.guard(name, value) if name in self._names else value
