"""Clean-up requests of a log: what is answered and committed, when the consumer is replaced."""

import gc
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin._metadata import ClusterMetadata, PartitionMetadata, TopicMetadata

from sessionary.producers.control import request_consumer
from sessionary.producers.control.request_consumer import KafkaRequestConsumer, OpenRequest
from sessionary.producers.errors import Unavailable, UnreadableRequest
from sessionary.producers.ports import OnReceipt, Receipt
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import SINGLE_OBJECT, encode_record
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.kafka import clients
from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.records import CleanupRequest
from tests.support.fake_kafka import FakeConsumer

SETTINGS = ProducerSettings()
TOPIC = SETTINGS.topics.cleanup
SESSION_ID = "0b0e7f0a-0000-4000-8000-000000000000"
NEWER = SINGLE_OBJECT + b"\xee" * 8 + b"a body of a later release"
OUR_KEY = SessionKey("acme", SESSION_ID).encoded()
Step = Callable[[], None]


def request_bytes(cleanup_id: str, service_id: str = "billing") -> bytes:
    return encode_record(CleanupRequest(cleanup_id, "acme", SESSION_ID, service_id, 1, "closed", "", ["a"], 1))


class CleanupRig:
    """One clean-up consumer with a log, a clock and a handler that tests hand in."""

    def __init__(self) -> None:
        self.kafka = FakeConsumer(TOPIC)
        self.next_consumer = FakeConsumer(TOPIC)  # that replaces the first one
        self.opened = 0
        self.now_s = 100.0
        self.log_ends: dict[int, int] = {}
        self.awaits_members = False
        self.handled: list[str] = []
        self.unanswered: set[str] = set()  # ids whose answer is never delivered
        self.errors: list[Exception] = []
        self.consumer = KafkaRequestConsumer(
            SETTINGS,
            "acme",
            "billing",
            self.errors.append,
            new_consumer=self._new_consumer,
            ask_ends=self._ask_ends,
            ask_group=lambda: self.awaits_members,
            clock_s=lambda: self.now_s,
        )

    def _new_consumer(self) -> FakeConsumer:
        self.opened += 1
        if self.opened > 1:
            self.next_consumer.when_out_of_steps = self.kafka.when_out_of_steps
            self.kafka = self.next_consumer
        return self.kafka

    def _ask_ends(self, _partitions: Iterable[int]) -> Mapping[int, int]:
        return self.log_ends

    def _answer_request(self, request: CleanupRequest, on_receipt: OnReceipt) -> None:
        self.handled.append(request.cleanup_id)
        if request.cleanup_id not in self.unanswered:
            on_receipt(Receipt(0, 0))

    def append_requests(self, partition: int, *cleanup_ids: str) -> None:
        for cleanup_id in cleanup_ids:
            self.kafka.append_record(partition, OUR_KEY, request_bytes(cleanup_id))

    def pass_time(self) -> None:
        """Let the time pass after which the log's ends are asked again."""
        self.now_s += 5.0

    def run_steps(self, *steps: Step) -> None:
        """Run until each step was taken, one per call of `consume`."""
        self.kafka.steps = list(steps)
        self.kafka.when_out_of_steps = lambda: self.consumer.close(0)
        self.consumer.start(self._answer_request)
        thread = self.consumer._thread
        assert thread is not None
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def rig() -> CleanupRig:
    return CleanupRig()


def no_step() -> None:
    """Take no step: a turn of the loop passes."""


def test_requests_are_answered_and_committed_and_those_of_others_are_passed(rig: CleanupRig) -> None:
    rig.append_requests(0, "one")
    rig.kafka.append_record(0, OUR_KEY, request_bytes("of another service", "other"))
    rig.append_requests(0, "two")
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, no_step)
    assert rig.handled == ["one", "two"]
    assert rig.kafka.offsets == {0: (3, "")}
    assert rig.errors == []


def test_a_request_does_not_wait_for_further_ones(rig: CleanupRig) -> None:
    waits: list[int] = []
    consume = rig.kafka.consume

    def note_wait(num_messages: int, timeout: float) -> list[Message]:
        if timeout > 0:
            waits.append(num_messages)
        return consume(num_messages, timeout)

    rig.kafka.consume = note_wait  # type: ignore[method-assign]
    rig.append_requests(0, "one", "two")
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, no_step)
    assert rig.handled == ["one", "two"]
    assert set(waits) == {1}  # the driver waits until it has as many as are asked for


def test_a_partition_is_committed_up_to_its_first_request_without_an_answer(rig: CleanupRig) -> None:
    rig.unanswered = {"open"}
    rig.append_requests(0, "one", "open", "three")
    rig.append_requests(1, "other")
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), no_step, no_step)
    assert sorted(rig.handled) == ["one", "open", "other", "three"]
    assert rig.kafka.offsets == {0: (1, ""), 1: (1, "")}


def test_a_request_that_cannot_be_read_stops_its_partition_and_is_not_committed(rig: CleanupRig) -> None:
    rig.append_requests(0, "one")
    rig.kafka.append_record(0, OUR_KEY, NEWER)
    rig.append_requests(0, "behind it")
    rig.append_requests(1, "other")
    later: list[Step] = [lambda: rig.append_requests(0, "later"), lambda: rig.append_requests(1, "other later")]
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), no_step, *later, no_step)
    assert rig.handled == ["one", "other", "other later"]
    assert rig.kafka.offsets == {0: (1, ""), 1: (2, "")}
    (error,) = rig.errors
    assert isinstance(error, UnreadableRequest)
    assert (error.topic, error.partition, error.offset) == (TOPIC, 0, 1)
    assert f"{TOPIC}, partition 0, offset 1" in str(error)
    assert "upgrade the package" in str(error)


def test_damaged_bytes_stop_the_partition_too_and_the_error_names_the_way_past_them(rig: CleanupRig) -> None:
    rig.kafka.append_record(0, b"no key of a session", b"no bytes of ours")
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, no_step)
    assert rig.kafka.offsets == {}
    assert "set the offset of group sessionary.cleanup.acme:billing to 1" in str(rig.errors[0])


def test_what_cannot_be_read_under_another_tenant_s_key_is_passed(rig: CleanupRig) -> None:
    rig.kafka.append_record(0, SessionKey("globex", SESSION_ID).encoded(), NEWER)
    rig.append_requests(0, "ours")
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, no_step)
    assert rig.handled == ["ours"]
    assert rig.kafka.offsets == {0: (2, "")}
    assert rig.errors == []


def test_a_stopped_partition_starts_again_with_a_new_assignment_behind_the_group_s_offset(rig: CleanupRig) -> None:
    rig.kafka.append_record(0, OUR_KEY, NEWER)
    rig.append_requests(0, "behind it")

    def pass_by_newer_client() -> None:
        rig.kafka.offsets[0] = 1, ""
        rig.kafka.schedule_assignment(0)

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, pass_by_newer_client, no_step, no_step)
    assert rig.handled == ["behind it"]
    assert rig.kafka.offsets == {0: (2, "")}
    assert rig.kafka.paused == set()
    assert len(rig.errors) == 1


def test_a_consumer_that_reads_nothing_of_a_log_that_goes_on_is_replaced(rig: CleanupRig) -> None:
    rig.log_ends = {0: 1}
    renewed = rig.next_consumer
    renewed.append_record(0, OUR_KEY, request_bytes("one"))
    renewed.steps = [lambda: renewed.schedule_assignment(0), no_step]
    former = rig.kafka
    rig.run_steps(lambda: former.schedule_assignment(0), no_step, *[rig.pass_time] * 4)
    assert rig.opened == 2
    assert rig.handled == ["one"]
    assert renewed.offsets == {0: (1, "")}
    assert former.commits == []
    (error,) = rig.errors
    assert isinstance(error, Unavailable)
    assert "partition 0 at offset 0" in str(error)


@pytest.mark.parametrize(("awaits_members", "asked"), [(False, 5), (True, 13)])
def test_a_consumer_without_an_assignment_is_replaced_sooner_if_no_rebalance_waits(
    awaits_members: bool, asked: int
) -> None:
    """A request to join may be lost with its coordinator; a rebalance may wait for a handler."""
    for turns, opened in ((asked, 1), (asked + 1, 2)):
        rig = CleanupRig()
        rig.log_ends, rig.awaits_members = {0: 0}, awaits_members
        rig.run_steps(no_step, *[rig.pass_time] * turns)
        assert rig.opened == opened


@pytest.mark.parametrize("why", ["at the end", "stopped", "no answer"])
def test_a_consumer_that_is_not_to_blame_stays(rig: CleanupRig, why: str) -> None:
    rig.append_requests(0, "one")
    if why == "stopped":
        rig.kafka.append_record(0, OUR_KEY, NEWER)
    rig.log_ends = {"at the end": {0: 1}, "stopped": {0: 90}, "no answer": {}}[why]
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, *[rig.pass_time] * 20)
    assert rig.opened == 1


class FakeAdminClient:
    """An admin client of librdkafka that notes the thread in which it is freed."""

    freed_in: ClassVar[list[str]] = []

    def __init__(self, _config: object) -> None:
        self.topic = TopicMetadata()
        self.topic.partitions = {0: PartitionMetadata()}

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
        del timeout
        found = ClusterMetadata()
        found.topics = {topic: self.topic}
        return found

    def list_offsets(self, places: Iterable[TopicPartition], **_: object) -> dict[TopicPartition, "Future[LogEnd]"]:
        answers: dict[TopicPartition, Future[LogEnd]] = {place: Future() for place in places}
        for answer in answers.values():
            answer.set_result(LogEnd(0, None))
        return answers

    def __del__(self) -> None:
        self.freed_in.append(threading.current_thread().name)


def read_and_forget() -> None:
    """Let a reader ask for the log's ends by a client of its own, and close it."""
    rig = CleanupRig()
    rig.consumer = KafkaRequestConsumer(
        SETTINGS, "acme", "billing", rig.errors.append, new_consumer=lambda: rig.kafka, clock_s=lambda: rig.now_s
    )
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), no_step, rig.pass_time, no_step)
    assert rig.errors == []


def test_the_client_that_asked_for_log_ends_is_freed_by_the_reader_s_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To free one waits for librdkafka's threads, which may wait for the address of a name."""
    monkeypatch.setattr(clients, "AdminClient", FakeAdminClient)
    monkeypatch.setattr(FakeAdminClient, "freed_in", [])
    read_and_forget()
    gc.collect()
    assert FakeAdminClient.freed_in == ["sessionary-cleanup"]


def test_the_requests_of_a_killed_process_wait_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(request_consumer, "Consumer", opened.append)
    request_consumer.open_consumer(ProducerSettings(), "prefix.migration.acme:billing")
    (options,) = opened
    assert options["group.id"] == "prefix.migration.acme:billing"
    assert options["session.timeout.ms"] == 10_000  # librdkafka's own is 45 s


class _DeliveredMeanwhile(OpenRequest):
    """A request whose receipt comes on another thread while it is looked whether there is one."""

    give: OnReceipt | None = None
    _delivered = False

    @property
    def delivered(self) -> bool:
        """Whether the answer is in the log."""
        before, give, self.give = self._delivered, self.give, None
        if give is not None:
            give(Receipt(0, 1))
        return before

    @delivered.setter
    def delivered(self, value: bool) -> None:
        self._delivered = value


def test_a_request_whose_receipt_comes_just_now_is_not_answered_twice() -> None:
    asked = _DeliveredMeanwhile(0, 1, CleanupRequest("c1", "acme", SESSION_ID, "billing", 1, "closed", "", ["a"], 1))
    handled: list[OnReceipt] = []
    asked.try_answer(lambda request, on_receipt: handled.append(on_receipt))
    asked.give, asked._next_try = handled[0], 0.0
    asked.try_answer(lambda request, on_receipt: handled.append(on_receipt))
    assert len(handled) == 1
