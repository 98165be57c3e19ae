"""What a client's callbacks are notified while a test moves the clock."""

import gc
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.producers import (
    EventRejected,
    Limits,
    ProducerSettings,
    Rejected,
    SessionClient,
    SessionFenced,
    SessionLost,
    SessionTimeout,
    Unavailable,
)
from sessionary.producers.client_core import sessions
from sessionary.producers.control.http_control import parse_changes
from sessionary.producers.ports import KnownSession
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionResumed
from sessionary.schemas.ids import SessionKey
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.session_poll import SessionQuestion, find_difference
from sessionary.stream_processors.core.model import RecentVerdicts

IDLE = Limits(idle_ms=120_000, grace_ms=30_000)


class Reported:
    """What a client's callbacks were notified, and when."""

    def __init__(self) -> None:
        self.findings: list[Exception] = []
        self.at_ms: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.memory: InMemoryTransport | None = None

    def __call__(self, finding: Exception) -> None:
        assert self.memory is not None
        self.findings.append(finding)
        self.at_ms.append(self.memory.now_ms)
        self.threads.add(threading.current_thread())

    @property
    def kinds(self) -> list[type[Exception]]:
        return [type(finding) for finding in self.findings]


def reported_client(**arguments: Any) -> tuple[SessionClient, InMemoryTransport, Reported]:
    reported = Reported()
    client, memory = memory_client(
        on_error=reported, on_rejected=reported, on_timed_out=reported, on_fenced=reported, **arguments
    )
    reported.memory = memory
    return client, memory, reported


def test_a_rejected_event_is_reported_once_when_the_clock_is_moved() -> None:
    client, memory, reported = reported_client()
    with client:
        session = client.session(user_id="u")
        event_id = session.emit(SessionResumed(None, None))
        assert reported.findings == []
        memory.advance(0)
        memory.advance(1)
        (rejected,) = reported.findings
        assert isinstance(rejected, EventRejected)
        assert (rejected.event_id, rejected.reason) == (event_id, "illegal_transition")
        assert client.counters.rejected == 1
        assert reported.threads == {threading.current_thread()}


def test_a_time_out_is_reported_at_its_time_and_the_end_after_it() -> None:
    client, memory, reported = reported_client()
    with client:
        began_ms = memory.now_ms
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(1_000)
        assert reported.kinds == [SessionTimeout, SessionTimeout]
        assert [getattr(found, "state", None) for found in reported.findings] == ["Timeout", "Terminated"]
        assert reported.at_ms == [began_ms + 120_000, began_ms + 150_000]
        assert (session.local_state, session.lost) == ("Terminated", True)


def test_a_session_that_was_reported_to_have_timed_out_beats_no_more_and_its_block_ends_nothing() -> None:
    client, memory, _ = reported_client()
    with client:
        with client.session(user_id="u", limits=IDLE) as session:
            memory.advance(130)
            assert session.local_state == "Timeout"
            assert len(memory.heartbeats()) == 12
        assert memory.rejections() == []
        assert memory.rejected_records() == []


def test_a_callback_may_use_the_session_but_not_move_the_clock() -> None:
    def resume(timed_out: SessionTimeout) -> None:
        session.resume()
        memory.advance(1)  # a callback must not: this is reported

    errors: list[Exception] = []
    client, memory = memory_client(on_error=errors.append, on_timed_out=resume)
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(130)
        assert (session.local_state, session.epoch) == ("Active", 2)
        assert memory.view_session(session).state == "Active"
        assert [type(error) for error in errors] == [RuntimeError]


def test_a_take_over_is_reported() -> None:
    client, memory, reported = reported_client()
    second, _ = memory_client(memory=memory)
    with client, second:
        session = client.session(user_id="u")
        second.attach(session.session_id, take_over=True)
        memory.advance(0)
        assert reported.kinds == [SessionFenced]
        assert session.lost


def test_a_rejected_creation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    client, memory, reported = reported_client()
    of_1970 = "00000001-0000-7000-8000-000000000000"
    monkeypatch.setattr(sessions, "new_session_id", lambda _now_ms: of_1970)
    with client:
        session = client.create(user_id="u")
        memory.advance(0)
        assert reported.kinds == [EventRejected, SessionLost]
        assert session.lost


def test_a_creation_that_a_verb_waits_for_raises_why_it_was_rejected() -> None:
    client, memory, reported = reported_client()
    with client:
        with pytest.raises(Rejected, match="session_created was rejected: too_old"):
            client.create(user_id="u", session_id="00000001-0000-7000-8000-000000000000")
        memory.advance(0)
        assert reported.kinds == []


def test_the_client_of_a_tenant_is_notified_too() -> None:
    client, memory, reported = reported_client()
    with client, client.for_tenant("globex") as globex:
        globex.session(user_id="u").emit(SessionResumed(None, None))
        memory.advance(0)
        assert reported.kinds == [EventRejected]


def test_a_client_that_asks_nothing_is_notified_of_nothing() -> None:
    client, memory, reported = reported_client(settings=ProducerSettings.from_env({}, poll_interval_s=0.0))
    with client:
        session = client.session(user_id="u", limits=IDLE)
        session.emit(SessionResumed(None, None))
        memory.advance(130)
        assert (reported.findings, session.local_state) == ([], "Active")


def test_a_client_that_is_closed_or_dropped_is_notified_of_nothing() -> None:
    client, memory, reported = reported_client()
    session = client.session(user_id="u", limits=IDLE)
    client.close()
    memory.advance(130)
    dropped, _ = memory_client(memory=memory, on_error=reported)
    dropped.session(user_id="u", limits=IDLE)
    del dropped
    gc.collect()
    memory.advance(130)
    assert (reported.findings, session.local_state) == ([], "Active")


def test_while_the_control_api_is_away_nothing_is_reported_and_later_all() -> None:
    client, memory, reported = reported_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.silence_control(silent=True)
        memory.advance(130)
        assert session.local_state == "Active"
        with pytest.raises(Unavailable):
            memory.poll_sessions([], 1.0)
        memory.silence_control(silent=False)
        memory.advance(0)
        assert reported.kinds == [SessionTimeout]


def leave_alone(client: SessionClient, memory: InMemoryTransport) -> str:
    return client.session(user_id="u").session_id


def refuse_an_event(client: SessionClient, memory: InMemoryTransport) -> str:
    session = client.session(user_id="u")
    session.emit(SessionResumed(None, None))
    return session.session_id


def time_out(client: SessionClient, memory: InMemoryTransport) -> str:
    session_id = client.session(user_id="u", limits=IDLE).session_id
    memory.advance(121)
    return session_id


def end_session(client: SessionClient, memory: InMemoryTransport) -> str:
    with client.session(user_id="u") as session:
        return session.session_id


def archive_session(client: SessionClient, memory: InMemoryTransport) -> str:
    session_id = client.session(user_id="u", limits=IDLE).session_id
    memory.advance(1_000)
    return session_id


@pytest.mark.parametrize("known_state", ["Active", "Timeout", "Terminated"])
@pytest.mark.parametrize(("epoch", "rejected_after", "last_seq"), [(1, -1, 1), (2, 99, 99), (1, 99, 99)])
@pytest.mark.parametrize("holder", [None, "another"])
@pytest.mark.parametrize("story", [leave_alone, refuse_an_event, time_out, end_session, archive_session])
def test_the_memory_answers_a_poll_as_the_control_api_does(
    story: Callable[[SessionClient, InMemoryTransport], str],
    known_state: str,
    epoch: int,
    rejected_after: int,
    holder: str | None,
    last_seq: int,
) -> None:
    memory = InMemoryTransport(partitions=1)
    client, _ = memory_client(memory=memory)
    with client:
        session_id = story(client, memory)
        key = SessionKey("acme", session_id)
        own = client.producer_id, last_seq, 0 if last_seq == 1 else 3
        question = SessionQuestion(key, 0, known_state, epoch, holder, rejected_after, None, {}, *own)
        owner: Any = SimpleNamespace(state=memory.core.judge._states[0], recent_verdicts=RecentVerdicts())
        expected = find_difference(owner, question, Caller(tenant="acme", principal="acme"))
        known = KnownSession(session_id, known_state, epoch, holder, rejected_after, None, *own)
        found = memory.poll_sessions([known], 1.0)
        positions = {"0": memory.core.judge._states[0].position.next_offset}
        answer = parse_changes({"positions": positions, "sessions": [] if expected is None else [expected]})
        assert (dict(found.positions), list(found.sessions)) == (dict(answer.positions), list(answer.sessions))
