"""What is read of the records that an operator skips, if one of their batches cannot be read."""

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from sessionary.stream_processors.runtime.decisions import skipped_records
from sessionary.stream_processors.runtime.decisions.skipped_records import read_records
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.runtime.fetching.messages import end_of, message

SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1")


class DamagedLog:
    """A reader of a log in which the offsets of one batch cannot be read."""

    def __init__(self, damaged: range, end_offset: int) -> None:
        self.damaged, self.end_offset = damaged, end_offset
        self.next_offset = self.assigned = 0

    def assign(self, places: list[TopicPartition]) -> None:
        self.next_offset, self.assigned = places[0].offset, self.assigned + 1

    def poll(self, _timeout_s: float) -> Message:
        offset = self.next_offset
        if offset >= self.end_offset:
            return end_of(0, offset)
        if offset in self.damaged:
            return message(0, self.damaged.start, error=KafkaError(KafkaError._BAD_COMPRESSION))
        self.next_offset += 1
        return message(0, offset)

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.end_offset

    def close(self) -> None:
        """There is no connection."""


def read_log(monkeypatch: pytest.MonkeyPatch, log: DamagedLog, first: int, last: int) -> tuple[list[int], int]:
    """Return the offsets of what is read from `first` to `last`, and the next offset."""
    monkeypatch.setattr(skipped_records, "reader_of", lambda _: log)
    read = read_records(SETTINGS, 0, first, last)
    return [record.offset for record in read.records], read.next_offset


@pytest.mark.parametrize("after", [0, 1, 50])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000])
def test_a_batch_that_cannot_be_read_is_skipped_to_its_end(
    monkeypatch: pytest.MonkeyPatch, size: int, after: int
) -> None:
    log = DamagedLog(range(5, 5 + size), 5 + size + after)
    assert read_log(monkeypatch, log, 5, 5) == ([], 5 + size)
    assert log.assigned <= 25, "the end is searched for by halves"
    middle = 5 + size // 2
    assert read_log(monkeypatch, log, middle, middle) == ([], 5 + size)


def test_records_before_and_after_such_a_batch_are_read_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DamagedLog(range(5, 8), 20)
    assert read_log(monkeypatch, log, 3, 9) == ([3, 4], 5)
    assert read_log(monkeypatch, log, 5, 9) == ([], 8)
    assert read_log(monkeypatch, log, 8, 9) == ([8, 9], 10)
    assert read_log(monkeypatch, log, 3, 4) == ([3, 4], 5)
    assert read_log(monkeypatch, log, 18, 30) == ([18, 19], 20)
