"""What a task worker says of itself: whether its loop turns, whether it can be given tasks."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.producers.ports import Condition, ReaderState
from sessionary.schemas.codec import SINGLE_OBJECT
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import TaskRequest
from tests.core.producers.tasks.worker_rig import TOPIC, WorkerRig
from tests.support.fake_kafka import FakeConsumer
from tests.support.waiting import PATIENCE_S, wait_until

OK = (True, "ok")
UNASSIGNED = (False, "its group has given it no assignment yet")
REVOKED = (False, "its group has taken its assignment back")


@pytest.fixture
def rig() -> Iterator[WorkerRig]:
    rig = WorkerRig()
    yield rig
    rig.client.close()


@pytest.fixture
def reported(rig: WorkerRig) -> list[Condition]:
    """The answers about readiness that `ask` took."""
    return []


@pytest.fixture
def ask(rig: WorkerRig, reported: list[Condition]) -> Callable[[], None]:
    """A step: it asks whether the worker is ready."""
    return lambda: reported.append(rig.worker.readiness())


def test_a_worker_is_ready_while_it_has_an_assignment(
    rig: WorkerRig, reported: list[Condition], ask: Callable[[], None]
) -> None:
    assert (rig.worker.health(), rig.worker.readiness()) == (OK, UNASSIGNED)
    rig.run_steps(
        ask,
        lambda: rig.kafka.schedule_assignment(0, 1),
        ask,
        lambda: rig.kafka.schedule_loss(),
        ask,
        lambda: rig.kafka.schedule_assignment(),
        ask,
    )
    # Where there are more workers than partitions, one that has none is as it should be.
    assert reported == [UNASSIGNED, OK, REVOKED, OK]
    assert rig.errors == []


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_loop_that_hangs_is_neither_alive_nor_ready(rig: WorkerRig, is_assigned: bool) -> None:
    answers: list[tuple[Condition, Condition]] = []

    def hang(for_s: float) -> None:
        rig.now_s += for_s
        answers.append((rig.worker.health(), rig.worker.readiness()))

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0) if is_assigned else None,
        lambda: hang(60.0),
        lambda: hang(61.0),
        lambda: hang(0.0),
    )
    ready = OK if is_assigned else UNASSIGNED
    hung = (False, "the loop that reads requests has not made a turn for 61 s")
    assert answers == [(OK, ready), (hung, hung), (OK, ready)]


def test_a_worker_whose_loop_has_ended_is_not_alive(rig: WorkerRig) -> None:
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0))
    rig.now_s += 90.0
    assert rig.worker.health() == (False, "the loop that reads requests has not made a turn for 90 s")


def test_a_worker_is_not_ready_while_its_consumer_is_replaced(
    rig: WorkerRig, reported: list[Condition], ask: Callable[[], None]
) -> None:
    renewed = FakeConsumer(TOPIC, [ask, lambda: renewed.schedule_assignment(0), ask])
    rig.later, rig.log_ends = [renewed], {0: 1}
    former = rig.kafka
    rig.run_steps(lambda: former.schedule_assignment(0), ask, *[rig.pass_time] * 4)
    assert reported[0] == reported[2] == OK
    assert reported[1][0] is False
    assert reported[1][1].startswith("reading begins again with a new consumer: partition 0 at offset 0 for ")
    assert rig.worker.health() == OK


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all\nare down")), "all are down"),
        (ValueError("s3cret"), "ValueError"),
    ],
)
def test_a_worker_is_not_ready_after_an_error_and_says_which_in_one_line_without_a_payload(
    rig: WorkerRig, reported: list[Condition], ask: Callable[[], None], error: Exception, text: str
) -> None:
    def fail() -> None:
        raise error

    rig.later = [FakeConsumer(TOPIC, [ask])]
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), fail)
    ((is_ready, why),) = reported
    assert not is_ready
    assert why.startswith("reading begins again after an error: ")
    assert text in why
    assert "s3cret" not in why
    assert rig.errors == [error]


def test_a_partition_that_stops_is_named_and_makes_no_worker_unready(rig: WorkerRig) -> None:
    answers: list[tuple[Condition, Condition]] = []
    newer = SINGLE_OBJECT + b"\xee" * 8 + b"a body of a later release"
    rig.kafka.append_record(1, SessionKey("acme", "0b0e7f0a-0000-4000-8000-000000000000").encoded(), newer)
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        lambda: answers.append((rig.worker.health(), rig.worker.readiness())),
    )
    assert answers == [((True, "blocked by a record that cannot be read: partition 1"), OK)]


def test_a_worker_that_stops_is_alive_and_not_ready(rig: WorkerRig) -> None:
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0))
    rig.worker.close(0.0)
    rig.now_s += 90.0
    assert rig.worker.health() == (True, "the worker stops")
    assert rig.worker.readiness() == (False, "the worker stops")


def test_stopped_partitions_are_named_in_order() -> None:
    assert ReaderState(0.0, None, (1, 3)).health()[1].endswith(": partition 1, partition 3")


class _NotedLock:
    """A lock that notes a thread that waits for it."""

    def __init__(self) -> None:
        self.awaited = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_worker_closes_while_a_task_begins(
    rig: WorkerRig, has_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, start, closing = rig.worker, threading.Thread.start, list[Future[None]]()
    noted: Any = _NotedLock()
    worker._lock = noted
    request = TaskRequest("acme", str(uuid.uuid4()), str(uuid.uuid4()), "billing", None, 1, "train", None, (), 1)
    with ThreadPoolExecutor(1) as pool:

        def close_first(thread: threading.Thread) -> None:
            if not thread.name.startswith("sessionary-task-"):
                start(thread)
                return
            closing.append(pool.submit(worker.close, 10.0))
            wait_until(lambda: closing[0].done() or noted.awaited.is_set(), 10, "the end, or the wait for it")
            if not has_threads:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", close_first)
        with suppress(RuntimeError):
            worker._take_request(request, lambda receipt: None)
        closing[0].result(PATIENCE_S)
    assert not worker._at_work
