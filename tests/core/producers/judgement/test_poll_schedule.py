"""When a client asks about its sessions: in fake time, and that it does so."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers import Limits, SessionFenced
from sessionary.producers.judgement.poll_schedule import PollSchedule
from tests.core.producers.judged_memory import JudgedMemory
from tests.support.waiting import wait_until

BRIEF = Limits(model_ms=3_000, tool_ms=3_000, network_ms=3_000, grace_ms=30_000, override=True)


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


def test_a_take_over_is_told_before_the_next_heartbeat_although_polls_are_rare() -> None:
    kafka, fenced = JudgedMemory(), list[SessionFenced]()
    client = kafka.polling_client(poll_interval_s=3_600.0, on_fenced=fenced.append)
    with client:
        session = client.session(user_id="u", limits=BRIEF)
        kafka.client()[0].attach(session.session_id, take_over=True)
        wait_until(lambda: fenced, 60, "the client to be told")
    assert session.lost
    assert {len(known) for known in kafka.polled} <= {0, 1}
