"""Clean-up answers carry the data classes of their session."""

import pytest

from sessionary.producers import ProducerSettings, SessionClient, Unavailable
from sessionary.producers.ports import SessionView
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.events import ResourcesReleased
from sessionary.schemas.records import CleanupRequest
from tests.support.module_time import set_module_time


class AskedMemory(InMemoryTransport):
    """Writes down which sessions were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        self.asked.append(session_id)
        return super().fetch_session(session_id, after, timeout_s)

    def answer_cleanup(self, session_id: str, cleanup_id: str) -> tuple[str, ...]:
        """Let a client's handler clean up; return the data classes of its answer."""
        self.request_cleanup(
            CleanupRequest(cleanup_id, "acme", session_id, "service", 1, "closed", "closed", ["close"], 1)
        )
        answer = next(event for event in reversed(self.events()) if isinstance(event.payload, ResourcesReleased))
        return tuple(answer.envelope.data_classes)


def client_of(memory: InMemoryTransport, errors: list[Exception]) -> SessionClient:
    return SessionClient(
        tenant_id="acme",
        service_id="service",
        agent_id="agent",
        settings=ProducerSettings.from_env({}),
        on_error=errors.append,
        ports=memory_ports(memory),
    )


def test_the_client_knows_the_classes_of_its_own_session() -> None:
    memory = AskedMemory()
    client = client_of(memory, [])
    client.on_cleanup(lambda _: None)
    session = client.session(user_id="u", data_classes=("personal",))
    session.close()
    assert memory.answer_cleanup(session.session_id, "c1") == ("personal",)
    assert {event.envelope.data_classes for event in memory.events()} == {("personal",)}
    assert memory.asked == []


def test_the_processor_is_asked_for_those_of_other_clients_sessions() -> None:
    memory, errors = AskedMemory(), list[Exception]()
    session = client_of(memory, errors).session(user_id="u", data_classes=("medical", "personal"))
    session.close()
    later = client_of(memory, errors)
    later.on_cleanup(lambda _: None)
    for cleanup_id in ("c1", "c2"):
        assert memory.answer_cleanup(session.session_id, cleanup_id) == ("medical", "personal")
    assert memory.events()[-1].envelope.data_classes == ("medical", "personal")
    assert memory.asked == [session.session_id]
    assert errors == []


def test_a_clean_up_does_not_wait_for_a_control_api_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, errors = AskedMemory(), list[Exception]()
    sessions = [client_of(memory, errors).session(user_id="u", data_classes=("personal",)) for _ in range(3)]
    now_s = 100.0
    set_module_time(monkeypatch, "sessionary.producers.control.data_class_lookup", monotonic=lambda: now_s)
    later = client_of(memory, errors)
    later.on_cleanup(lambda _: None)
    memory.silence_control(silent=True)
    assert memory.answer_cleanup(sessions[0].session_id, "c1") == ()
    assert [type(error) for error in errors] == [Unavailable]
    memory.silence_control(silent=False)
    assert memory.answer_cleanup(sessions[1].session_id, "c2") == ()
    now_s = 110.0
    assert memory.answer_cleanup(sessions[2].session_id, "c3") == ("personal",)
    assert memory.asked == [sessions[0].session_id, sessions[2].session_id]
