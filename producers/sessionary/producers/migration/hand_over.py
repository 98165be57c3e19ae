"""What calls the program's function with a session that has arrived from another service."""

from collections.abc import Callable
from typing import Protocol

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


class MigratingClient(Protocol):
    """The core of a client to which sessions migrate."""

    on_error: OnError

    def take_migrations(self, hand_over: HandOver, concurrency: int) -> None:
        """Take the sessions that migrate to the client's service."""
        ...


def take_migrations(client: MigratingClient, function: OnMigrated, concurrency: int) -> None:
    """Let a client call `function` with each session that arrives."""
    client.take_migrations(hand_over_in_place(function, client.on_error), concurrency)
