"""When a sink's consumer is replaced by a new one, and that it then goes on."""

import threading

import pytest

from sessionary.sinks.errors import Transient
from tests.core.sinks.runtime.consumer_rig import NO_BLOCK, SinkRig
from tests.support.waiting import wait_until


@pytest.fixture
def rig() -> SinkRig:
    return SinkRig()


def retries(rig: SinkRig, reason: str) -> float | None:
    labels = {"sink": "history", "group": "g", "reason": reason}
    return rig.metrics.registry.get_sample_value("sessionary_sink_retries_total", labels)


def test_a_consumer_that_reads_nothing_of_a_log_that_goes_on_is_replaced(rig: SinkRig) -> None:
    former, renewed = rig.kafka, rig.next_consumer
    former.offsets[0] = renewed.offsets[0] = 2, ""
    former.append_records(0, 2)
    renewed.append_records(0, 6)
    renewed.steps = [lambda: renewed.schedule_assignment(0), lambda: None, lambda: rig.advance(1.0), lambda: None]
    rig.log_ends = {0: 6, 1: 50}
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), *[rig.ask_log] * 4)
    assert rig.consumers == [former, renewed]
    assert rig.target.offsets == [[2, 3, 4, 5]]
    assert retries(rig, "consumer_renewed") == 1
    # The former one revokes its partitions when it closes: that has no effect any more.
    wait_until(lambda: former.calls[-1:] == ["close"], 60, "the former consumer to be closed")
    assert former.commits == []
    assert renewed.commits[-1] == (0, 6, NO_BLOCK)


def test_a_consumer_that_gets_no_assignment_is_replaced_after_20_s(rig: SinkRig) -> None:
    rig.log_ends = {0: 0}
    # The first answer says how often the log answers, the second that there is no assignment.
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), rig.kafka.schedule_loss, *[rig.ask_log] * 5)
    assert retries(rig, "consumer_renewed") is None
    rig = SinkRig()
    rig.log_ends = {0: 0}
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), rig.kafka.schedule_loss, *[rig.ask_log] * 6)
    assert retries(rig, "consumer_renewed") == 1


def test_a_consumer_without_partitions_that_reaches_no_broker_is_replaced(rig: SinkRig) -> None:
    rig.log_ends = {0: 99}
    rig.kafka.reaches_broker = False
    rig.run_steps(rig.kafka.schedule_assignment, *[rig.ask_log] * 4)
    assert retries(rig, "consumer_renewed") == 1


@pytest.mark.parametrize("why", ["paused", "other owner", "no answer", "slow loop"])
def test_a_consumer_that_is_not_to_blame_stays(rig: SinkRig, why: str) -> None:
    rig.log_ends = {} if why == "no answer" else {0: 99}

    def begin() -> None:
        if why == "paused":
            rig.kafka.append_records(0, 1)
            rig.target.error = Transient("network", "ClickHouse is away")
        elif why == "other owner":
            rig.kafka.schedule_assignment()
        rig.advance(1.0)

    def ask() -> None:
        rig.ask_log()
        if why == "slow loop":
            rig.advance(60.0)

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, begin, *[ask] * 8)
    assert len(rig.consumers) == 1


def test_a_consumer_that_cannot_close_holds_up_no_sink_that_stops(
    rig: SinkRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sessionary.sinks.runtime.consumer._CLOSE_S", 0.05)
    ended = threading.Event()
    rig.kafka.on_close = lambda: bool(ended.wait(60))
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0))
    assert rig.target.is_closed
    assert "did not close" in caplog.text
    ended.set()
