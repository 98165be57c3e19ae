"""What calls the program's function with a session that has arrived from another service."""

from collections.abc import Callable

from sessionary.producers.ports import OnError
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.session import Session

OnMigrated = Callable[[Session], object]
"""Takes a session that has arrived. The program keeps it: heartbeats stop once nothing has it."""

HandOver = Callable[[SessionCore, Callable[[], None]], None]
"""Passes a session to the program; calls the second argument once its function is done."""


def hand_over_in_place(function: OnMigrated, on_error: OnError) -> HandOver:
    """Return what calls `function` in the thread that accepted a session."""

    def hand_over(core: SessionCore, done: Callable[[], None]) -> None:
        try:
            function(Session(core))
        except Exception as error:  # noqa: BLE001 - a bug of the program, which `on_error` is for
            on_error(error)
        finally:
            done()

    return hand_over


__all__ = ["HandOver", "OnMigrated", "hand_over_in_place"]
