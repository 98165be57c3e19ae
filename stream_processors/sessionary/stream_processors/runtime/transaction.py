"""A partition's transactional producer: it writes all results of a batch in one transaction.

    changelog   one record per row that changed, contents that changed, and the position
    audit, rejected, cleanup, tasks, migrations, batches
    quotas      notices of claims, each in its tenant's partition

The transactional id names group, topic and partition: opening a partition fences its former owner.
Everything here blocks and runs in an executor, in one thread at a time.

A transaction ends with an `EndTxn` request. The driver repeats one whose answer is lost, and the
broker may get the first one later: then it ends the *next* transaction of the same producer
(KIP-890; librdkafka speaks version 1 of the request, which cannot tell them apart). A producer
whose last end is in doubt therefore begins no other transaction: the owner of the partition
replaces it by one with a new epoch, and the late request is refused.

A broker that does not know a producer in a log takes whatever sequence number comes first. If the
first batch is refused for a moment (no leader yet, too few replicas) and the second one is taken,
the first never gets in, although the driver reports it as delivered and the commit succeeds. So a
producer's first record to each log goes alone, until it is acknowledged.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_position
from sessionary.schemas.ids import partition_of
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import POSITION_KEY, BatchResult
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import EXPECTED_ERRORS, Aborted, EndInDoubt, Halted, Lost, judge_failed
from sessionary.stream_processors.runtime.job import Job, PlainProduced, Produced, Transaction
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import StoredLookup, nothing_stored

_log = role_logger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_CALL_TIMEOUT_S = 10.0
# librdkafka drops the connection to the bootstrap server once that has named the brokers, so it
# takes a second question until one of these is connected.
_CONNECTING_QUESTIONS, _CONNECT_S = 2, 1.0
# After this long a producer is given up; a new one starts from the bootstrap servers.
_PATIENCE_S = 30.0
_RETRY_PAUSE_S = 0.02
# A commit sends what is left at once, so this delays nothing. Records that have waited for so long
# are due, and if they must wait for the answer to those before them, librdkafka's thread polls
# without a pause meanwhile.
_LINGER_MS = 50
_RECORD_BYTES_MAX = 1_000_000_000  # librdkafka's largest: the rules in force bound a record, and its topic
_FULL_PAUSE_S = 0.01
_BY_KEY = -1  # the partition is that of the key
# Half of the time after which a broker forgets a silent producer (`producer.id.expiration.ms`).
_KNOWN_S = 43_200.0
# The share of a batch's bounds after lost transactions: at least 19 records; it grows per commit.
_SHARE_MIN = 1 / 256
_SHARE_STEP = 1 / 128
_LOGGED_ERRORS = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)


# With this detail the driver logs each answer to an `EndTxn`, also a lost one: for each of 1,000
# held requests. Of lost connections it logged 2 of 10, because it leaves equal lines out. An
# operator's `log_level` is without effect then.
_DRIVER_DEBUG = "eos"
_END_LINE, _END_TAKEN = "ENDTXN", "NO_ERROR"
_driver_log = logging.getLogger(__name__)

# Completes a position record; gets the position and the transaction's rows, as a store keeps them.
Seal = Callable[[Position, Mapping[bytes, bytes | None]], Position]


def _no_seal(position: Position, _rows: Mapping[bytes, bytes | None]) -> Position:
    return position


def transactional_id(settings: ProcessorSettings, partition: int) -> str:
    """Return the transactional id of a partition's owners, by which one fences the former one."""
    return f"{settings.group_id}-{settings.topics.events}-{partition}"


class CommitReceipt(NamedTuple):
    """An acknowledged transaction."""

    rows: Mapping[bytes, bytes | None]  # as a store keeps them
    position: Position  # as it was written
    changelog_next: int  # the changelog's next offset, after the transaction's own records
    acknowledged_at: int  # µs since the epoch
    elapsed_s: float
    cpu_s: float = 0.0  # of this thread; librdkafka's threads are not in it
    written_bytes: int = 0  # keys and values of all records
    changelog_bytes: int = 0  # those of the changelog among them


class BatchLimits:
    """How large the batches of a worker's partitions may be after transactions that were lost.

    A transaction that is too large for its broker times out, and the same batch would time out
    again. So a lost one halves the bounds of its partition's next batches; each commit gives back a
    little. An outage halves them too, which costs little. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}  # below 1, by partition
        self._wholes: dict[int, PartitionSettings] = {}

    def limit_batches(self, state: PartitionState) -> None:
        """Bound the batches of an owner's new state, which has the whole bounds."""
        self._wholes[state.partition] = state.settings
        self._set_bounds(state)

    @contextmanager
    def adapt_to_transaction(self, state: PartitionState) -> Iterator[None]:
        """Adapt the bounds to the outcome of the transaction that is written inside.

        If it is lost, the partition's next state gets them; if it is committed, `state` does.
        """
        share = self._shares.get(state.partition, 1.0)
        try:
            yield
        except EndInDoubt:
            raise  # nothing was written
        except Lost:
            self._shares[state.partition] = max(_SHARE_MIN, share / 2)
            raise
        if share < 1.0:
            self._shares[state.partition] = min(1.0, share + _SHARE_STEP)
            self._set_bounds(state)

    def _set_bounds(self, state: PartitionState) -> None:
        whole, share = self._wholes[state.partition], self._shares.get(state.partition, 1.0)
        state.settings = whole._replace(
            records_max=max(1, int(whole.records_max * share)),
            timers_max=max(1, int(whole.timers_max * share)),
            bytes_max=int(whole.bytes_max * share),
            output_bytes_max=int(whole.output_bytes_max * share),
        )


class EndWatch:
    """Whether the end of a producer's last transaction is in doubt, by the driver's log.

    The driver hands out its lines at the next poll, in their order.
    """

    def __init__(self, *, shows_debug: bool = False) -> None:
        """`shows_debug`: write debug lines to stderr, as the driver does without a logger."""
        self._shows_debug = shows_debug
        self._answers = [True]  # to the last transaction's end: whether the broker took it
        self._was_aborted = False

    def begin(self) -> None:
        """Begin a transaction."""
        self._answers, self._was_aborted = [], False

    def abort(self) -> None:
        """Abort the transaction."""
        self._was_aborted = True

    @property
    def doubt(self) -> str | None:
        """What makes the last end doubtful; None if it was answered once, and the broker took it.

        An end without a line is in doubt too: it is not handed out yet, or a later driver writes
        other lines.
        """
        if self._was_aborted:
            return "was aborted"
        return None if self._answers == [True] else "has no certain end: the broker's answer was lost"

    def log(self, level: int, text: str, *given: object) -> None:
        """Take a line as a `logging.Logger` does: facility, client, text."""
        if given and given[0] == _END_LINE:
            self._answers.append(_END_TAKEN in str(given[-1]))
        if level > logging.DEBUG:
            _driver_log.log(level, text, *given)
        elif self._shows_debug:
            sys.stderr.write(f"%7|{time.time():.3f}|{'|'.join(map(str, given))}\n")


def _log_refusal(error: KafkaError) -> None:
    # Elsewhere a wrong password shows only as a time-out.
    if error.code() in _LOGGED_ERRORS:
        _log.error("the broker refuses this processor's credentials: %(error)s", **error_fields(error))


class TransactionWriter:
    """Writes outcomes of one partition for one owner; retries only while `wanted` is True."""

    def __init__(self, settings: ProcessorSettings, job: Job, partition: int, wanted: Callable[[], bool]) -> None:
        self._job = job
        self._topics = settings.topics
        self._partition = partition
        self._wanted = wanted
        self._position_offset: int | None = None
        self._written_bytes: dict[str, int] = {}  # of the transaction under way, by topic
        # When the broker knew this producer in a log (monotonic): its topic, with the partition if
        # that is a key's.
        self._known_s: dict[str | tuple[str, int], float] = {}
        self._firsts: set[str | tuple[str, int]] = set()  # where only a first record is, not acknowledged yet
        self._partitions = settings.partitions
        self.called_s = time.monotonic()  # when the last call into librdkafka began, monotonic; read by other threads
        operators_debug = settings.librdkafka.get("debug", "")
        self._end_watch = EndWatch(shows_debug=bool(operators_debug))
        config: dict[str, Any] = {
            **settings.client_config(),
            **settings.opening_config(),
            "transactional.id": transactional_id(settings, partition),
            "transaction.timeout.ms": 10_000,
            "linger.ms": _LINGER_MS,
            "compression.type": "lz4",
            # Back-to-back transactions get CONCURRENT_TRANSACTIONS; the default is 100 ms.
            "retry.backoff.ms": 2,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": _RECORD_BYTES_MAX,
            "partitioner": "murmur2_random",
            "error_cb": _log_refusal,
            "debug": ",".join(filter(None, (operators_debug, _DRIVER_DEBUG))),
        }
        self._producer = Producer(config, logger=self._end_watch)

    def fence_former_owner(self) -> None:
        """Fence the partition's former producer and end its open transaction. Raises `Lost`.

        Raises it too if the owner is no longer wanted: another worker's may be the rightful one.
        """
        if not self._wanted():
            raise Lost(f"partition {self._partition}: no longer wanted")
        self._connect()
        self._retry_in_place(self._producer.init_transactions, _CALL_TIMEOUT_S)

    def write_result(
        self, outcome: BatchResult, started_at: int, seal: Seal = _no_seal, stored: StoredLookup = nothing_stored
    ) -> CommitReceipt:
        """Write all of `outcome` in one transaction; `started_at` is in µs since the epoch.

        `seal` completes the position record; `stored` looks into the partition's store, for values
        that need not be written again. Raises `Aborted` (nothing was written), `Lost` or `Halted`;
        `EndInDoubt`, before it writes anything, if the transaction before may end once more.
        """
        begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
        self._check_last_end()
        self._known_s = {log: at_s for log, at_s in self._known_s.items() if at_s > begun_s - _KNOWN_S}
        records, rows, elsewhere = self._make_transaction(outcome, started_at, stored)
        position = seal(outcome.position, rows)
        try:
            self._end_watch.begin()
            self._retry_in_place(self._producer.begin_transaction)
            self._written_bytes.clear()
            self._produce(records)
            if elsewhere:
                self._produce(elsewhere, partition=_BY_KEY)
            self._position_offset = None
            sealed = Produced(self._topics.changelog, POSITION_KEY, encode_position(position))
            self._produce([sealed], self._on_position_delivered)
            self._retry_in_place(self._producer.commit_transaction, _CALL_TIMEOUT_S)
            self._note_known(self._written_bytes)
        except (Aborted, Halted):
            self._end_watch.abort()
            # An open transaction would hide all later records from readers, until it times out. A
            # producer that has lost its brokers can never abort; a new one's first call does.
            patient_until_s = time.monotonic() + _CALL_TIMEOUT_S
            self._retry_until(patient_until_s, self._producer.abort_transaction, _CALL_TIMEOUT_S)
            raise
        if self._position_offset is None:
            raise Lost(f"partition {self._partition}: no delivery report for the position")
        acknowledged_at, elapsed_s = time.time_ns() // 1_000, time.monotonic() - begun_s
        return CommitReceipt(
            rows,
            position,
            changelog_next=self._position_offset + 1,
            acknowledged_at=acknowledged_at,
            elapsed_s=elapsed_s,
            cpu_s=time.thread_time() - begun_cpu_s,
            written_bytes=sum(self._written_bytes.values()),
            changelog_bytes=self._written_bytes[self._topics.changelog],
        )

    def discard(self) -> None:
        """Free the producer in the background, at the owner's end. Never blocks.

        No other call may follow. One that hangs meanwhile keeps the producer until it returns.
        """
        producer = self._producer
        del self._producer  # who still holds this writer holds no threads and no connections
        discard_producer(producer)

    def _check_last_end(self) -> None:
        """Raise `EndInDoubt` if the last transaction may end once more, `Lost` on a failure."""
        self._retry_in_place(self._producer.poll, 0)
        if (doubt := self._end_watch.doubt) is not None:
            raise EndInDoubt(f"partition {self._partition}: the last transaction {doubt}; a new producer is needed")

    def _connect(self) -> None:
        """Connect the producer to a broker, if one answers soon.

        A producer that is connected to none when it looks for its coordinator looks again after
        500 ms only.
        """
        with suppress(KafkaException):  # the next call has more patience, and reports the fault
            for _ in range(_CONNECTING_QUESTIONS):
                self.called_s = time.monotonic()
                self._producer.list_topics(self._topics.changelog, timeout=_CONNECT_S)

    def _make_transaction(self, outcome: BatchResult, started_at: int, stored: StoredLookup) -> Transaction:
        try:
            return self._job.transaction(self._partition, outcome, started_at, stored)
        except EXPECTED_ERRORS:
            raise
        except Exception as error:  # a new owner would fail at the same batch
            counts = outcome.counts
            where = f"partition {self._partition}, offsets {counts.first_offset} to {counts.last_offset}"
            raise judge_failed(where, error) from error

    def _produce(
        self,
        records: Iterable[PlainProduced],
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Produce records, by default to the source's partition; count their bytes."""
        produce, written_bytes = self._producer.produce, self._written_bytes
        partition = self._partition if partition is None else partition
        try:
            for topic, key, value, headers in records:
                log = topic if partition != _BY_KEY else (topic, partition_of(key or b"", self._partitions))
                if log not in self._known_s:
                    self._begin_log(log)
                while True:
                    try:
                        if headers is None:
                            produce(topic, value, key, partition, on_delivery)
                        else:
                            produce(topic, value, key, partition, on_delivery, headers=headers)
                    except BufferError:
                        # The queue is full of this transaction's records: let it drain.
                        self._retry_in_place(self._producer.poll, _FULL_PAUSE_S)
                        continue
                    except KafkaException as error:
                        if error.args[0].code() == KafkaError._STATE:
                            # The broker has refused an earlier record: only a commit says why.
                            self._retry_in_place(self._producer.commit_transaction, _CALL_TIMEOUT_S)
                        raise self._classify_error(error.args[0], f"{topic}, key {key!r}") from error
                    break
                size = 0 if key is None else len(key)
                if value is not None:
                    size += len(value)
                written_bytes[topic] = written_bytes.get(topic, 0) + size
        finally:
            del produce  # an error keeps this frame, and the method would keep the producer

    def _begin_log(self, log: str | tuple[str, int]) -> None:
        """Wait before a log's second record until all first ones are acknowledged."""
        if log in self._firsts:
            self._retry_in_place(self._flush)
            self._note_known(())
        else:
            self._firsts.add(log)

    def _flush(self) -> None:
        try:
            left = self._producer.flush(_CALL_TIMEOUT_S)
        except SystemError as error:  # a fatal fault was set, and the driver still handed out a line of its log
            cause = error.__cause__ or error
            raise Lost(f"partition {self._partition}, _flush: {cause}") from error
        if left:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "first records are not acknowledged", retriable=True)
            )

    def _note_known(self, logs: Iterable[str]) -> None:
        """Note that the broker knows this producer in `logs`, and where first records were sent."""
        self._known_s |= dict.fromkeys((*logs, *self._firsts), time.monotonic())
        self._firsts.clear()

    def _on_position_delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._position_offset = message.offset()

    def _retry_in_place(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a transactional call; repeat it after retriable errors, for at most 30 s."""
        try:
            return self._retry_until(time.monotonic() + _PATIENCE_S, call, *args, **kwargs)
        finally:
            # An error keeps this frame, maybe while the process lives; the producer's method would
            # keep its threads and connections.
            del call

    def _retry_until(self, patient_until_s: float, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a transactional call; repeat it after retriable errors until then, monotonic."""
        try:
            while True:
                self.called_s = time.monotonic()
                try:
                    return call(*args, **kwargs)
                except KafkaException as error:
                    cause: KafkaError = error.args[0]
                    passing = cause.retriable() and not cause.txn_requires_abort() and not cause.fatal()
                    if not passing or not self._wanted() or time.monotonic() >= patient_until_s:
                        raise self._classify_error(cause, call.__name__) from error
                    time.sleep(_RETRY_PAUSE_S)
        finally:
            del call  # as above

    def _classify_error(self, cause: KafkaError, where: str) -> Aborted | Lost | Halted:
        what = f"partition {self._partition}, {where}: {cause.str()}"
        if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return Halted("record_too_large", what)
        return Aborted(what) if cause.txn_requires_abort() else Lost(what)
