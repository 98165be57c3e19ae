"""Which records of a log that was cut, and grew again, have the offsets of folded ones."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sessionary.schemas.records import Position
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime.decisions import truncated_log
from sessionary.stream_processors.runtime.decisions.truncated_log import FILL_MAX, fill_log, find_replaced
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.runtime.fetching.messages import end_of

SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1")
NEXT_OFFSET, CLOCK_MS = 40, 5_000


class StampedMessage:
    """A record's stamp and leader epoch."""

    def __init__(self, timestamp_ms: int, epoch: int | None) -> None:
        self._timestamp_ms, self._epoch = timestamp_ms, epoch

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 2, self._timestamp_ms

    def leader_epoch(self) -> int | None:
        return self._epoch


class CutLog:
    """A reader of a log whose records from `cut` on were appended later, by another leader."""

    def __init__(self, cut: int, epochs: tuple[int, int] | None, message: Any = None) -> None:
        self.cut, self.epochs, self.message, self.offset = cut, epochs, message, 0
        self.is_closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        self.offset = places[0].offset

    def poll(self, _timeout_s: float) -> Any:
        if self.message is not None:
            return self.message if self.message != "silence" else None
        is_later = self.offset >= self.cut
        return StampedMessage(CLOCK_MS + is_later, self.epochs and self.epochs[is_later])

    def close(self) -> None:
        self.is_closed = True


def find_in(monkeypatch: pytest.MonkeyPatch, log: CutLog, epoch: int | None, start: int = 0) -> int:
    monkeypatch.setattr(truncated_log, "reader_of", lambda _: log)
    position = Position(NEXT_OFFSET, CLOCK_MS, 0, 1, 0, leader_epoch=epoch)
    try:
        return find_replaced(SETTINGS, 0, position, start)
    finally:
        assert log.is_closed


@pytest.mark.parametrize("cut", [0, 1, 17, 39, 40])
@pytest.mark.parametrize(("epoch", "epochs"), [(3, (3, 4)), (3, (1, 9)), (3, None), (None, (3, 4))])
def test_records_of_a_later_epoch_or_after_the_clock_were_never_folded(
    monkeypatch: pytest.MonkeyPatch, cut: int, epoch: int | None, epochs: tuple[int, int] | None
) -> None:
    assert find_in(monkeypatch, CutLog(cut, epochs), epoch) == cut
    assert find_in(monkeypatch, CutLog(cut, epochs), epoch, start=20) == max(20, cut)


def test_an_offset_at_the_end_of_the_log_counts_as_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_in(monkeypatch, CutLog(0, None, end_of(0, 7)), 3, start=30) == 30


def test_a_broker_that_does_not_answer_loses_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Lost, match="nothing read at offset"):
        find_in(monkeypatch, CutLog(0, None, "silence"), 3)

    class FailedLog(CutLog):
        def poll(self, _timeout_s: float) -> Any:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with pytest.raises(Lost, match="events of partition 0"):
        find_in(monkeypatch, FailedLog(0, None), 3)


def test_a_log_that_lost_very_much_is_not_filled() -> None:
    with pytest.raises(Lost, match="at most 1000000 are filled"):
        fill_log(SETTINGS, 0, LogProbe(0, 9), 9 + FILL_MAX + 1)
