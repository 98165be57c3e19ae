"""Heartbeats: for whom, how often, and that they stop."""

import gc
import threading
import time

import pytest

from sessionary.producers import Limits, ProducerSettings
from sessionary.producers.session.heartbeat import Heartbeats, heartbeat_interval_s
from sessionary.producers.testing import memory_client
from tests.core.producers.beating_client import beating_client
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
    wait_until(lambda: len(memory.heartbeats()) >= 3, 10, "three beats")
    if end == "raise":
        with pytest.raises(ValueError, match="x"), s:
            raise ValueError("x")
    elif end == "client":
        client.close()
    elif end == "forget":
        del s
        gc.collect()
    else:
        getattr(s, end)()
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


def test_the_end_of_a_client_takes_less_than_100_ms_though_a_beat_is_hours_away() -> None:
    took = []
    for _ in range(5):
        client, _memory = memory_client()
        client.session(user_id="u")
        begun = time.perf_counter()
        client.close()
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.1


def test_a_session_whose_thread_died_is_not_kept_alive() -> None:
    client, memory = beating_client(fast())
    kept = []

    def agent() -> None:
        kept.append(client.session(user_id="u"))
        wait_until(lambda: len(memory.heartbeats()) >= 2, 10, "two beats")

    thread = threading.Thread(target=agent)
    thread.start()
    thread.join()
    sent = len(memory.heartbeats())
    other = client.session(user_id="other")
    wait_until(lambda: sum(b.envelope.session_id == other.session_id for b in memory.heartbeats()) >= 10, 10, "beats")
    assert sum(b.envelope.session_id != other.session_id for b in memory.heartbeats()) <= sent + 1
    before = len(memory.heartbeats())
    kept[0].activity("back")  # another thread takes it up
    wait_until(
        lambda: any(b.envelope.session_id == kept[0].session_id for b in memory.heartbeats()[before:]),
        10,
        "a beat again",
    )
    client.close()


def test_heartbeats_say_the_last_number_sent() -> None:
    client, memory = memory_client()
    with client:
        s = client.session(user_id="u")
        s.activity("x")
        s._send_heartbeat()
        assert memory.heartbeats()[-1].payload == (5,)
        assert memory.heartbeats()[-1].envelope.epoch == s.epoch


def test_one_failing_session_does_not_end_the_beating_of_others() -> None:
    errors: list[Exception] = []
    beats = Heartbeats(errors.append)

    class Bad:
        def send(self) -> bool:
            raise RuntimeError("bad")

    class Good:
        count = 0

        def send(self) -> bool:
            self.count += 1
            return True

    bad, good = Bad(), Good()
    beats.start_heartbeat(bad.send, BEAT_S)
    beats.start_heartbeat(good.send, BEAT_S)
    wait_until(lambda: good.count > 3 and len(errors) > 1, 10, "beats and errors")
    beats.close()
    beats.close()
    assert all(str(error) == "bad" for error in errors)
