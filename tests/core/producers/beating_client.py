"""A client in memory whose heartbeats come in real time, from a thread of its own."""

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.testing import InMemoryTransport, memory_ports


def beating_client(
    settings: ProducerSettings, memory: InMemoryTransport | None = None
) -> tuple[SessionClient, InMemoryTransport]:
    """Return a client as `memory_client` does, but for the timer of its heartbeats."""
    memory = memory or InMemoryTransport()
    ports = memory_ports(memory)._replace(heartbeats=None)
    client = SessionClient(tenant_id="acme", service_id="service", agent_id="agent", settings=settings, ports=ports)
    return client, memory
