"""The idempotent Kafka producer of a client, with a poll thread, and the meaning of its errors.

`partitioner=murmur2_random` is Kafka's own. librdkafka's default would put most sessions on
partitions where the processor does not expect them.
"""

import json
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from sessionary.producers.delivery.first_records import DeliveryCallback, FirstRecords
from sessionary.producers.errors import AuthenticationFailed, ProducerError, SettingsError, Unavailable
from sessionary.producers.ports import OnError, OutRecord
from sessionary.producers.process.guards import join_thread, no_thread_error, start_thread
from sessionary.producers.process.safe_text import replace_surrogates
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.kafka.clients import await_reports, discard_producer, purge_producer
from sessionary.schemas.settings import ENV_PREFIX
from sessionary.schemas.topics import EVENT_BYTES_MAX

# Finds out from librdkafka's statistics that a producer is stuck; pure.
#
# librdkafka was seen to find no broker for minutes after one had been killed, without an error. A
# new producer finds one at once.


STATISTICS_MS = 3_000
# A new producer tries after so long without an acknowledgement, then after twice as long each time,
# as the broker may really be down.
_STALL_S, _STALL_S_MAX = 15.0, 240.0
_WAITING = ("msgq_cnt", "xmit_msgq_cnt", "msgs_inflight")


class _Progress(NamedTuple):
    """The last acknowledgement of a partition, and since when it has not changed."""

    acknowledged: int
    since_s: float


class StallWatch:
    """Follows each partition of a topic: heartbeats count as events do.

    A partition is stuck if librdkafka holds records for it and none was acknowledged for 15 s. The
    records whose partition librdkafka does not know yet count as one more partition.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._patience_s = _STALL_S
        self._progress: dict[str, _Progress] = {}
        self._stuck: set[str] = set()  # since the last time that nothing was

    def find_stall(self, statistics: str, now_s: float) -> float:
        """Return for how many seconds a partition has been stuck, or 0 if none is for too long.

        Args:
            statistics: librdkafka's, as JSON.
            now_s: The time in seconds, of a clock that never goes back.

        Returns:
            The seconds. The next stall takes twice as long to be one, until all is well again.
        """
        partitions = json.loads(statistics).get("topics", {}).get(self._topic, {}).get("partitions", {})
        stalled_s = 0.0
        for name, found in partitions.items():
            acknowledged, waiting = found["acked_msgid"], any(found[count] for count in _WAITING)
            last = self._progress.get(name)
            if last is None or not waiting or acknowledged != last.acknowledged:
                self._progress[name] = _Progress(acknowledged, now_s)
                if last is not None and (not waiting or acknowledged > last.acknowledged):
                    self._stuck.discard(name)
            elif now_s - last.since_s >= self._patience_s:
                stalled_s = max(stalled_s, now_s - last.since_s)
                self._stuck.add(name)
        if not self._stuck:
            self._patience_s = _STALL_S
        if stalled_s:
            self._progress.clear()  # a new producer follows
            self._patience_s = min(2 * self._patience_s, _STALL_S_MAX)
        return stalled_s


_POLL_S = 0.1
_PROPERTY = re.compile(r"\b[a-z]+(?:\.[a-z]+)+\b")
_OWN_PROPERTIES = frozenset(
    {"bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location"}
)
_MESSAGES_MAX = 1_000_000
_METADATA_S = 1.0

_AUTHENTICATION = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_AUTHORISATION = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def named_error(error: KafkaError, settings: ProducerSettings) -> AuthenticationFailed | Unavailable:
    """Return a librdkafka error as an agent's error. The message never has the password."""
    if error.code() in _AUTHENTICATION:
        who = f"principal {settings.sasl_username!r}" if settings.sasl_username else "a client without a principal"
        return AuthenticationFailed(f"Kafka at {settings.bootstrap_servers} refuses {who}: {error.str()}")
    if error.code() in _AUTHORISATION:
        return AuthenticationFailed(
            f"principal {settings.sasl_username!r} may not write to {settings.topics.events}: {error.str()}"
        )
    return Unavailable(f"Kafka at {settings.bootstrap_servers}: {error.str()}", 1.0)


def error_reason(error: KafkaError) -> str:
    """Return the name of a librdkafka error in lower case, such as `msg_timed_out`."""
    return error.name().lower().lstrip("_")


def producer_config(settings: ProducerSettings) -> dict[str, object]:
    """Return the librdkafka configuration of the event producer."""
    spooling = settings.delivery_policy == "spool"
    return {
        **settings.client_config(),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        # The sender of a spool lingers too; this is for heartbeats, of which many are due at once.
        "linger.ms": 2 if spooling else 5,
        "compression.type": "lz4",
        "message.max.bytes": EVENT_BYTES_MAX,
        "queue.buffering.max.kbytes": max(settings.queue_bytes_max >> 10, 1),
        "queue.buffering.max.messages": _MESSAGES_MAX,
        # Only the spool may retry an event for ever: it is on disk.
        "message.timeout.ms": 0 if spooling else int(settings.delivery_timeout_s * 1000),
        "socket.keepalive.enable": True,
        "statistics.interval.ms": STATISTICS_MS,
    }


def open_producer(config: dict[str, Any]) -> Producer:
    """Return a librdkafka producer; it connects in the background.

    Raises `SettingsError`, and `ProducerError` if the process may start no thread.
    """
    for name, value in config.items():
        if isinstance(value, str) and not value.isascii() and value != replace_surrogates(value):
            raise SettingsError(f"{variable_of(name)}: it has bytes that are not UTF-8")
    try:
        return Producer(config)
    except KafkaException as error:
        text = error.args[0].str()
        if "create thread" in text:
            raise no_thread_error(RuntimeError(text)) from None
        named = [variable_of(name) for name in _PROPERTY.findall(text)]
        if "SASL mechanism" in text:
            named = [variable_of("sasl.mechanism")]
        raise SettingsError(f"{' and '.join(named) or 'Kafka'}: {text}") from None


def variable_of(name: str) -> str:
    """Return the variable that sets a property of librdkafka."""
    own = ENV_PREFIX + name.replace(".", "_").upper()
    return own if name in _OWN_PROPERTIES else own.replace(ENV_PREFIX, f"{ENV_PREFIX}KAFKA_", 1)


_Produce = Callable[[OutRecord, DeliveryCallback | None], None]


class KafkaProducer:
    """A librdkafka producer and its poll thread.

    Thread-safe; `replace_producer` and `close` by one thread at a time. `on_error` is called once
    per kind of error until `clear_errors`, `count_error` with the reason of each one. `on_poll` is
    called on the poll thread after each round of delivery reports, which holds many reports under
    load, and at least every 0.1 s; `on_statistics` there too, every few seconds, with librdkafka's.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        on_error: OnError,
        on_poll: Callable[[], None],
        count_error: Callable[[str], None],
        on_statistics: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._on_error = on_error
        self._on_poll = on_poll
        self._count_error = count_error
        self._on_statistics = on_statistics
        self._topic = settings.topics.events
        self._reported: set[type[Exception]] = set()
        self.authentication_error: AuthenticationFailed | None = None
        self.cluster_id: str | None = None  # not known yet
        self._stop = threading.Event()
        self._use_producer(self._new_producer())
        self._thread = threading.Thread(target=self._poll_until_closed, name="sessionary-delivery", daemon=True)
        try:
            start_thread(self._thread)
        except ProducerError:
            self._free_producer()
            raise

    def report_error(self, error: KafkaError) -> None:
        """Count `error`, and report it unless one of its kind was reported before."""
        self._count_error(error_reason(error))
        named = named_error(error, self._settings)
        if isinstance(named, AuthenticationFailed):
            self.authentication_error = named
        if type(named) not in self._reported:
            self._reported.add(type(named))
            self._on_error(named)

    def clear_errors(self) -> None:
        """Forget reported errors, because an event was delivered."""
        if self._reported or self.authentication_error is not None:
            self._reported.clear()
            self.authentication_error = None

    def replace_producer(self) -> None:
        """Continue with a new producer; the old one's records are dropped.

        Blocks for 0.1 s at most. Does nothing once this is closed.
        """
        if self._stop.is_set():
            return
        former = self._producer
        self._use_producer(self._new_producer())
        discard_producer(former)

    def close(self, timeout_s: float) -> None:
        """Stop the poll thread, which drops queued records within 0.1 s; wait that long.

        No record is taken afterwards.
        """
        self._stop.set()
        join_thread(self._thread, timeout_s)

    def _use_producer(self, producer: Producer) -> None:
        self._producer, self._records = producer, self._new_records(producer)
        self.produce_record: _Produce = self._records.produce
        self.place_of: Callable[[bytes], int | None] = self._records.place_of

    def _new_producer(self) -> Producer:
        callbacks = {"error_cb": self.report_error, "stats_cb": self._on_statistics}
        return open_producer({**producer_config(self._settings), **callbacks})

    def _new_records(self, producer: Producer) -> FirstRecords:
        def queue(record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
            headers: Any = record.headers  # the driver declares a list of which it changes nothing
            producer.produce(self._topic, record.value, record.key, on_delivery=on_delivery, headers=headers)

        def count_partitions() -> int | None:
            try:
                found = producer.list_topics(self._topic, _METADATA_S)
                self.cluster_id = found.cluster_id
                return len(found.topics[self._topic].partitions) or None
            except KafkaException:
                return None  # asked again after the next poll

        timeout_ms = cast(int, producer_config(self._settings)["message.timeout.ms"])
        return FirstRecords(queue, count_partitions, self._settings.queue_bytes_max, timeout_ms / 1000)

    def _poll_until_closed(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.poll(_POLL_S)
                self._records.release()
                if not self._stop.is_set():  # else `close` may be called from a callback of this poll
                    self._on_poll()
            except KafkaException as error:  # such as a refusal that ends the producer's work
                self.report_error(error.args[0])
                self._stop.wait(_POLL_S)
            except Exception as error:  # noqa: BLE001 - without this thread no event is ever acknowledged
                self._on_error(error)
                self._stop.wait(_POLL_S)
        # Here, not in `close`: a poll within a callback of another one aborts the process. And not
        # where the client is forgotten: to free a producer is to wait for librdkafka's threads, of
        # which each may wait for the address of a broker's name.
        purge_producer(self._producer)
        await_reports(self._producer)
        self._free_producer()

    def _free_producer(self) -> None:
        """Drop the last references to librdkafka's client, of which its callbacks make a circle."""
        self.produce_record, self.place_of = _refuse_record, _no_place
        del self._records, self._producer


def _refuse_record(_record: OutRecord, _on_delivery: DeliveryCallback | None) -> None:
    raise KafkaException(KafkaError(KafkaError._DESTROY, "the client is closed"))


def _no_place(_key: bytes) -> None:
    return None


__all__ = [
    "DeliveryCallback",
    "KafkaProducer",
    "error_reason",
    "named_error",
    "open_producer",
    "producer_config",
    "variable_of",
]
