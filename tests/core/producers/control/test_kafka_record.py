"""An entry of the log as Kafka delivers it."""

from typing import cast

from confluent_kafka import Message

from sessionary.producers.control.kafka_record import _entry_of
from sessionary.producers.run_ports import LogEntry
from sessionary.schemas.headers import UNREADABLE_HEADERS
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
