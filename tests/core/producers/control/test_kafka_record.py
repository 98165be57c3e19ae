"""An entry of the log as Kafka delivers it."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.producers import AuthenticationFailed, Unavailable
from sessionary.producers.control import kafka_record
from sessionary.producers.control.kafka_record import KafkaRecords, _entry_of
from sessionary.producers.errors import ProducerError
from sessionary.producers.run_ports import LogEntry
from sessionary.schemas.headers import UNREADABLE_HEADERS
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.settings import KafkaSettings
from tests.support.broken_headers import BrokenMessage


class BrokenEvent(BrokenMessage):
    """A record of the session, whose headers the driver cannot read."""

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


def test_a_record_has_its_headers_as_pairs_and_one_of_others_is_a_time() -> None:
    message = Message("t", 0, 7, b"k", b"v", [("a", b"1"), ("b", None)], None, (2, 1_000))
    assert _entry_of(message, b"k") == LogEntry(7, 1_000, b"k", b"v", [("a", b"1"), ("b", b"")])
    assert _entry_of(message, b"other") == LogEntry(7, 1_000)


def test_a_record_whose_headers_cannot_be_read_is_one_of_the_log() -> None:
    entry = _entry_of(cast(Message, BrokenEvent()), b"k")
    assert entry == LogEntry(7, 1_000, b"k", b"v", list(UNREADABLE_HEADERS))


class RefusedConsumer:
    """A consumer to which the brokers tell something, and which gives up its first request."""

    def __init__(self, config: dict[str, Any], told: list[int]) -> None:
        self.config, self.told = config, told

    def list_topics(self, *_names: str, **_options: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, _timeout_s: float) -> None:
        tell: Callable[[KafkaError], None] = self.config["error_cb"]
        for code in self.told:
            tell(KafkaError(code))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("told", "kind", "text"),
    [
        ([], Unavailable, "Kafka at none:1 does not answer: sessionary.events cannot be read"),
        ([KafkaError._ALL_BROKERS_DOWN], Unavailable, "does not answer"),
        (
            [KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION],
            AuthenticationFailed,
            "may not read sessionary.events: Kafka at none:1 refuses principal 'eve'",
        ),
        ([KafkaError.TOPIC_AUTHORIZATION_FAILED], AuthenticationFailed, "its principal needs Read on it"),
    ],
)
def test_a_refusal_of_the_brokers_is_told_and_not_the_time_out_that_follows(
    told: list[int], kind: type[ProducerError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_record, "Consumer", lambda config: RefusedConsumer(config, told))
    monkeypatch.setattr(kafka_record, "close_in_background", lambda consumer: consumer.close())
    settings = KafkaSettings(bootstrap_servers="none:1", sasl_username="eve", sasl_mechanism="plain", sasl_password="x")
    with pytest.raises(kind, match=text):
        list(KafkaRecords(settings).read_log(SessionKey("acme", "s"), 1.0))
