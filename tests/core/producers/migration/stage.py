"""Clients of two services on one memory, between which sessions migrate."""

from typing import Any

from sessionary.producers import Session, SessionClient
from sessionary.producers.testing import InMemoryTransport, memory_client


class Stage:
    """Clients of the services billing and shipping; what their callbacks were notified."""

    def __init__(self) -> None:
        self.reported: list[Exception] = []
        self.arrived: list[Session] = []
        self.memory = InMemoryTransport()
        self.source = self.client("billing")
        self.target = self.client("shipping")

    def client(self, service_id: str) -> SessionClient:
        return memory_client(service_id=service_id, memory=self.memory, on_error=self.reported.append)[0]

    def take(self) -> None:
        self.target.accept_migrations(self.arrived.append)

    def session(self, **fields: Any) -> Session:
        return self.source.session(user_id="u", state={"cart": ["ü"]}, **fields)

    def types(self, session: Session) -> list[str]:
        """Return the last events, from the offer on."""
        names = [judged.event.envelope.event_type for judged in self.memory.verdicts(session.session_id)]
        return names[names.index("session_migration_offered") :]
