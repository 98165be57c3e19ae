"""Joins a stream of tool invoices with their sessions."""

import os
from typing import Any

import faust

from sessionary.stream_processors.streams.sessions_table import SessionsTable

PREFIX = os.environ.get("SESSIONARY_TOPIC_PREFIX", "sessionary")


class ToolInvoice(faust.Record, serializer="json"):
    """The cost of a tool call. The record's key is `tenant_id:session_id`."""

    tool: str
    cost_usd_nanos: int


class ChargedInvoice(faust.Record, serializer="json"):
    """An invoice, the service that owns its session, and the session's state.

    Both are None if there is no such session.
    """

    tool: str
    cost_usd_nanos: int
    owner_service: str | None
    state: str | None


def register(app: faust.App, sessions: SessionsTable) -> None:
    """Register the agent. The worker calls this once, before it joins its group."""
    invoices = app.topic(f"{PREFIX}.tool-invoices", value_type=ToolInvoice)
    charged = app.topic(f"{PREFIX}.charged-invoices", value_type=ChargedInvoice)

    @app.agent(invoices)
    async def charge_invoices(stream: Any) -> None:
        async for key, invoice in stream.items():
            session = sessions.get(key)  # as the last committed transaction left it
            owner, state = (session.owner_service, session.state) if session else (None, None)
            result = ChargedInvoice(invoice.tool, invoice.cost_usd_nanos, owner, state)
            await (await charged.send(key=key, value=result))  # until the broker has it
