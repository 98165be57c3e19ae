"""One partition's transactional producer: everything that a batch has to say, in one transaction.

    changelog   one record per touched session, and the position
    audit, rejected, cleanup, batches

The transactional id names group, topic and partition, so whoever opens a partition fences its former owner, whatever
that one believes. Everything here blocks and belongs into an executor; one thread at a time.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, ParamSpec, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.topics import CHANGELOG_BYTES_MAX
from sessionary.stream_processors.core.partition import Outcome
from sessionary.stream_processors.errors import Aborted, Halted, Lost
from sessionary.stream_processors.runtime.job import POSITION_KEY, Job, PlainProduced, Produced
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_CALL_TIMEOUT_S = 10.0
# After this long a producer is given up: a new one begins with the bootstrap servers again.
_PATIENCE_S = 30.0
_RETRY_PAUSE_S = 0.02
_FULL_PAUSE_S = 0.01
_LOGGED_ERRORS = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)


class Written(NamedTuple):
    """An acknowledged transaction."""

    rows: Mapping[bytes, bytes | None]  # as a store keeps them
    changelog_next: int  # the changelog offset behind the transaction's own records
    acknowledged_at: int  # µs since the epoch
    elapsed_s: float


def _report(error: KafkaError) -> None:
    # A wrong password shows elsewhere as a time-out only.
    if error.code() in _LOGGED_ERRORS:
        _log.error("broker refuses this processor: %s", error.str())


class Outputs:
    """Writes outcomes of one partition during one ownership. `wanted` turning false ends its patience."""

    def __init__(self, settings: ProcessorSettings, job: Job, partition: int, wanted: Callable[[], bool]) -> None:
        self._job = job
        self._topics = settings.topics
        self._partition = partition
        self._wanted = wanted
        self._position_offset: int | None = None
        self.called_s = time.monotonic()  # when the call under way, or the last one, began; read by other threads
        self._producer = Producer(
            {
                **settings.client_config(),
                "transactional.id": f"{settings.group_id}-{self._topics.events}-{partition}",
                "transaction.timeout.ms": 10_000,
                "linger.ms": 2,
                # Back-to-back transactions meet CONCURRENT_TRANSACTIONS; the default waits 100 ms each time.
                "retry.backoff.ms": 2,
                "queue.buffering.max.messages": 1_000_000,
                "message.max.bytes": CHANGELOG_BYTES_MAX,
                "partitioner": "murmur2_random",
                "error_cb": _report,
            }
        )

    def open(self) -> None:
        """Fence whoever wrote this partition before; its open transaction ends. Raises `Lost`."""
        self._in_place(self._producer.init_transactions, _CALL_TIMEOUT_S)

    def write(self, outcome: Outcome, started_at: int) -> Written:
        """Write all of `outcome`; visible at once or never. Raises `Aborted`, `Lost`, `Halted`."""
        begun_s = time.monotonic()
        records, rows = self._job.transaction(self._partition, outcome, started_at)
        try:
            self._in_place(self._producer.begin_transaction)
            self._produce(records)
            self._position_offset = None
            position = Produced(self._topics.changelog, POSITION_KEY, encode_record(outcome.position))
            self._produce([position], self._delivered)
            self._in_place(self._producer.commit_transaction, _CALL_TIMEOUT_S)
        except (Aborted, Halted):
            # Left open, it would hide what stands behind it from every reader, until it times out.
            self._in_place(self._producer.abort_transaction, _CALL_TIMEOUT_S)
            raise
        if self._position_offset is None:
            raise Lost(f"partition {self._partition}: no delivery report for the position")
        return Written(rows, self._position_offset + 1, time.time_ns() // 1_000, time.monotonic() - begun_s)

    def _produce(
        self,
        records: Iterable[PlainProduced],
        delivered: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        produce, partition = self._producer.produce, self._partition
        for topic, key, value, headers in records:
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, partition, delivered)
                    else:
                        produce(topic, value, key, partition, delivered, headers=headers)
                except BufferError:
                    # The queue is full of this very transaction: let it drain.
                    self._producer.poll(_FULL_PAUSE_S)
                    continue
                except KafkaException as error:
                    raise self._fault(error.args[0], f"{topic}, key {key!r}") from error
                break

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._position_offset = message.offset()

    def _in_place(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a transactional call until it is through: after a retriable error the same call goes on."""
        patient_until_s = time.monotonic() + _PATIENCE_S
        while True:
            self.called_s = time.monotonic()
            try:
                return call(*args, **kwargs)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                passing = cause.retriable() and not cause.txn_requires_abort() and not cause.fatal()
                if not passing or not self._wanted() or time.monotonic() >= patient_until_s:
                    raise self._fault(cause, call.__name__) from error
                time.sleep(_RETRY_PAUSE_S)

    def _fault(self, cause: KafkaError, where: str) -> Aborted | Lost | Halted:
        what = f"partition {self._partition}, {where}: {cause.str()}"
        if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return Halted("record_too_large", what)
        return Aborted(what) if cause.txn_requires_abort() else Lost(what)


__all__ = ["Outputs", "Written"]
