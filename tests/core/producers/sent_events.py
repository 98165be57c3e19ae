"""What an in-memory client has sent."""

from sessionary.producers.testing import InMemoryTransport

START_EVENTS = ["session_created", "session_phase_changed", "session_phase_changed", "session_started"]


def sent_types(memory: InMemoryTransport, session_id: str | None = None) -> list[str]:
    return [event.envelope.event_type for event in memory.events(session_id)]
