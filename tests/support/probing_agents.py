"""Faust agents that try what the table of sessions refuses: the answers go to a topic."""

import asyncio
from collections.abc import Callable
from typing import Any

import faust

from examples.join_sessions.agents import PREFIX
from sessionary.schemas.errors import SessionaryError
from sessionary.stream_processors.streams.sessions_table import SessionsTable


def register(app: faust.App, sessions: SessionsTable) -> None:
    """Register an agent that answers each record by the kinds of errors that it met.

    It raises an error at the record `raise`, and answers the record `wait` without ever being done.
    """
    probes = app.topic(f"{PREFIX}.tool-invoices", value_type=bytes, value_serializer="raw")
    answers = app.topic(f"{PREFIX}.charged-invoices", value_serializer="json")

    @app.agent(probes)
    async def probe_table(stream: Any) -> None:
        async for key, value in stream.items():
            if value == b"raise":
                raise ValueError("reported so")
            if value == b"wait":
                await (await answers.send(key=key, value="begun"))
                await asyncio.Event().wait()
            attempts: list[Callable[[], object]] = [
                lambda key=key: sessions.__setitem__(key, None),  # type: ignore[misc]
                lambda key=key: sessions.pop(key),  # type: ignore[misc]
                sessions.clear,
                lambda key=key: sessions.get(key),  # type: ignore[misc]
            ]
            found = [error_name(attempt) for attempt in attempts]
            await answers.send(key=key, value={"errors": found, "sessions": len(sessions)})


def error_name(attempt: Callable[[], object]) -> str | None:
    """Return the name of the error that `attempt` raises, or None."""
    try:
        attempt()
    except SessionaryError as error:
        return type(error).__name__
    return None
