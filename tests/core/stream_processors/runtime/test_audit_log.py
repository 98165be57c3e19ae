"""A partition's audit trail is read to its end, or it is said why not."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import AuditRecord
from sessionary.stream_processors.errors import Lost, StateExpired
from sessionary.stream_processors.runtime import audit_log
from sessionary.stream_processors.runtime.audit_log import read_audit
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.past_rig import PastRig
from tests.core.stream_processors.runtime.messages import end_of, message
from tests.support.event_factory import EventFactory

SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1")


class AuditReader:
    """A reader that has some messages, a few at once; then it is silent."""

    def __init__(self, messages: Sequence[Message], start: int = 0) -> None:
        self.messages, self.start, self.is_closed = list(messages), start, False

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
        ends = [one for one in self.messages if (error := one.error()) and error.code() == KafkaError._PARTITION_EOF]
        return self.start, self.start + len(self.messages) - len(ends)

    def assign(self, places: list[TopicPartition]) -> None:
        assert [place.topic for place in places] == [SETTINGS.topics.audit]
        self.messages = [one for one in self.messages if (one.offset() or 0) >= places[0].offset]

    def consume(self, _most: int, _pause_s: float) -> list[Message]:
        part, self.messages = self.messages[:2], self.messages[2:]
        return part

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        (place,) = places
        offsets = [one.offset() or 0 for one in self.messages if one.error() is None]
        later = [offset for offset in offsets if offset >= place.offset]  # each was appended at its offset
        return [TopicPartition(place.topic, place.partition, later[0] if later else -1)]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def trail() -> Sequence[AuditRecord]:
    rig = PastRig()
    rig.start(EventFactory("one"))
    rig.start(EventFactory("two"))
    return rig.trail


def messages_of(trail: Sequence[AuditRecord]) -> list[Message]:
    return [message(0, n, encode_record(record)) for n, record in enumerate(trail)]


def read(monkeypatch: pytest.MonkeyPatch, reader: AuditReader, *keys: bytes) -> list[AuditRecord]:
    monkeypatch.setattr(audit_log, "reader_of", lambda _: reader)
    try:
        parts = list(read_audit(SETTINGS, 0, StateExpired, keys or None))
    finally:
        assert reader.is_closed
    assert {part.start_offset for part in parts} <= {reader.start}
    return [record for part in parts for record in part.records]


def test_all_records_are_read_or_those_of_some_keys(
    monkeypatch: pytest.MonkeyPatch, trail: Sequence[AuditRecord]
) -> None:
    messages = [message(0, 0, b"no record"), *messages_of(trail), end_of(0, len(trail))]
    assert read(monkeypatch, AuditReader(messages)) == trail
    assert read(monkeypatch, AuditReader(messages, start=3), b"k0", b"k2") == [trail[0], trail[2]]
    assert read(monkeypatch, AuditReader([])) == []


def test_a_batch_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, trail: Sequence[AuditRecord]) -> None:
    damaged = message(0, 1, error=KafkaError(KafkaError._BAD_COMPRESSION))
    with pytest.raises(StateExpired, match="cannot be read"):
        read(monkeypatch, AuditReader([damaged, *messages_of(trail), end_of(0, len(trail))]))


def test_an_error_or_silence_is_no_end(monkeypatch: pytest.MonkeyPatch, trail: Sequence[AuditRecord]) -> None:
    broken = message(0, 1, error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(Lost, match="of partition 0") as lost:
        read(monkeypatch, AuditReader([broken]))
    assert isinstance(lost.value.__cause__, KafkaException)
    monkeypatch.setattr(audit_log, "_SILENCE_S", 0.0)
    with pytest.raises(Lost, match="silent"):
        read(monkeypatch, AuditReader(messages_of(trail)))


def test_a_trail_is_read_from_a_time_on(monkeypatch: pytest.MonkeyPatch, trail: Sequence[AuditRecord]) -> None:
    for since_ms, first in ((0, 0), (2, 2), (len(trail), len(trail))):
        reader = AuditReader([*messages_of(trail), end_of(0, len(trail))])
        monkeypatch.setattr(audit_log, "reader_of", lambda _, reader=reader: reader)
        parts = list(read_audit(SETTINGS, 0, StateExpired, None, since_ms))
        assert [record for part in parts for record in part.records] == trail[first:]
