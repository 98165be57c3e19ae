"""Requests of a partition's transaction that come late: each batch is there once, and whole.

The driver repeats a request whose answer was lost, and keeps its producer. If the broker gets the
first request after all, it may end or fence another transaction (KIP-890).
"""

import json
import os
import secrets
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import quota_key
from sessionary.schemas.records import Position, QuotaNotice, TenantQuota
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import POSITION_KEY, BatchResult, Counts, JudgedRecords
from sessionary.stream_processors.errors import Aborted, EndInDoubt, Halted, Lost
from sessionary.stream_processors.runtime.job import Job, Produced, Transaction, processor_job
from sessionary.stream_processors.runtime.transaction import TransactionWriter
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import nothing_stored
from tests.integration.pipeline_rig import COMMAND
from tests.integration.processor_load import (
    BackgroundLoad,
    check_everything,
    start_processor,
    wait_for_writers,
    wait_judged,
)
from tests.integration.test_processor_road import SHORT
from tests.integration.test_three_brokers import ThreeBrokers
from tests.late_requests.proxy import How, KafkaProxy, LateRequest
from tests.late_requests.wire import (
    ProducerGiven,
    Request,
    init_producer_frame,
    read_producer_given,
    replace_addresses,
)
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_topic
from tests.support.waiting import wait_until

_HELD_S = 20.0
_TOO_LARGE = 4 << 20
LAST_EPOCH = 32_766
_APIS = ("EndTxn", "AddPartitionsToTxn", "Produce", "InitProducerId")

Readers = tuple[Consumer, Consumer]  # of committed records, and of all


class Case(NamedTuple):
    """A request of batch 1 that is late in batch 2.

    `moment`: before which request of batch 2 the broker gets it; `between`: before batch 2.
    """

    api: str
    how: How
    is_aborted: bool  # batch 1: its records are refused, and it is tried again as batch 1 without them
    row_bytes: int
    moment: str

    def __str__(self) -> str:
        end, size = "abort" if self.is_aborted else "commit", "large" if self.row_bytes > 1_000 else "small"
        return f"{self.api}-{self.how}-{end}-{size}-{self.moment}"


CASES = [
    Case(api, how, is_aborted, row_bytes, moment)
    for api in _APIS
    for how in ("late", "repeated")
    for is_aborted in (False, True)
    for row_bytes in ((100, 240_000) if api in ("EndTxn", "Produce") else (100,))
    for moment in ("between", "second produce", "end")
]


class Batches:
    """Batch after batch of a partition, as its owner writes them: again if one was not written."""

    def __init__(self, kafka: KafkaSettings, bootstrap_servers: str, row_bytes: int, readers: Readers) -> None:
        self.kafka, self._row_bytes, self._readers = kafka, row_bytes, readers
        given = {**kafka.model_dump(), "bootstrap_servers": bootstrap_servers}
        self._settings = ProcessorSettings(**given)
        self.topics = (kafka.topics.changelog, kafka.topics.audit, kafka.topics.cleanup, kafka.topics.batches)
        product = processor_job(self._settings)
        self._job = Job(product.new_state, self._transaction, product.row_codec)
        self._refused = False
        self.writer = self._open()

    def _transaction(self, partition: int, outcome: BatchResult, started_at: int, stored: Any = nothing_stored) -> Any:
        return Transaction(self._records(outcome.position.batch_number), {})

    def _records(self, number: int) -> Iterator[Produced]:
        for row in range(6):
            yield Produced(self.topics[0], b"%d:%d" % (number, row), os.urandom(self._row_bytes))
        for topic in self.topics[1:]:
            yield Produced(topic, b"%d:" % number, b"x" * 50)
        if self._refused:
            yield Produced(self.topics[1], b"refused:", os.urandom(_TOO_LARGE))

    def _open(self) -> TransactionWriter:
        writer = TransactionWriter(self._settings, self._job, 0, lambda: True)
        writer.fence_former_owner()
        return writer

    def write(self, number: int, *, refused: bool = False) -> None:
        """Write a batch until it is there; `refused`: first with a record that is refused."""
        self._refused = refused
        for _ in range(10):
            try:
                self.writer.write_result(self.outcome(number), 0)
                return
            except (Aborted, Halted):
                self._refused = False
            except Lost:
                self._reopen()
                if number in self.written():
                    return
        raise AssertionError(f"batch {number} is not written")

    @staticmethod
    def outcome(number: int) -> BatchResult:
        """The result of a batch, of which only the number matters here."""
        return BatchResult({}, (), Position(1, 0, 0, number, 0), _COUNTS, JudgedRecords())

    def _reopen(self) -> None:
        self.writer.discard()
        for _ in range(10):
            try:
                self.writer = self._open()
                return
            except Lost:
                continue
        raise AssertionError("no writer can be opened")

    def written(self) -> list[int]:
        """The numbers of the batches whose position is in the changelog."""
        last, found = -1, []
        for _, key in self._keys(self.topics[0]):
            if key == POSITION_KEY:
                found.append(last)
            else:
                last = int(key.partition(b":")[0])
        return found

    def read(self) -> Counter[tuple[str, bytes]]:
        """How often each record but the position is there, by topic and key."""
        return Counter((topic, key) for topic, key in self._keys(*self.topics) if key != POSITION_KEY)

    def _keys(self, *topics: str) -> list[tuple[str, bytes]]:
        """The topics and keys of all records up to the end of each log."""
        committed, uncommitted = self._readers
        # Of committed records the end would be that before a transaction whose markers are still to
        # come: a commit returns before they are written.
        ends = {topic: uncommitted.get_watermark_offsets(TopicPartition(topic, 0), _HELD_S)[1] for topic in topics}
        # They begin at 0; to ask for the beginning would take a sixth of a second.
        committed.assign([TopicPartition(topic, 0, 0) for topic in topics])
        unread, found = {topic for topic in topics if ends[topic]}, []
        while unread:
            message = committed.poll(_HELD_S)
            assert message is not None, "an open transaction hides the end of a log"
            topic, offset = message.topic() or "", message.offset()
            if message.error() is None:
                found.append((topic, message.key() or b""))
            elif offset is not None and offset >= ends[topic]:
                unread.discard(topic)
        return found


_COUNTS = Counts(1, 0, 0, 0, 0, 0, 0, 0)


def wanted(batches: Batches, numbers: range) -> Counter[tuple[str, bytes]]:
    changelog, *others = batches.topics
    rows = [(changelog, b"%d:%d" % (number, row)) for number in numbers for row in range(6)]
    return Counter([*rows, *((topic, b"%d:" % number) for topic in others for number in numbers)])


@contextmanager
def new_topics(bootstrap_servers: str) -> Iterator[KafkaSettings]:
    """The topics that a batch is written to, below a fresh prefix; they are deleted afterwards."""
    prefix = f"t{secrets.token_hex(5)}"
    kafka = KafkaSettings(bootstrap_servers=bootstrap_servers, topic_prefix=prefix, partitions=1)
    names = [kafka.topics.changelog, kafka.topics.audit, kafka.topics.cleanup, kafka.topics.batches]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(_HELD_S)
    yield kafka
    for deleted in admin.delete_topics(names).values():
        deleted.result(_HELD_S)


class Trigger:
    """Matches the request of batch 2 before which the late one comes."""

    def __init__(self, moment: str, transactional_id: str | None) -> None:
        self._moment, self._id, self.produced, self.is_on = moment, transactional_id, 0, False

    def __call__(self, request: Request) -> bool:
        if not self.is_on or request.transactional_id != self._id:
            return False
        self.produced += request.api == "Produce"
        return self.produced >= 2 if self._moment == "second produce" else request.api == "EndTxn"


def run_case(case: Case, kafka: KafkaSettings, proxy: KafkaProxy, readers: Readers) -> tuple[LateRequest, Batches]:
    """Write batches 0 to 3, with one request of batch 1 late in batch 2."""
    is_held = partial(_is_of_writer, case.api, kafka.topics.events)

    def opened() -> Batches:
        return Batches(kafka, proxy.address, case.row_bytes, readers)

    late: LateRequest
    if case.api == "InitProducerId":
        late = proxy.hold(is_held, case.how)
        batches = opened()
        batches.write(0)
    else:
        batches = opened()
        batches.write(0)
        late = proxy.hold(is_held, case.how)
    batches.write(1, refused=case.is_aborted)
    assert late.wait_held(_HELD_S)
    assert late.request is not None
    if case.moment == "between":
        late.deliver()
    else:
        trigger = Trigger(case.moment, late.request.transactional_id)
        late.deliver_before(trigger)
        trigger.is_on = True
    batches.write(2)
    batches.write(3)
    return late, batches


@pytest.fixture(scope="module")
def proxy(bootstrap_servers: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap_servers) as started:
        yield started


@pytest.fixture(scope="module")
def readers(bootstrap_servers: str) -> Iterator[Readers]:
    """Ask often, because each case waits for them."""
    given = {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "fetch.wait.max.ms": 10, "log_level": 0}
    levels = ("read_committed", "read_uncommitted")
    made = [Consumer({**given, "enable.partition.eof": True, "isolation.level": level}) for level in levels]
    yield made[0], made[1]
    for consumer in made:
        consumer.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_batch_is_there_once_and_whole(
    case: Case, bootstrap_servers: str, proxy: KafkaProxy, readers: Readers
) -> None:
    with new_topics(bootstrap_servers) as kafka:
        late, batches = run_case(case, kafka, proxy, readers)
        assert late.error is not None, "the broker got it"
        if case.moment == "second produce":
            assert late.met_open, "it came in another transaction"
            assert case.api != "EndTxn" or late.error, "and did not end that"
        assert batches.read() == wanted(batches, range(4))
        batches.writer.discard()


def test_a_writer_in_doubt_fences_no_owner_that_came_after_it(
    bootstrap_servers: str, proxy: KafkaProxy, readers: Readers
) -> None:
    with new_topics(bootstrap_servers) as kafka:
        former = Batches(kafka, proxy.address, 100, readers)
        former.write(0)
        late = proxy.hold(partial(_is_of_writer, "EndTxn", kafka.topics.events))
        former.write(1)
        assert late.wait_held(_HELD_S)
        later = Batches(kafka, bootstrap_servers, 100, readers)
        later.write(2)
        with pytest.raises(EndInDoubt):
            former.writer.write_result(former.outcome(2), 0)
        later.write(3)
        assert later.read() == wanted(later, range(4))
        for batches in (former, later):
            batches.writer.discard()


def test_a_late_end_is_refused_before_and_after_the_epoch_s_last_value(
    bootstrap_servers: str, proxy: KafkaProxy, readers: Readers
) -> None:
    """After its last epoch a transactional id gets another producer id, and begins at epoch 0."""
    with new_topics(bootstrap_servers) as kafka:
        batches = Batches(kafka, proxy.address, 100, readers)
        transactional_id = end_late(batches, proxy, 0)
        before = raise_epoch(bootstrap_servers, transactional_id, LAST_EPOCH - 3)
        batches.write(2)  # by another producer: the former one is fenced
        for number in range(3, 13, 2):
            end_late(batches, proxy, number)
        after = raise_epoch(bootstrap_servers, transactional_id, 1)
        assert after.producer_id != before.producer_id
        assert after.epoch < 10
        assert batches.read() == wanted(batches, range(13))
        batches.writer.discard()


def end_late(batches: Batches, proxy: KafkaProxy, number: int) -> str:
    """Write two batches; the first one's end comes late in the second. Return the id."""
    late = proxy.hold(partial(_is_of_writer, "EndTxn", batches.kafka.topics.events))
    batches.write(number)
    assert late.wait_held(_HELD_S)
    assert late.request is not None
    assert late.request.transactional_id is not None
    trigger = Trigger("second produce", late.request.transactional_id)
    late.deliver_before(trigger)
    trigger.is_on = True
    batches.write(number + 1)
    assert late.met_open
    assert late.error
    return late.request.transactional_id


def raise_epoch(bootstrap_servers: str, transactional_id: str, epoch: int) -> ProducerGiven:
    """Raise the epoch of a transactional id until it is `epoch` or more; by 1 with each request."""
    host, _, port = bootstrap_servers.rpartition(":")
    frame = init_producer_frame(transactional_id)
    with socket.create_connection((host, int(port)), _HELD_S) as connection, connection.makefile("rb") as answers:
        while True:
            connection.sendall(frame)
            (size,) = struct.unpack(">i", answers.read(4))
            given = read_producer_given(answers.read(size))
            assert given.error in (0, KafkaError.CONCURRENT_TRANSACTIONS)
            if given.error == 0 and given.epoch >= epoch:
                return given


# Requests of a worker under load, and the topic before whose records they come late.
IN_A_WORKER: tuple[tuple[str, How, str], ...] = (
    ("EndTxn", "late", "audit"),
    ("EndTxn", "late", "changelog"),
    ("EndTxn", "repeated", "batches"),
    ("AddPartitionsToTxn", "late", "audit"),
    ("Produce", "late", "changelog"),
    ("InitProducerId", "late", "audit"),
)


def test_a_worker_under_load_loses_and_doubles_nothing(
    kafka: KafkaSettings, processes: Processes, proxy: KafkaProxy
) -> None:
    run_worker_case(kafka, processes, proxy)


def test_a_worker_of_three_brokers_loses_and_doubles_nothing(tmp_path: Path, processes: Processes) -> None:
    brokers = ThreeBrokers(tmp_path / "brokers", "late_requests")
    try:
        brokers.start()
        with KafkaProxy(brokers.kafka.bootstrap_servers) as proxy:
            run_worker_case(brokers.kafka, processes, proxy)
    finally:
        brokers.stop()


def run_worker_case(kafka: KafkaSettings, processes: Processes, proxy: KafkaProxy) -> None:
    """Run a worker under load, some of whose requests come late, and check all that it wrote."""
    proxied = kafka.model_copy(update={"bootstrap_servers": proxy.address})
    one = start_processor(processes, proxied, "w1")
    with BackgroundLoad(kafka, sessions=40, rate=200, seed=5, limits=SHORT) as load:
        wait_for_writers(kafka, {"w1"}, 20)
        for api, how, topic in IN_A_WORKER:
            late = proxy.hold(partial(_is_of_writer, api, kafka.topics.events), how)
            if api == "InitProducerId":  # a producer whose transaction's end is in doubt is replaced
                proxy.hold(partial(_is_of_writer, "EndTxn", kafka.topics.events))
            wait_until(partial(late.wait_held, 1.0), 20, f"the next {api}")
            late.deliver_before(partial(_writes_to, f"{kafka.topic_prefix}.{topic}", late))
            wait_until(partial(late.wait_answered, 1.0), 20, f"the broker's answer to a late {api}")
    wait_judged(kafka, load.sent)
    one.signal(signal.SIGTERM)
    assert one.wait(180)
    assert one.exit_code == 0
    assert "goes on with a new producer: " in one.log.read_text(), "its changelog was not read again"
    check_everything(kafka)


# The same of a worker of quotas, which writes to one topic.
OF_QUOTAS: tuple[tuple[str, How], ...] = (("EndTxn", "late"), ("EndTxn", "repeated"), ("InitProducerId", "late"))


class TokenNotices:
    """Notices of used tokens, as sessions' transactions write them: one token each."""

    def __init__(self, kafka: KafkaSettings, tenants: int) -> None:
        self._kafka, self._producer = kafka, Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
        self._tenants = [f"tenant-{number}" for number in range(tenants)]
        self.sent = 0  # for each tenant

    def send(self) -> None:
        """Send one of each tenant."""
        for tenant in self._tenants:
            notice = QuotaNotice("concurrent_runs", "used", tenant, "s", "", self.sent, 1)
            key = quota_key(tenant, notice.quota)
            self._producer.produce(self._kafka.topics.quotas, encode_record(notice), key)
        self.sent += 1
        assert self._producer.flush(_HELD_S) == 0

    def send_until(self, condition: Callable[[], bool], what: str) -> None:
        """Send notices until the condition holds."""

        def holds() -> bool:
            self.send()
            return condition()

        wait_until(holds, 20, what)

    def are_counted_once(self) -> bool:
        """Whether the table of quotas has counted each token once."""
        stored = read_topic(self._kafka, self._kafka.topics.quotas_changelog)
        rows = {(one.partition, one.key): one.value for one in stored}
        found = [Decoder().decode_record(value) for value in rows.values() if value is not None]
        counted = {row.tenant_id: row.tokens for row in found if isinstance(row, TenantQuota)}
        return counted == dict.fromkeys(self._tenants, self.sent)


def test_a_worker_of_quotas_counts_each_token_once(
    kafka: KafkaSettings, processes: Processes, proxy: KafkaProxy, tmp_path: Path
) -> None:
    limits = tmp_path / "quotas.json"
    limits.write_text(json.dumps({"default": {"tokens": 1_000_000_000, "token_window_s": 86_400}}))
    proxied = kafka.model_copy(update={"bootstrap_servers": proxy.address})
    env = environment(proxied, api_port="0", instance="q1", quotas_file=str(limits))
    worker = processes.run([COMMAND, "serve", "quotas"], env=env, name="quotas")
    notices = TokenNotices(kafka, tenants=20)
    for api, how in OF_QUOTAS:
        late = proxy.hold(partial(_is_of_writer, api, kafka.topics.quotas), how)
        if api == "InitProducerId":
            proxy.hold(partial(_is_of_writer, "EndTxn", kafka.topics.quotas))
        notices.send_until(partial(late.wait_held, 0.05), f"the next {api}")
        late.deliver_before(partial(_writes_to, kafka.topics.quotas_changelog, late))
        notices.send_until(partial(late.wait_answered, 0.05), f"the broker's answer to a late {api}")
        assert api != "EndTxn" or (late.met_open and late.error), "it came in another transaction, and did not end it"
    wait_until(notices.are_counted_once, 60, "each token to be counted once")
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    assert worker.exit_code == 0
    assert notices.are_counted_once()


def _is_of_writer(api: str, log: str, request: Request) -> bool:
    return request.api == api and f"-{log}-" in (request.transactional_id or "")


def _writes_to(topic: str, late: LateRequest, request: Request) -> bool:
    assert late.request is not None
    is_same = request.transactional_id == late.request.transactional_id
    return is_same and request.api == "Produce" and topic in request.topics


def test_a_leader_s_address_in_an_answer_leads_around_the_proxy_no_more() -> None:
    partition = struct.pack(">ihqqq", 0, 6, -1, -1, -1) + b"\x01\x00\x01\x00\x08" + struct.pack(">ii", 1, 5)
    answer = struct.pack(">i", 7) + b"\x00\x02\x02t\x02" + partition + b"\x00" + struct.pack(">i", 0)
    endpoints = b"\x01\x00\x14" + b"x" * 20  # of an error that names the new leader, with its address
    request = Request("Produce", 10, 7)
    for tags in (b"\x00", endpoints):
        assert replace_addresses(request, answer + tags, lambda address: address) == answer + b"\x00"


def test_a_proxy_stands_for_each_broker_that_is_named_and_holds_nothing_that_is_withdrawn() -> None:
    end = Request("EndTxn", 1, 7, "id", True)
    with KafkaProxy("127.0.0.1:1,127.0.0.1:2") as proxy:
        assert len(set(proxy.address.split(","))) == 2
        first, second = proxy.hold(lambda _: True), proxy.hold(lambda _: True)
        proxy.withdraw(first)
        assert proxy.find_wanted(end) is second
        assert proxy.find_wanted(end) is None
