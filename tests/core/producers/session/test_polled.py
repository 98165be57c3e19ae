"""What a session knows of verdicts, and when its callbacks are called."""

import threading
from collections.abc import Callable

import pytest

from sessionary.producers import Limits, ProducerConflict, Session, SessionClient, SessionFenced, Unavailable
from sessionary.producers.ports import SessionView
from sessionary.producers.session import polled
from sessionary.producers.session.view import SessionLock
from sessionary.schemas.events import SessionResumed
from tests.core.producers.judged_memory import JudgedMemory, copy_id
from tests.support.waiting import wait_until

BRIEF = Limits(model_ms=3_000, tool_ms=3_000, network_ms=3_000, grace_ms=30_000, override=True)


class UnlockedCallback:
    """A callback that hands over to another thread, which uses the session, and waits for it."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.kinds: list[str] = []
        self.waited: list[bool] = []  # whether that thread came to its end

    def __call__(self, finding: Exception) -> None:
        assert self.session is not None
        thread = threading.Thread(target=self.session.lifecycle.detach, daemon=True)
        thread.start()
        thread.join(60)
        self.kinds.append(type(finding).__name__)
        self.waited.append(not thread.is_alive())


def new_scene() -> tuple[JudgedMemory, SessionClient, UnlockedCallback]:
    kafka, reported = JudgedMemory(), UnlockedCallback()
    client = kafka.polling_client(on_error=reported, on_rejected=reported, on_timed_out=reported, on_fenced=reported)
    return kafka, client, reported


def find_by_sync(session: Session) -> None:
    session.sync()


def find_by_resume(session: Session) -> None:
    session.pause()
    session.resume()


@pytest.mark.parametrize("find", [find_by_sync, find_by_resume])
def test_a_rejection_that_a_verb_finds_is_reported_without_the_lock(find: Callable[[Session], None]) -> None:
    _, client, reported = new_scene()
    session = reported.session = client.session(user_id="u")
    session.emit(SessionResumed(None, None))  # rejected: the session is Active
    find(session)
    assert (reported.kinds, reported.waited) == (["EventRejected"], [True])


def test_a_time_out_that_a_verb_finds_is_reported_without_the_lock() -> None:
    kafka, client, reported = new_scene()
    session = reported.session = client.session(user_id="u", limits=BRIEF)
    kafka.rig.advance(10_000)
    session.sync()
    assert (reported.kinds, reported.waited) == (["SessionTimeout"], [True])


def test_a_take_over_that_a_verb_finds_is_reported_without_the_lock() -> None:
    kafka, client, reported = new_scene()
    session = reported.session = client.session(user_id="u")
    kafka.client()[0].attach(session.session_id, take_over=True)
    with pytest.raises(SessionFenced):
        session.sync()
    assert (reported.kinds, reported.waited) == (["SessionFenced"], [True])


def test_a_copied_process_is_reported_without_the_lock() -> None:
    kafka, client, reported = new_scene()
    first, _ = kafka.client()
    copy_id(client, first)
    reported.session = client.attach(first.session(user_id="u").session_id)
    reported.session.activity("rejected")
    reported.session.sync()
    assert ProducerConflict.__name__ in reported.kinds
    assert set(reported.waited) == {True}


def test_what_a_late_verdict_finds_is_reported_without_the_lock() -> None:
    kafka, client, reported = new_scene()
    session = reported.session = client.session(user_id="u")
    session.emit(SessionResumed(None, None))
    session.pause()
    answer = kafka.fetch_session

    def stay_silent(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        raise Unavailable("the control API is away", 1.0)

    kafka.fetch_session = stay_silent  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        session.resume()
    session.close()
    kafka.fetch_session = answer  # type: ignore[method-assign]
    wait_until(lambda: reported.waited, 60, "the notification of the late verdict")
    assert reported.waited == [True] * len(reported.waited)
    client.close()


def test_a_take_over_is_found_although_a_heartbeat_is_being_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, client, reported = new_scene()
    reported.session = session = client.session(user_id="u")
    second, _ = kafka.client(agent_id="agent-2")
    second.attach(session.session_id, take_over=True)
    entered, leave, acquire = threading.Event(), threading.Event(), SessionLock.acquire_within

    def send_heartbeat() -> None:
        with session.core.lock:
            entered.set()
            assert leave.wait(60)

    def acquire_meanwhile(lock: SessionLock, seconds: float) -> bool:
        leave.set()
        return acquire(lock, seconds)

    monkeypatch.setattr(polled, "_PATIENCE_S", 60.0)  # on a busy machine
    monkeypatch.setattr(SessionLock, "acquire_within", acquire_meanwhile)
    sender = threading.Thread(target=send_heartbeat)
    sender.start()
    assert entered.wait(60)
    client.core.watch.poll_now()
    sender.join(60)
    assert session.lost
    assert reported.kinds == ["SessionFenced"]


def test_a_rejection_found_while_a_verb_runs_ends_what_was_certain() -> None:
    kafka, client, reported = new_scene()
    reported.session = session = client.session(user_id="u")
    session.core.emitter.epoch = 9  # what follows is rejected
    session.pause()
    session.core.emitter.epoch = 1
    assert kafka.outcomes[-1].startswith("rejected")
    entered, leave = threading.Event(), threading.Event()

    def run_verb() -> None:
        with session.core.lock:
            entered.set()
            assert leave.wait(60)

    verb = threading.Thread(target=run_verb)
    verb.start()
    assert entered.wait(60)
    reported.session = client.create(user_id="another")
    client.core.watch.poll_now()
    leave.set()
    verb.join(60)
    assert reported.kinds == ["EventRejected"]
    session.activity("the session is Active still")
    assert kafka.outcomes[-1] == "applied"
