"""What a client finds by polls: rejections, time-outs, take-overs and ends; the real fold
judges.
"""

import asyncio
import gc
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers import (
    AsyncSessionClient,
    AuthenticationFailed,
    EventRejected,
    Limits,
    Rejected,
    Session,
    SessionEnded,
    SessionExists,
    SessionFenced,
    SessionLost,
    SessionTimeout,
    Unavailable,
)
from sessionary.producers.client_core import sessions
from sessionary.producers.ports import OnReceipt, OutRecord, SessionView
from sessionary.producers.verdicts.session_watch import SESSIONS_MAX, PollSchedule
from sessionary.schemas.events import SessionPhaseChanged, SessionResumed
from tests.core.producers.judged_memory import JudgedMemory
from tests.support.waiting import wait_until

BRIEF = Limits(model_ms=3_000, tool_ms=3_000, network_ms=3_000, grace_ms=30_000, override=True)


class Reported:
    """What a client's callbacks were notified."""

    def __init__(self) -> None:
        self.rejected: list[EventRejected] = []
        self.timed_out: list[SessionTimeout] = []
        self.fenced: list[SessionFenced] = []
        self.errors: list[Exception] = []

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "on_error": self.errors.append,
            "on_rejected": self.rejected.append,
            "on_timed_out": self.timed_out.append,
            "on_fenced": self.fenced.append,
        }

    @property
    def total(self) -> int:
        return len(self.rejected) + len(self.timed_out) + len(self.fenced) + len(self.errors)


class Scene:
    """A client of an in-memory judge; nothing is asked but by `poll`."""

    def __init__(self) -> None:
        self.kafka, self.reported = JudgedMemory(), Reported()
        self.client = self.kafka.polling_client(**self.reported.callbacks)

    def poll(self) -> None:
        self.client.core.watch.poll_now()


def resume_raw(session: Session) -> str:
    """Send what the judge rejects, past the local checks."""
    return session.emit(SessionResumed(None, None))


def test_a_rejected_event_is_reported_once_and_counted() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    event_id = resume_raw(session)
    session.activity("fine")
    assert scene.client.counters.rejected == 0
    scene.poll()
    scene.poll()
    (rejected,) = scene.reported.rejected
    assert (rejected.session_id, rejected.event_id) == (session.session_id, event_id)
    assert (rejected.event_type, rejected.reason) == ("session_resumed", "illegal_transition")
    assert "session_resumed" in f"{rejected}"
    assert (scene.client.counters.rejected, scene.reported.total) == (1, 1)
    assert not session.lost


def test_another_clients_rejected_event_is_not_reported() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    shared = scene.kafka.client()[0].attach(session.session_id)
    resume_raw(shared)
    assert scene.kafka.outcomes[-1] == "rejected illegal_transition"
    scene.poll()
    assert scene.reported.total == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_a_rejected_creation_is_reported_with_its_reason(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, of_1970 = Scene(), "00000001-0000-7000-8000-000000000000"
    monkeypatch.setattr(sessions, "new_session_id", lambda _now_ms: of_1970)
    session = scene.client.create(user_id="u")
    session.activity("into the void")
    assert scene.kafka.outcomes == ["rejected too_old", "rejected unknown_session"]
    if not keeps:
        scene.kafka.forget_outcomes()
    scene.poll()
    scene.poll()
    assert [(reported.event_type, reported.reason) for reported in scene.reported.rejected] == [
        ("session_created", "too_old" if keeps else "UNKNOWN"),
        ("session_activity", "unknown_session"),
    ]
    assert session.lost
    (error,) = scene.reported.errors
    assert isinstance(error, SessionLost)
    session.activity("goes on")  # what is sent is kept on the rejected topic


def test_a_timed_out_session_is_reported_beats_no_more_and_can_be_resumed() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u", limits=BRIEF)
    session.sync()
    scene.kafka.rig.advance(10_000)
    scene.poll()
    scene.poll()
    (reported,) = scene.reported.timed_out
    assert (reported.session_id, reported.state, reported.reason_code) == (session.session_id, "Timeout", "inactive")
    assert (session.local_state, session.lost) == ("Timeout", False)
    assert not session.core.beats.send_heartbeat()
    session.activity("late")  # what a poll found makes no verb raise
    scene.poll()
    assert [each.reason for each in scene.reported.rejected] == ["late"]
    session.resume()
    session.activity("work")
    assert scene.kafka.outcomes[-1] == "applied"
    assert scene.reported.total == 2


def test_a_session_that_timed_out_for_good_is_lost() -> None:
    scene = Scene()
    with scene.client.session(user_id="u", limits=BRIEF) as session:
        scene.kafka.rig.advance(10_000)
        scene.poll()
        scene.kafka.rig.advance(31_000)
        scene.poll()
        assert [reported.state for reported in scene.reported.timed_out] == ["Timeout", "Terminated"]
        assert (session.local_state, session.lost) == ("Terminated", True)
        session.activity("goes on")
        sent = len(scene.kafka.outcomes)
    assert len(scene.kafka.outcomes) == sent, "an end was sent"
    asked = len(scene.kafka.polled)
    scene.poll()
    assert len(scene.kafka.polled) == asked, "a lost session is asked for"


def test_an_archived_session_is_lost() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u", limits=BRIEF)
    scene.kafka.rig.advance(800_000)
    scene.poll()
    assert session.lost
    (error,) = scene.reported.errors
    assert isinstance(error, SessionEnded)
    assert "is archived" in f"{error}"


def test_a_take_over_is_reported_and_stops_the_heartbeats() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    second, _ = scene.kafka.client(agent_id="agent-2")
    second.attach(session.session_id, take_over=True)
    scene.poll()
    scene.poll()
    (fenced,) = scene.reported.fenced
    assert (fenced.session_id, fenced.holder, fenced.epoch) == (session.session_id, second.producer_id, 2)
    assert session.lost
    assert not session.core.beats.send_heartbeat()
    for verb in (lambda: session.activity("goes on"), session.sync):
        with pytest.raises(SessionFenced):
            verb()
    assert scene.reported.total == 1


def test_the_session_that_took_over_is_not_fenced_and_a_shared_one_is_left_alone() -> None:
    scene = Scene()
    first, _ = scene.kafka.client()
    session = first.session(user_id="u")
    taken = scene.client.attach(session.session_id, take_over=True)
    shared = scene.client.attach(session.session_id)
    scene.poll()
    assert scene.reported.total == 0
    assert not taken.lost
    assert not shared.lost
    taken.pause()
    taken.resume()
    scene.poll()
    assert not shared.lost, "its epoch is an old one, but its client holds the session"
    taken.complete()
    scene.poll()
    assert shared.lost


def test_an_end_by_others_is_asked_to_on_error() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    scene.kafka.client()[0].attach(session.session_id).complete()
    scene.poll()
    (error,) = scene.reported.errors
    assert isinstance(error, SessionEnded)
    assert "was ended (completed)" in f"{error}"
    assert session.lost


def test_an_own_end_is_no_news_and_leaves_nothing() -> None:
    scene = Scene()
    with scene.client.session(user_id="u") as session:
        scene.poll()
    del session
    gc.collect()
    scene.poll()
    assert scene.reported.total == 0
    asked = len(scene.kafka.polled)
    scene.poll()
    assert (len(scene.kafka.polled), scene.client.core.watch._watched) == (asked, [])


def test_a_rejected_last_event_is_reported_although_its_session_is_gone() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    scene.kafka.client()[0].attach(session.session_id).pause()
    session.complete()  # not the end of a paused session
    assert scene.kafka.outcomes[-1] == "rejected invalid_reason"
    del session
    gc.collect()
    scene.poll()
    assert [reported.event_type for reported in scene.reported.rejected] == ["session_terminated"]


def test_what_is_not_judged_yet_is_neither_reported_nor_forgotten() -> None:
    class SlowJudge(JudgedMemory):
        held: list[tuple[OutRecord, OnReceipt | None]] | None = None

        def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
            if self.held is None:
                super().send(record, on_receipt)
            else:
                self.held.append((record, on_receipt))

    kafka, reported = SlowJudge(), Reported()
    client = kafka.polling_client(**reported.callbacks)
    session = client.session(user_id="u")
    client.core.watch.poll_now()
    kafka.held = []
    resume_raw(session)
    client.core.watch.poll_now()
    assert reported.total == 0
    held, kafka.held = kafka.held, None
    for each in held:
        kafka.send(*each)
    client.core.watch.poll_now()
    assert [each.event_type for each in reported.rejected] == ["session_resumed"]


def test_a_verdict_that_a_verb_waits_for_is_reported_once() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    with pytest.raises(Rejected):
        session.resume()
    assert [reported.event_type for reported in scene.reported.rejected] == ["session_resumed"]
    scene.poll()
    assert (scene.reported.total, scene.client.counters.rejected) == (1, 1)


def test_sync_tells_what_it_finds() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u", limits=BRIEF)
    resume_raw(session)
    scene.kafka.rig.advance(10_000)
    assert session.sync().state == "Timeout"
    assert [reported.event_type for reported in scene.reported.rejected] == ["session_resumed"]
    assert [reported.reason_code for reported in scene.reported.timed_out] == ["inactive"]
    scene.poll()
    assert scene.reported.total == 2
    fenced = scene.client.session(user_id="u")
    scene.kafka.client()[0].attach(fenced.session_id, take_over=True)
    for _ in range(2):
        with pytest.raises(SessionFenced):
            fenced.sync()
    assert (len(scene.reported.fenced), fenced.lost) == (1, True)


def test_a_poll_before_a_loser_of_a_creation_knows_it_reports_nothing() -> None:
    kafka, reported = JudgedMemory(), Reported()
    kafka.client()[0].session(user_id="u", session_id="thread-42")
    client = kafka.polling_client(agent_id="loser", **reported.callbacks)
    fetch = kafka.fetch_session

    def poll_and_fetch(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        client.core.watch.poll_now()
        return fetch(session_id, after, timeout_s)

    kafka.fetch_session = poll_and_fetch  # type: ignore[method-assign]
    with pytest.raises(SessionExists):
        client.session(user_id="u", session_id="thread-42")
    client.core.watch.poll_now()
    assert (reported.total, client.counters.rejected) == (0, 0)
    resume_raw(client.session(user_id="u", session_id="thread-43"))
    client.core.watch.poll_now()
    assert [each.event_type for each in reported.rejected] == ["session_resumed"], "its own session is watched"


def test_without_a_callback_on_error_is_notified() -> None:
    kafka, errors = JudgedMemory(), list[Exception]()
    client = kafka.polling_client(on_error=errors.append)
    session = client.session(user_id="u")
    resume_raw(session)
    client.core.watch.poll_now()
    (error,) = errors
    assert isinstance(error, EventRejected)
    with pytest.raises(Rejected):
        session.resume()
    assert len(errors) == 1, "the verb has raised it"


def test_a_callback_that_raises_ends_nothing() -> None:
    def fail(rejected: EventRejected) -> None:
        seen.append(rejected)
        raise RuntimeError("a bug of the user's")

    kafka, seen, errors = JudgedMemory(), list[EventRejected](), list[Exception]()

    def report(error: Exception) -> None:
        errors.append(error)
        raise RuntimeError("one more")

    client = kafka.polling_client(poll_interval_s=0.01, on_error=report, on_rejected=fail)
    session = client.session(user_id="u")
    for n in range(1, 4):
        resume_raw(session)
        wait_until(lambda n=n: len(seen) == n, 60, "the rejection to be reported")  # type: ignore[misc]
    wait_until(lambda: len(errors) == 3, 60, "what the callback raised to be reported")
    assert [f"{error}" for error in errors] == ["a bug of the user's"] * 3
    client.close()


def test_a_token_that_is_rejected_is_reported_at_once_and_once() -> None:
    kafka, errors = JudgedMemory(), list[Exception]()
    kafka.poll_error = AuthenticationFailed("control API: the token is for acme, the client says globex")
    client = kafka.polling_client(poll_interval_s=0.01, on_error=errors.append)
    watched = client.session(user_id="u")
    wait_until(lambda: len(kafka.polled) >= 4, 60, "several polls")
    assert [f"{error}" for error in errors] == [f"{kafka.poll_error}"]
    kafka.poll_error = None
    session = client.session(user_id="u")
    wait_until(lambda: any(len(known) == 2 for known in kafka.polled), 60, "polls that go on")
    session.close()
    watched.close()
    client.close()


def test_a_control_api_that_does_not_answer_is_reported_once_after_several_polls() -> None:
    kafka, errors = JudgedMemory(), list[Exception]()
    kafka.poll_error = Unavailable("the control API is away", 1.0)
    client = kafka.polling_client(poll_interval_s=0.01, on_error=errors.append)
    wait_until(lambda: len(kafka.polled) >= 5, 60, "several polls")
    assert errors == [kafka.poll_error]
    client.close()


def test_many_sessions_are_asked_for_in_several_requests() -> None:
    scene = Scene()
    sessions = [scene.client.create(user_id="u") for _ in range(SESSIONS_MAX + 1)]
    scene.kafka.polled.clear()
    scene.poll()
    assert [len(known) for known in scene.kafka.polled] == [SESSIONS_MAX, 1]
    assert scene.reported.total == 0
    assert len(sessions) == SESSIONS_MAX + 1


def test_events_are_remembered_only_until_they_are_judged() -> None:
    scene = Scene()
    session = scene.client.session(user_id="u")
    for _ in range(50):
        session.emit(SessionPhaseChanged("updating"))
    assert session.core.view.sent_events is not None
    assert len(session.core.view.sent_events) > 50
    scene.poll()
    assert len(session.core.view.sent_events) == 0
    assert len(scene.reported.rejected) == 16, "the processor remembers the last 16 of a session"


def test_nothing_is_asked_for_without_a_control_api_or_if_it_is_turned_off() -> None:
    kafka = JudgedMemory()
    client, errors = kafka.client()
    session = client.session(user_id="u")
    resume_raw(session)
    client.core.watch.poll_now()
    assert (kafka.polled, errors, session.core.view.sent_events) == ([], [], None)


def test_the_asyncio_face_has_the_callbacks_and_lost() -> None:
    kafka, reported = JudgedMemory(), Reported()

    async def story() -> bool:
        client = AsyncSessionClient.wrap(kafka.polling_client(**reported.callbacks))
        async with client, client.session(user_id="u") as session:
            kafka.client()[0].attach(session.session_id, take_over=True)
            client.sync_client.core.watch.poll_now()
            return session.lost

    assert asyncio.run(story())
    assert len(reported.fenced) == 1


def ask_until(schedule: PollSchedule, taken_at_s: float, chances: random.Random) -> float:
    """Return when a client that asks by `schedule`, from 0 on, finds a take-over."""
    now_s = 0.0
    while now_s < taken_at_s:
        now_s += schedule.pause_s(chances.random())
    return now_s


@given(
    interval_s=st.floats(0.5, 3_600),
    beats_s=st.lists(st.floats(0.5, 60), min_size=1, max_size=5),
    taken_at_s=st.floats(0, 1_000),
    seed=st.integers(0, 1_000),
)
def test_a_take_over_is_learnt_before_the_next_heartbeat(
    interval_s: float, beats_s: list[float], taken_at_s: float, seed: int
) -> None:
    schedule = PollSchedule(interval_s)
    for each_s in beats_s:
        schedule.note_beats(each_s)
    learnt_s = ask_until(schedule, taken_at_s, random.Random(seed)) - taken_at_s
    assert learnt_s <= min(*beats_s, beats_s[0]) * 0.81


def test_sessions_that_beat_seldom_are_asked_about_as_often_as_is_set() -> None:
    schedule = PollSchedule(5.0)
    assert [schedule.pause_s(chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([4.0, 5.0, 6.0])
    assert not schedule.note_beats(10.0)
    assert [schedule.pause_s(chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([4.0, 5.0, 6.0])


def test_a_session_that_beats_often_shortens_the_pause_while_it_beats() -> None:
    schedule = PollSchedule(5.0)
    assert schedule.note_beats(1.0)
    assert not schedule.note_beats(2.0)
    assert schedule.pause_s(1.0) == pytest.approx(0.8)
    schedule.forget_beats()
    schedule.note_beats(2.0)
    assert schedule.pause_s(1.0) == pytest.approx(1.6)


def test_a_control_api_without_an_answer_is_asked_ever_less_often() -> None:
    schedule = PollSchedule(5.0)
    pauses = []
    for failures in range(8):
        schedule.failures = failures
        pauses.append(schedule.pause_s(0.5))
    assert pauses == pytest.approx([5, 10, 20, 40, 60, 60, 60, 60])
    schedule.failures = 10_000
    assert schedule.pause_s(0.5) == 60


def test_a_take_over_is_reported_before_the_next_heartbeat_although_polls_are_rare() -> None:
    kafka, fenced = JudgedMemory(), list[SessionFenced]()
    client = kafka.polling_client(poll_interval_s=3_600.0, on_fenced=fenced.append)
    with client:
        session = client.session(user_id="u", limits=BRIEF)
        kafka.client()[0].attach(session.session_id, take_over=True)
        wait_until(lambda: fenced, 60, "the client to be reported")
    assert session.lost
    assert {len(known) for known in kafka.polled} <= {0, 1}
