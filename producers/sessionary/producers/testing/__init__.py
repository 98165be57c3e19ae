"""A client in memory for users' own tests: judged by the real rules, on a clock that tests move.

    client, memory = memory_client()
    with client.session(user_id="u1", state={"step": 0}) as session:
        session.activity("llm")
        memory.advance(3600)  # seconds; takes no real time
    assert "idle" in [record.reason_code for record in memory.audit()]

For asyncio: `AsyncSessionClient.wrap(client)`. Fixtures for pytest: `sessionary.pytest_plugin`.
The modules:

    clients       clients whose ports are in memory
    memory        these ports: the events sent, requests to services, the clock
    memory_runs   its runs, steps and tool calls, as the control API reports them
    operator      the actions of an operator, and answers to questions
    judged_event  an event and its verdict
    judged_log    the processor's rules over partitions, and what they judged; imported lazily
"""

from sessionary.producers.ports import OutRecord, Receipt
from sessionary.producers.testing.clients import memory_client, memory_ports
from sessionary.producers.testing.judged_event import JudgedEvent, MemoryQuota, NamedSession, VerdictOutcome
from sessionary.producers.testing.memory import InMemoryTransport
from sessionary.producers.testing.operator import OperatorHand
from sessionary.schemas.codec import Event
from sessionary.schemas.records import AuditRecord, RejectedEvent, SessionState

__all__ = [
    "AuditRecord",
    "Event",
    "InMemoryTransport",
    "JudgedEvent",
    "MemoryQuota",
    "NamedSession",
    "OperatorHand",
    "OutRecord",
    "Receipt",
    "RejectedEvent",
    "SessionState",
    "VerdictOutcome",
    "memory_client",
    "memory_ports",
]
