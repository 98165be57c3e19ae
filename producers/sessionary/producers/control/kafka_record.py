"""Reads the log of one session's events from Kafka, without a group, up to its present end."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.producers.errors import AuthenticationFailed, Unavailable
from sessionary.producers.run_ports import LogEntry
from sessionary.schemas.headers import header_pairs, read_headers
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.kafka.clients import close_in_background
from sessionary.schemas.settings import KafkaSettings

_BATCH: Final = 2_000  # records that are read at once
_POLL_S: Final = 0.5
_TIME_MS: Final = 1_000  # between two times of others' records
_AUTHENTICATION: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_REFUSALS: Final = _AUTHENTICATION | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
_GROUP: Final = "sessionary-replay"  # nothing is committed: its name is for the broker's log only


class KafkaRecords:
    """`RecordReads` of a pipeline: a reader of its own for each call."""

    has_times = True

    def __init__(self, settings: KafkaSettings, first_s: float | None = None) -> None:
        """Connect to nothing yet. `first_s`: longest wait for the brokers' first answer, in s."""
        self._settings, self._first_s = settings, first_s

    def read_log(self, key: SessionKey, timeout_s: float) -> Iterator[Sequence[LogEntry]]:
        """Yield the entries of a session's partition; raises as `RecordReads` says."""
        topic = self._settings.topics.events
        told: list[KafkaError] = []  # by the brokers; a request that waits for them fails for its time-out only
        config = {**self._settings.reader_config_of(_GROUP), "auto.offset.reset": "earliest", "error_cb": told.append}
        consumer = Consumer(config)
        try:
            first_s = timeout_s if self._first_s is None else self._first_s
            known = consumer.list_topics(topic, timeout=first_s).topics.get(topic)
            count = 0 if known is None or known.error is not None else len(known.partitions)
            if not count:
                raise Unavailable(f"there is no topic {topic}", 1.0)
            place = TopicPartition(topic, partition_of(key.encoded(), count), OFFSET_BEGINNING)
            consumer.assign([place])
            yield from _read(consumer, key.encoded(), timeout_s)
        except KafkaException as error:
            consumer.poll(0)  # takes what the brokers told meanwhile
            refusals = [each for each in told if each.code() in _REFUSALS]
            raise _as_ours((*refusals, error.args[0])[0], self._settings) from error
        finally:
            close_in_background(consumer)


def _read(consumer: Consumer, key: bytes, timeout_s: float) -> Iterator[Sequence[LogEntry]]:
    told_ms, deadline_s = -_TIME_MS, time.monotonic() + timeout_s
    while True:
        messages = consumer.consume(_BATCH, _POLL_S)
        entries, is_end = list[LogEntry](), False
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    is_end = True
                    continue
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # the group is only a name: nothing is asked of it
                raise KafkaException(error)
            entry = _entry_of(message, key)
            if entry.key is not None or entry.at_ms - told_ms >= _TIME_MS:
                told_ms = entry.at_ms
                entries.append(entry)
        if entries:
            yield entries
        if is_end:
            return
        if messages:
            deadline_s = time.monotonic() + timeout_s
        elif time.monotonic() > deadline_s:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no record came for {timeout_s:g} s"))


def _entry_of(message: Message, key: bytes) -> LogEntry:
    offset, (_, at_ms) = message.offset(), message.timestamp()
    assert offset is not None
    if message.key() != key:
        return LogEntry(offset, at_ms)
    return LogEntry(offset, at_ms, key, message.value() or b"", header_pairs(read_headers(message)))


def _as_ours(cause: KafkaError, settings: KafkaSettings) -> AuthenticationFailed | Unavailable:
    topic, servers = settings.topics.events, settings.bootstrap_servers
    if cause.code() in _AUTHENTICATION:
        who = f"principal {settings.sasl_username!r}" if settings.sasl_username else "a client without a principal"
        return AuthenticationFailed(f"a replay may not read {topic}: Kafka at {servers} refuses {who} ({cause.str()})")
    if cause.code() in _REFUSALS:
        return AuthenticationFailed(f"a replay may not read {topic}: its principal needs Read on it ({cause.str()})")
    return Unavailable(f"Kafka at {servers} does not answer: {topic} cannot be read ({cause.str()})", 1.0)
