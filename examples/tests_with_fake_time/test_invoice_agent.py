"""Unit tests of the agent: no Kafka, no waiting. `sessionary_*` are fixtures of the package."""

import pytest

from examples.tests_with_fake_time.invoice_agent import InvoiceAgent
from sessionary.producers import SessionClient
from sessionary.producers.testing import InMemoryTransport, memory_client


@pytest.fixture
def agent(sessionary_client: SessionClient) -> InvoiceAgent:
    """The agent, on a client in memory."""
    return InvoiceAgent(sessionary_client)


def test_an_invoice_is_paid(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """No event of the agent is rejected, even if the person takes 20 hours."""
    session = agent.open_invoice("2026-17", user_id="u1")
    agent.read_invoice(session)
    agent.ask_person(session)
    sessionary_memory.advance(20 * 3600)
    agent.pay_invoice(session)
    assert sessionary_memory.rejections() == []
    assert sessionary_memory.view_session(session).state == "Terminated"
    moves = [line.to_state for line in sessionary_memory.audit() if line.kind == "transition"]
    assert moves == ["Idle", "Active", "Paused", "Active", "Terminated"]


def test_work_during_a_pause_is_rejected(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """A helper in another process does not know about the pause."""
    session = agent.open_invoice("2026-17", user_id="u1")
    helper, _ = memory_client(agent_id="helper", memory=sessionary_memory)
    helpers_session = helper.attach(session.session_id)
    agent.ask_person(session)
    helpers_session.activity("llm", text="reading page 2")
    (rejection,) = sessionary_memory.rejections()
    assert (rejection.event_type, rejection.reason) == ("session_activity", "illegal_transition")


def test_a_session_without_work_times_out(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """Heartbeats continue but do not count as work: `idle_ms` is ten minutes."""
    session = agent.open_invoice("2026-17", user_id="u1")
    sessionary_memory.advance(599)
    assert sessionary_memory.view_session(session).state == "Active"
    sessionary_memory.advance(1)
    assert sessionary_memory.view_session(session).state == "Timeout"
    assert [request.reason_code for request in sessionary_memory.cleanups()] == ["idle"]


def test_a_dead_agent_times_out_sooner(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """Without a heartbeat or any other event, a minute is enough."""
    session = agent.open_invoice("2026-17", user_id="u1")
    sessionary_memory.silence(session)
    sessionary_memory.advance(60)
    assert sessionary_memory.view_session(session).state == "Timeout"
    assert [request.reason_code for request in sessionary_memory.cleanups()] == ["inactive"]


def test_a_timed_out_session_is_resumed_in_time(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """The agent may continue within `grace_ms`, five minutes."""
    session = agent.open_invoice("2026-17", user_id="u1")
    agent.read_invoice(session)
    sessionary_memory.advance(600 + 299)
    agent.pay_invoice(session)
    assert sessionary_memory.view_session(session).state == "Terminated"
    assert sessionary_memory.rejections() == []


def test_clean_up_closes_the_files(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """The processor requests clean-up after a timeout, and judges the agent's answer."""
    session = agent.open_invoice("2026-17", user_id="u1")
    sessionary_memory.advance(601)
    assert agent.open_files == {}
    (request,) = sessionary_memory.cleanups()
    release = sessionary_memory.audit(session.session_id)[-1]
    assert (release.kind, release.actions_done) == ("release", request.actions)


def test_an_update_of_an_older_version_is_rejected(agent: InvoiceAgent, sessionary_memory: InMemoryTransport) -> None:
    """Two processes of the service write; the second one has not seen the update of the first."""
    session = agent.open_invoice("2026-17", user_id="u1")
    helper, _ = memory_client(agent_id="helper", memory=sessionary_memory)
    helpers_session = helper.attach(session.session_id)
    agent.read_invoice(session)
    helpers_session.update_state({"step": "overwritten"})
    assert [rejection.reason for rejection in sessionary_memory.rejections()] == ["version_conflict"]
    helpers_session.sync()
    assert helpers_session.state["step"] == "read"
