"""Heartbeats: for whom, how often, and that they stop."""

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import AsyncSession, AsyncSessionClient, Invalid, Limits, ProducerSettings, Session
from sessionary.producers.session.heartbeat import Heartbeats, heartbeat_interval_s
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import Heartbeat
from tests.core.producers.beating_client import beating_client
from tests.support.module_time import set_module_time
from tests.support.waiting import wait_until

BEAT_S = 0.005


def fast() -> ProducerSettings:
    return ProducerSettings.from_env({}, heartbeat_interval_s=BEAT_S)


def test_the_interval_is_never_more_than_a_sixth_of_the_budget() -> None:
    default = Limits()
    assert heartbeat_interval_s(default, 10.0) == 10.0
    short = default._replace(model_ms=1_500, tool_ms=1_000, network_ms=500)
    assert heartbeat_interval_s(short, 10.0) == pytest.approx(0.5)
    assert heartbeat_interval_s(short, 0.1) == 0.1


@pytest.mark.parametrize("end", ["close", "detach", "pause", "raise", "client", "forget"])
def test_no_beat_follows_the_end(end: str) -> None:
    client, memory = beating_client(fast())
    s = client.session(user_id="u")
    wait_until(lambda: len(memory.heartbeats()) >= 3, 60, "three beats")
    if end == "raise":
        with pytest.raises(ValueError, match="x"), s:
            raise ValueError("x")
    elif end == "client":
        client.close()
    elif end == "forget":
        del s
        gc.collect()
    else:
        (s.lifecycle.detach if end == "detach" else getattr(s, end))()
    sent = len(memory.heartbeats())
    other = client.session(user_id="other") if end != "client" else None
    if other is not None:  # ten beats of another session: the timer lives, and beats for that one alone
        wait_until(
            lambda: sum(beat.envelope.session_id == other.session_id for beat in memory.heartbeats()) >= 10, 10, "beats"
        )
        # A beat that was on its way when the session was forgotten may still be counted.
        slack = 1 if end == "forget" else 0
        assert sum(beat.envelope.session_id != other.session_id for beat in memory.heartbeats()) <= sent + slack
    else:
        assert len(memory.heartbeats()) == sent
    client.close()


def test_the_end_of_a_client_waits_for_no_beat_that_is_minutes_away() -> None:
    client, _memory = beating_client(ProducerSettings())
    beats, far = client.core.heartbeats, Counted()
    assert isinstance(beats, Heartbeats)
    beats.start_heartbeat(far.send, 3_600.0)
    timer = beats._thread
    assert timer is not None
    client.close(60.0)
    assert not timer.is_alive()


def beats_of(memory: InMemoryTransport, session_id: str) -> int:
    return sum(beat.envelope.session_id == session_id for beat in memory.heartbeats())


def run_in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_short_lived_thread_that_calls_a_verb_ends_no_heartbeats() -> None:
    client, memory = beating_client(fast())
    with client, client.session(user_id="u") as s:
        run_in_thread(lambda: s.activity("tool"))
        before = beats_of(memory, s.session_id)
        wait_until(lambda: beats_of(memory, s.session_id) >= before + 10, 60, "beats after the tool's thread")


def test_a_session_goes_on_when_the_thread_that_created_it_has_died() -> None:
    client, memory = beating_client(fast())
    kept: list[Session] = []
    with client:
        run_in_thread(lambda: kept.append(client.session(user_id="u")))
        before = beats_of(memory, kept[0].session_id)
        wait_until(lambda: beats_of(memory, kept[0].session_id) >= before + 10, 60, "beats of the process")


@pytest.mark.parametrize("how", ["session", "create", "attach"])
def test_bound_to_its_thread_a_session_is_not_kept_alive_after_it_by_any_verb(how: str) -> None:
    client, memory = beating_client(fast())
    kept: list[Session] = []
    begun = client.session(user_id="u")
    begun.lifecycle.detach()

    def agent() -> None:
        if how == "attach":
            kept.append(client.attach(begun.session_id, beats_with="thread"))
        elif how == "create":
            kept.append(client.create(user_id="u", beats_with="thread").start())
        else:
            kept.append(client.session(user_id="u", beats_with="thread"))
        wait_until(lambda: beats_of(memory, kept[0].session_id) >= 2, 60, "two beats")

    with client:
        run_in_thread(agent)
        s = kept[0]
        s.activity("from another thread")
        run_in_thread(lambda: s.activity("and another"))
        sent = beats_of(memory, s.session_id)
        other = client.session(user_id="other")
        wait_until(lambda: beats_of(memory, other.session_id) >= 10, 60, "beats of another session")
        assert beats_of(memory, s.session_id) <= sent + 1
        assert s.local_state == "Active"


def test_bound_to_a_task_the_beats_end_when_it_is_done() -> None:
    async def main() -> None:
        client, memory = beating_client(fast())
        asynchronous = AsyncSessionClient.wrap(client)
        begun = client.session(user_id="u")

        async def open_all() -> list[AsyncSession]:
            entered = asynchronous.session(user_id="u", beats_with="task")
            await entered.__aenter__()
            created = await (await asynchronous.create(user_id="u", beats_with="task")).start()
            attached = await asynchronous.attach(begun.session_id, beats_with="task")
            begun.lifecycle.detach()
            async with asyncio.timeout(60):
                for session in (entered, created, attached):
                    while beats_of(memory, session.session_id) < 2:
                        await asyncio.sleep(BEAT_S)
            return [entered, created, attached]

        kept = await asyncio.create_task(open_all())
        sent = [beats_of(memory, session.session_id) for session in kept]
        other = client.session(user_id="other")
        async with asyncio.timeout(60):
            while beats_of(memory, other.session_id) < 10:
                await asyncio.sleep(BEAT_S)
        for session, before in zip(kept, sent, strict=True):
            assert beats_of(memory, session.session_id) <= before + 1
        await asynchronous.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("beats_with", "reported"), [("task", "outside an asyncio task"), ("fibre", "use 'process', 'thread' or 'task'")]
)
def test_what_cannot_be_bound_is_refused_before_anything_is_sent(beats_with: Any, reported: str) -> None:
    client, memory = memory_client()
    with client, pytest.raises(Invalid, match=reported):
        client.session(user_id="u", beats_with=beats_with)
    assert memory.events() == []


def test_a_forked_child_beats_for_its_own_sessions_only(tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    beats = Heartbeats(lambda error: None)
    parents, own = Counted(), Counted()
    beats.start_heartbeat(parents.send, BEAT_S)
    wait_until(lambda: parents.count > 2, 60, "beats of the parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = parents.count
            beats.start_heartbeat(own.send, BEAT_S)
            wait_until(lambda: own.count > 10, 60, "beats of the child")
            reported.write_text(str(parents.count - before))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reported.read_text() == "0"
    beats.close(5.0)


def test_ended_sessions_leave_nothing_in_the_timer() -> None:
    beats = Heartbeats(lambda error: None)
    live, ended = Counted(), Counted()
    beats.start_heartbeat(live.send, 3_600.0)
    for _ in range(10_000):
        beats.stop_heartbeat(beats.start_heartbeat(ended.send, 3_600.0))
    assert len(beats._live) == 1
    assert len(beats._due) < 100
    beats.close(5.0)


def test_many_sessions_are_spread_over_the_interval() -> None:
    beats = Heartbeats(lambda error: None)
    sessions = [Counted() for _ in range(1_000)]
    for session in sessions:
        beats.start_heartbeat(session.send, 3_600.0)
    begun_s = min(due.at_s for due in beats._due)
    quarters = Counter(int((due.at_s - begun_s) // 900.0) for due in beats._due)
    assert all(200 <= quarters[quarter] <= 300 for quarter in range(4))
    beats.close(5.0)
    fast_beats = Heartbeats(lambda error: None)
    for session in sessions:
        fast_beats.start_heartbeat(session.send, 0.5)
    wait_until(lambda: all(session.count >= 2 for session in sessions), 60, "two beats each")
    fast_beats.close(5.0)


class Timer:
    """Heartbeats without a thread, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place_of: Callable[[bytes], int | None]) -> None:
        self.now_s = 0.0
        self.sent: list[bytes] = []
        monkeypatch.setattr(Heartbeats, "_run_timer", lambda _: None)
        set_module_time(monkeypatch, "sessionary.producers.session.heartbeat", monotonic=lambda: self.now_s)
        self.beats = Heartbeats(lambda error: None, place_of)

    def send_until(self, now_s: float) -> None:
        """Send what is due until then."""
        while self.beats._due and self.beats._due[0].at_s <= now_s:
            self.now_s = max(self.now_s, self.beats._due[0].at_s)
            assert self.beats._send_due()
        self.now_s = now_s


class Keyed:
    """Notes its key with each heartbeat; `at_beat` is called then."""

    def __init__(self, timer: Timer, key: bytes) -> None:
        self.timer = timer
        self.key = key
        self.at_beat: Callable[[], object] = lambda: None
        self.token = timer.beats.start_heartbeat(self.send, 10.0, key)

    def send(self) -> bool:
        self.at_beat()
        self.timer.sent.append(self.key)
        return True


def test_what_is_due_together_goes_one_partition_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions: list[int] = []
    timer = Timer(monkeypatch, lambda key: key[0] % partitions[0] if partitions else None)
    kept = [Keyed(timer, bytes((number,))) for number in range(200)]
    timer.send_until(20.0)  # before the number of partitions is known
    assert set(Counter(timer.sent).values()) <= {2, 3}
    assert len(set(timer.sent)) == len(kept)
    partitions.append(4)
    timer.sent.clear()
    sent: list[list[int]] = []
    for _ in range(200):
        if sum(map(len, sent)) == 200:
            break
        timer.send_until(timer.beats._due[0].at_s)
        sent.append([key[0] % 4 for key in timer.sent])
        timer.sent.clear()
    assert sum(map(len, sent)) == 200
    assert all(places == sorted(places) for places in sent)
    assert len(sent) <= 51  # a fiftieth of the interval, and what began between two


def test_the_queue_holds_sessions_that_beat_together_as_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch, lambda _: 0)
    kept = [Keyed(timer, b"%d" % number) for number in range(3_000)]
    for end_s in (10.0, 20.0, 100.0):
        timer.send_until(end_s)
        assert len(timer.beats._due) <= 51
        assert timer.beats._queued == 3_000
    beats = Counter(timer.sent)
    assert {9, 10, 11} >= {beats[one.key] for one in kept}, "every ten seconds in a hundred"


def test_a_session_that_is_stopped_while_it_beats_beats_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch, lambda _: 0)
    first, second = Keyed(timer, b"first"), Keyed(timer, b"second")
    timer.send_until(30.0)
    first.at_beat = lambda: timer.beats.stop_heartbeat(first.token)
    timer.send_until(40.0)
    timer.sent.clear()
    timer.send_until(80.0)
    assert timer.sent == [b"second"] * 4
    assert list(timer.beats._live) == [second.token]
    timer.beats.close(0.0)
    assert timer.beats._due == []


class Counted:
    """Counts its heartbeats."""

    count = 0

    def send(self) -> bool:
        self.count += 1
        return True


def test_heartbeats_say_the_last_number_sent() -> None:
    client, memory = memory_client()
    with client:
        s = client.session(user_id="u")
        s.activity("x")
        s.core.beats.send_heartbeat()
        assert memory.heartbeats()[-1].payload == Heartbeat(5)
        assert memory.heartbeats()[-1].envelope.epoch == s.epoch


def test_one_failing_session_does_not_end_the_beating_of_others() -> None:
    errors: list[Exception] = []
    beats = Heartbeats(errors.append)

    class Bad:
        def send(self) -> bool:
            raise RuntimeError("bad")

    bad, good = Bad(), Counted()
    beats.start_heartbeat(bad.send, BEAT_S)
    beats.start_heartbeat(good.send, BEAT_S)
    wait_until(lambda: good.count > 3 and len(errors) > 1, 60, "beats and errors")
    beats.close(5.0)
    beats.close(5.0)
    assert all(str(error) == "bad" for error in errors)
