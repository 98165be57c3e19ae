"""An in-memory client for users' own tests: no Kafka, no waiting.

    client, memory = memory_client()
    with client.session(user_id="u1", state={"step": 0}) as session:
        session.activity("llm")
    assert memory.events()[-1].envelope.event_type == "session_terminated"

For asyncio: `AsyncSessionClient.wrap(client)`. The modules:

    memory      the outside of a client in memory, and clients that use it
"""

from sessionary.producers.ports import OutRecord, Receipt
from sessionary.producers.testing.memory import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.codec import Event

__all__ = ["Event", "InMemoryTransport", "OutRecord", "Receipt", "memory_client", "memory_ports"]
