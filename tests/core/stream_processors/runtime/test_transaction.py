"""How a transaction is written, without a broker: order, a full queue, refused records, retries."""

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.errors import EncodeError, Unavailable
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import POSITION_KEY, BatchResult, Counts, JudgedRecords
from sessionary.stream_processors.errors import Aborted, EndInDoubt, Halted, Lost
from sessionary.stream_processors.runtime import transaction
from sessionary.stream_processors.runtime.job import Job, Produced, Transaction, processor_job
from sessionary.stream_processors.runtime.transaction import EndWatch, TransactionWriter
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import nothing_stored
from tests.late_requests.proxy import KafkaProxy
from tests.support.mock_cluster import mock_cluster
from tests.support.module_time import set_module_time

CALL_S = 10.0
SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1")
PARTITION = 3
OUTCOME = BatchResult({}, (), Position(9, 0, 0, 1, 0), Counts(9, 0, 0, 0, 0, 0, 0, 8), JudgedRecords())
RECORDS = [
    record
    for n in range(4)
    for record in (
        Produced(SETTINGS.topics.changelog, b"k", b"%d" % n, [("due", b"7")] if n % 2 else None),
        Produced("audit", b"k", b"%d." % n),
    )
]


class Message:
    """What a delivery report shows of a record."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class FakeProducer:
    """A transactional producer with room for `room` records until polled; refuses some values.

    `cause`: why an earlier record was refused, which only a commit tells. `answers`: of
    the broker to each end, as the driver logs them.
    """

    def __init__(
        self,
        room: int = 1_000,
        refused: bytes | None = None,
        code: int = 0,
        cause: int = 0,
        answers: Sequence[str] = ("NO_ERROR",),
        partition: int = PARTITION,
    ) -> None:
        self._partition = partition
        self.driver_log = EndWatch()
        self._answers = answers
        self._lines: list[str] = []  # of the driver's log, which it hands out at a poll
        self.written: list[Produced] = []
        self.calls: list[str] = []
        self.flushed: list[int] = []  # how many records were written by then
        self.unacknowledged = 0
        self._room = self._left = room
        self._refused, self._code, self._cause = refused, code, cause
        self._reports: list[Callable[[KafkaError | None, Any], None]] = []

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def commit_transaction(self, timeout_s: float) -> None:
        self.calls.append("commit")
        if self._cause:
            raise KafkaException(KafkaError(self._cause, "reported so"))
        for report in self._reports:
            report(None, Message(41))
        self._lines += [f"EndTxn returned {answer} in state …" for answer in self._answers]

    def abort_transaction(self, timeout_s: float) -> None:
        self.calls.append("abort")

    def list_topics(self, topic: str, timeout: float) -> None:
        """It is connected."""

    def init_transactions(self, timeout_s: float) -> None:
        self.calls.append("init")

    def purge(self, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        """Nothing is queued."""

    def __len__(self) -> int:
        return 0

    def flush(self, timeout_s: float) -> int:
        self.flushed.append(len(self.written))
        return self.unacknowledged

    def poll(self, timeout_s: float) -> int:
        for line in self._lines:
            self.driver_log.log(logging.DEBUG, "%s [%s] %s", "ENDTXN", "p", line)
        self._lines.clear()
        if timeout_s:  # without, only the driver's log is taken
            self.calls.append("poll")
            self._left = self._room
        return 0

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        delivered: Callable[[KafkaError | None, Any], None] | None,
        headers: list[tuple[str, bytes | str | None]] | None = None,
    ) -> None:
        assert partition == self._partition
        if not self._left:
            raise BufferError("full")
        if value is not None and value == self._refused:
            raise KafkaException(KafkaError(self._code, "reported so"))
        self._left -= 1
        self.written.append(Produced(topic, key, value, headers))
        if delivered is not None:
            self._reports.append(delivered)


def writer_of(
    producer: FakeProducer, records: Callable[[], Iterator[Produced] | Sequence[Produced]]
) -> TransactionWriter:
    """The writer of an open partition; `records` is what each transaction writes."""
    session_job = processor_job(SETTINGS)
    job = Job(
        session_job.new_state,
        lambda partition, outcome, started_at, stored=nothing_stored: Transaction(records(), {b"k": b"3"}),
        session_job.row_codec,
    )
    made = TransactionWriter(SETTINGS, job, PARTITION, lambda: True)
    made._producer, made._end_watch = producer, producer.driver_log  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("records", [lambda: RECORDS, lambda: iter(RECORDS)], ids=["a list", "one by one"])
@pytest.mark.parametrize("room", [1_000, 3, 1])
def test_all_is_written_in_order_and_once_and_the_position_last(
    records: Callable[[], Iterator[Produced] | Sequence[Produced]], room: int
) -> None:
    producer = FakeProducer(room)
    written = writer_of(producer, records).write_result(OUTCOME, 0)
    assert producer.written[:-1] == RECORDS
    assert (producer.written[-1].topic, producer.written[-1].key) == (SETTINGS.topics.changelog, POSITION_KEY)
    assert (written.rows, written.changelog_next) == ({b"k": b"3"}, 42)
    position_bytes = len(POSITION_KEY) + len(producer.written[-1].value or b"")
    assert written.written_bytes == 4 * len(b"k0k0.") + position_bytes
    assert written.changelog_bytes == 4 * len(b"k0") + position_bytes
    assert producer.calls.count("poll") == len(RECORDS) // room  # of its records and the position
    assert [call for call in producer.calls if call != "poll"] == ["begin", "commit"]


@pytest.mark.parametrize(
    ("code", "fault", "calls"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Halted, ["begin", "abort"]),
        (KafkaError._UNKNOWN_PARTITION, Lost, ["begin"]),
    ],
)
@pytest.mark.parametrize("refused", [b"0", b"2.", b"3."], ids=["the first", "one between", "the last"])
def test_a_record_that_is_refused_ends_the_transaction_and_nothing_is_committed(
    code: int, fault: type[Exception], calls: list[str], refused: bytes
) -> None:
    producer = FakeProducer(refused=refused, code=code)
    with pytest.raises(fault, match="key b'k'"):
        writer_of(producer, lambda: iter(RECORDS)).write_result(OUTCOME, 0)
    at = [record.value for record in RECORDS].index(refused)
    assert producer.written == RECORDS[:at]
    assert producer.calls == calls


@pytest.mark.parametrize(
    ("cause", "fault", "calls"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Halted, ["begin", "commit", "abort"]),
        (KafkaError._FENCED, Lost, ["begin", "commit"]),
    ],
)
def test_the_cause_of_a_record_that_was_refused_before_is_found(
    cause: int, fault: type[Exception], calls: list[str]
) -> None:
    producer = FakeProducer(refused=RECORDS[-1].value, code=KafkaError._STATE, cause=cause)
    with pytest.raises(fault, match="commit_transaction: reported so"):
        writer_of(producer, lambda: iter(RECORDS)).write_result(OUTCOME, 0)
    assert producer.calls == calls


def test_the_first_record_to_each_log_is_acknowledged_before_its_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = FakeProducer()
    made = writer_of(producer, lambda: iter(RECORDS))
    made.write_result(OUTCOME, 0)
    assert producer.flushed == [2], "one of each of two logs"
    made.write_result(OUTCOME, 0)
    assert producer.flushed == [2]
    monkeypatch.setattr(transaction, "_KNOWN_S", 0.0)
    made.write_result(OUTCOME, 0)
    assert producer.flushed == [2, 2 * (len(RECORDS) + 1) + 2], "the broker may have forgotten the producer"


def test_a_first_record_that_is_not_acknowledged_is_waited_for_and_loses_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction, "_PATIENCE_S", 0.0)
    producer = FakeProducer()
    producer.unacknowledged = 1
    with pytest.raises(Lost, match="first records are not acknowledged"):
        writer_of(producer, lambda: iter(RECORDS)).write_result(OUTCOME, 0)
    assert producer.written == RECORDS[:2]
    assert producer.calls == ["begin"]


def test_a_producer_that_is_fenced_while_it_waits_for_its_first_records_loses_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flush(timeout_s: float) -> int:
        """Raise as CPython does if a callback is called while the driver's fatal error is set."""
        raise SystemError("returned a result with an exception set") from KafkaException("reported so")

    producer = FakeProducer()
    monkeypatch.setattr(producer, "flush", flush)
    with pytest.raises(Lost, match="_flush: reported so"):
        writer_of(producer, lambda: iter(RECORDS)).write_result(OUTCOME, 0)


def test_the_first_record_of_each_key_s_partition_is_acknowledged_too() -> None:
    producer = FakeProducer(partition=-1)
    made = writer_of(producer, lambda: ())
    notices = [Produced("quotas", b"%d" % n, b"") for n in range(40)]
    made._produce(notices, partition=-1)
    assert producer.written == notices
    places = [partition_of(notice.key or b"", SETTINGS.partitions) for notice in notices]
    assert producer.flushed[0] == next(n for n, place in enumerate(places) if place in places[:n])
    made._produce(notices, partition=-1)
    assert len(producer.flushed) <= SETTINGS.partitions


def test_records_that_cannot_be_made_halt_the_partition_and_begin_no_transaction() -> None:
    def fail() -> Sequence[Produced]:
        raise EncodeError("invalid_value", "reported so")

    producer = FakeProducer()
    with pytest.raises(Halted, match=r"partition 3, offsets 0 to 8: EncodeError at .*test_transaction\.py") as caught:
        writer_of(producer, fail).write_result(OUTCOME, 0)
    assert caught.value.reason == "judge_failed"
    assert producer.calls == []


@pytest.mark.parametrize("error", [Unavailable("registry", 1.0), OSError("disk"), MemoryError()])
def test_a_failure_that_may_pass_halts_nothing(error: Exception) -> None:
    def fail() -> Sequence[Produced]:
        raise error

    with pytest.raises(type(error)):
        writer_of(FakeProducer(), fail).write_result(OUTCOME, 0)


def test_after_an_abort_nothing_more_is_written() -> None:
    producer = FakeProducer()
    fenced = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS, "reported so", False, False, True)
    commit = producer.commit_transaction

    def fails(timeout_s: float) -> None:
        producer.commit_transaction = commit  # type: ignore[method-assign]
        raise KafkaException(fenced)

    producer.commit_transaction = fails  # type: ignore[method-assign]
    made = writer_of(producer, lambda: iter(RECORDS))
    with pytest.raises(Aborted):
        made.write_result(OUTCOME, 0)
    with pytest.raises(EndInDoubt, match="was aborted"):
        made.write_result(OUTCOME, 0)
    assert producer.calls == ["begin", "abort"]
    assert producer.written == [*RECORDS, producer.written[-1]]


@pytest.mark.parametrize(
    ("answers", "is_doubtful"),
    [
        (["NO_ERROR"], False),
        (["_TRANSPORT", "NO_ERROR"], True),  # the connection was lost: the first one may come later
        (["_TIMED_OUT", "NO_ERROR"], True),
        (["COORDINATOR_LOAD_IN_PROGRESS", "NO_ERROR"], True),
        (["NO_ERROR", "NO_ERROR"], True),
        ([], True),  # a driver that logs other lines
    ],
)
def test_after_an_end_in_doubt_nothing_more_is_written(answers: list[str], is_doubtful: bool) -> None:
    producer = FakeProducer(answers=answers)
    made = writer_of(producer, lambda: iter(RECORDS))
    made.write_result(OUTCOME, 0)  # there was no transaction before
    expected = pytest.raises(EndInDoubt, match="no certain end") if is_doubtful else nullcontext()
    with expected:
        made.write_result(OUTCOME, 0)
    assert producer.calls.count("begin") == (1 if is_doubtful else 2)


def test_a_driver_that_fails_between_transactions_loses_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    made = writer_of(FakeProducer(), lambda: iter(RECORDS))
    made.write_result(OUTCOME, 0)

    def fail(timeout_s: float) -> int:
        raise KafkaException(KafkaError(KafkaError._FATAL, "reported so", True, False, False))

    monkeypatch.setattr(made._producer, "poll", fail)
    with pytest.raises(Lost, match="reported so"):
        made.write_result(OUTCOME, 0)


def test_a_line_that_waits_while_the_partition_is_idle_is_read_before_its_next_transaction() -> None:
    with mock_cluster() as cluster, KafkaProxy(cluster.bootstrap_servers) as proxy:
        made = real_writer(proxy.address)
        for _ in range(3):
            made.write_result(OUTCOME, 0)  # the former ones are known to be taken
        late = proxy.hold(lambda request: request.api == "EndTxn")
        made.write_result(OUTCOME, 0)
        assert late.is_held
        assert made._end_watch._answers == [], "no line is handed out yet"
        with pytest.raises(EndInDoubt, match="answer was lost"):
            made.write_result(OUTCOME, 0)
        assert made._end_watch._answers == [False, True]
        del made  # before its brokers end


@pytest.mark.parametrize("level", ["0", "3"])
def test_an_operator_sees_what_the_driver_logs_and_hides_no_end(level: str, capfd: pytest.CaptureFixture[str]) -> None:
    with mock_cluster() as cluster:
        made = real_writer(cluster.bootstrap_servers, {"debug": "broker", "log_level": level})
        for _ in range(3):
            made.write_result(OUTCOME, 0)
        del made  # before its brokers end
    lines = capfd.readouterr().err.splitlines()
    assert any(line.startswith("%7|") and "|CONNECT|" in line for line in lines)


def test_without_an_operator_s_wish_no_line_of_the_driver_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with mock_cluster() as cluster:
        made = real_writer(cluster.bootstrap_servers)
        made.write_result(OUTCOME, 0)
        made.write_result(OUTCOME, 0)
        del made  # before its brokers end
    assert capfd.readouterr() == ("", "")


def real_writer(bootstrap_servers: str, librdkafka: dict[str, str] | None = None) -> TransactionWriter:
    settings = ProcessorSettings(bootstrap_servers=bootstrap_servers, librdkafka=librdkafka or {})
    product = processor_job(settings)
    changed = [Produced(settings.topics.changelog, b"k", b"v")]
    job = Job(product.new_state, lambda *_: Transaction(iter(changed), {}), product.row_codec)
    made = TransactionWriter(settings, job, PARTITION, lambda: True)
    made.fence_former_owner()
    return made


def test_the_driver_s_own_complaints_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    EndWatch().log(logging.ERROR, "%s [%s] %s", "FAIL", "p", "Connection refused")
    EndWatch().log(logging.DEBUG, "%s [%s] %s", "TXNSTATE", "p", "Transaction state change")
    assert caplog.messages == ["FAIL [p] Connection refused"]


def test_a_producer_that_cannot_abort_is_given_up_after_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has lost its brokers; a new one's first call ends the open transaction."""
    producer, now_s = FakeProducer(), 0.0

    def commit(timeout_s: float) -> None:
        raise KafkaException(error(KafkaError._MSG_TIMED_OUT, abort=True))

    def abort(timeout_s: float) -> None:
        nonlocal now_s
        now_s += timeout_s
        raise KafkaException(error(KafkaError._TIMED_OUT, retriable=True))

    producer.commit_transaction, producer.abort_transaction = commit, abort  # type: ignore[method-assign]
    set_module_time(monkeypatch, transaction.__name__, monotonic=lambda: now_s)
    with pytest.raises(Lost, match="abort: reported so"):
        writer_of(producer, lambda: iter(RECORDS)).write_result(OUTCOME, 0)
    assert now_s == CALL_S


@pytest.mark.parametrize(
    "failing", [("produce",), ("commit_transaction",), ("commit_transaction", "abort_transaction")], ids="+".join
)
def test_an_error_that_is_kept_keeps_no_producer(failing: tuple[str, ...]) -> None:
    """Its frames would keep the threads and connections of each producer that failed."""

    def fail(*args: object, **_named: object) -> None:
        del args  # a method of the driver has no frame either
        raise KafkaException(error(KafkaError._MSG_TIMED_OUT, abort=True))

    producer: FakeProducer = type("FailingProducer", (FakeProducer,), dict.fromkeys(failing, fail))()
    made = writer_of(producer, lambda: iter(RECORDS))
    with pytest.raises(Aborted) as kept:
        made.write_result(OUTCOME, 0)
    held = weakref.ref(producer)
    del made._producer, producer
    assert held() is None
    assert kept.value.__traceback__ is not None


def test_who_is_no_longer_wanted_fences_nobody() -> None:
    """The partition may be another worker's by then, which would be the one that is fenced."""
    made = retrying_writer(wanted=False)
    with pytest.raises(Lost, match="no longer wanted"):
        made.fence_former_owner()


class ConnectingProducer:
    """A producer that has lost sight of every broker at first, as librdkafka's.

    The address that it was given answers one question; then it drops that connection, and only a
    further question connects it to a broker that it was notified of. `is_away`: nothing answers.
    """

    def __init__(self, is_away: bool = False) -> None:
        self._is_away = is_away
        self.questions = self.fenced_after = 0

    def list_topics(self, topic: str, timeout: float) -> None:
        self.questions += 1
        if self._is_away:
            raise KafkaException(error(KafkaError._TRANSPORT))

    def init_transactions(self, timeout_s: float) -> None:
        self.fenced_after = self.questions


@pytest.mark.parametrize(("is_away", "questions"), [(False, 2), (True, 1)])
def test_a_partition_is_fenced_by_a_producer_that_is_connected(is_away: bool, questions: int) -> None:
    """One that knows no broker looks for its coordinator only every 500 ms."""
    made, producer = retrying_writer(), ConnectingProducer(is_away)
    made._producer = producer  # type: ignore[assignment]
    made.fence_former_owner()
    assert (producer.questions, producer.fenced_after) == (questions, questions)


def test_what_is_written_is_compressed_and_a_new_producer_connects_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(transaction, "Producer", lambda config, logger: configs.append(config))
    retrying_writer()
    assert [(config["compression.type"], config["reconnect.backoff.ms"]) for config in configs] == [("lz4", 10)]


class FakeTransactions:
    """Fails as reported, then works."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors, self.calls = list(errors), 0

    def commit(self, timeout_s: float) -> str:
        self.calls += 1
        if self.errors:
            raise KafkaException(self.errors.pop(0))
        return "committed"


def retrying_writer(wanted: bool = True) -> TransactionWriter:
    settings = ProcessorSettings(bootstrap_servers="127.0.0.1:1")
    return TransactionWriter(settings, processor_job(settings), 0, lambda: wanted)


def error(code: int, retriable: bool = False, abort: bool = False, fatal: bool = False) -> KafkaError:
    return KafkaError(code, "reported so", fatal, retriable, abort)


def test_a_retriable_error_is_retried_in_place() -> None:
    producer = FakeTransactions(*(error(KafkaError._TIMED_OUT, retriable=True) for _ in range(3)))
    assert retrying_writer()._retry_in_place(producer.commit, 1.0) == "committed"
    assert producer.calls == 4


def test_retries_end_with_the_owner() -> None:
    producer = FakeTransactions(error(KafkaError._TIMED_OUT, retriable=True))
    with pytest.raises(Lost):
        retrying_writer(wanted=False)._retry_in_place(producer.commit, 1.0)
    assert producer.calls == 1


def test_retries_with_one_producer_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_PATIENCE_S", 0.05)
    producer = FakeTransactions(*(error(KafkaError._TIMED_OUT, retriable=True) for _ in range(1_000)))
    with pytest.raises(Lost):
        retrying_writer()._retry_in_place(producer.commit, 1.0)
    assert producer.calls > 1


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        (error(KafkaError.TRANSACTION_COORDINATOR_FENCED, fatal=True), Lost),
        (error(KafkaError._FENCED, fatal=True), Lost),
        (error(KafkaError.NOT_ENOUGH_REPLICAS, abort=True), Aborted),
        (error(KafkaError.NOT_ENOUGH_REPLICAS, abort=True, retriable=True), Aborted),
        (error(KafkaError.MSG_SIZE_TOO_LARGE, abort=True), Halted),
    ],
)
def test_every_other_error_has_one_consequence(cause: KafkaError, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        retrying_writer()._retry_in_place(FakeTransactions(cause).commit, 1.0)
