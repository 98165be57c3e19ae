"""When a position is in the log, and when the log lacks records that were folded."""

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from sessionary.schemas.records import Position
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import log_probe
from sessionary.stream_processors.runtime.log_probe import LogProbe, RecordStamp
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.runtime.messages import message

CLOCK_MS = 5_000


def position(next_offset: int) -> Position:
    return Position(next_offset, CLOCK_MS, 0, 1, 0)


def halt_reason(log: LogProbe, next_offset: int) -> str | None:
    try:
        log.check_position(0, position(next_offset))
    except Halted as fault:
        return fault.reason
    return None


@pytest.mark.parametrize(
    ("next_offset", "reason"), [(4, "log_gap"), (5, None), (9, None), (10, "log_truncated"), (90, "log_truncated")]
)
def test_a_position_must_be_within_the_log(next_offset: int, reason: str | None) -> None:
    assert halt_reason(LogProbe(5, 9), next_offset) == reason


def test_the_record_below_the_position_must_be_one_that_was_folded() -> None:
    assert halt_reason(LogProbe(0, 9, None, RecordStamp(CLOCK_MS, 3)), 7) is None
    assert halt_reason(LogProbe(0, 9, None, RecordStamp(CLOCK_MS + 1, 3)), 7) == "log_truncated"


def test_below_the_end_of_a_clock_repair_no_stamp_tells_a_loss() -> None:
    log = LogProbe(0, 9, None, RecordStamp(CLOCK_MS + 1, 3))
    for until_offset, is_lost in ((7, False), (6, True)):
        repaired = position(7)._replace(clock_repairs=(ClockRepair(1, until_offset, CLOCK_MS, 0, 9),))
        assert (log.find_truncation(0, repaired) is not None) == is_lost


def test_the_record_below_the_position_keeps_its_leader_epoch() -> None:
    log = LogProbe(0, 9, None, RecordStamp(CLOCK_MS - 1, 4))
    assert log.find_truncation(0, position(7)) is None, "the epoch in which it was folded is unknown"
    assert log.find_truncation(0, position(7), leader_epoch_max=4) is None
    fault = log.find_truncation(0, position(7), leader_epoch_max=3)
    assert fault is not None
    assert fault.reason == "log_truncated"
    assert LogProbe(0, 9, None, RecordStamp(1, None)).find_truncation(0, position(7), 3) is None


def test_a_position_that_knows_its_leader_epoch_is_compared_by_that_alone() -> None:
    known = position(7)._replace(leader_epoch=4)
    assert LogProbe(0, 9, None, RecordStamp(CLOCK_MS + 1, 4)).find_truncation(0, known, 3) is None
    fault = LogProbe(0, 9, None, RecordStamp(1, 5)).find_truncation(0, known, 9)
    assert fault is not None
    assert "was folded in epoch 4" in fault.detail
    assert LogProbe(0, 9, None, RecordStamp(CLOCK_MS + 1, None)).find_truncation(0, known) is not None


def test_the_fault_says_which_offsets_what_it_means_and_what_to_do() -> None:
    fault = LogProbe(0, 900).find_truncation(2, position(1_000))
    assert fault is not None
    for part in ("partition 2", "below offset 1000", "ends at 900", "unclean leader election", "Bring"):
        assert part in fault.detail


class ScriptedReader:
    """A reader of a log of offsets 0 to 9, of which some lie in a batch that cannot be read.

    Each report of the batch is followed by one of an offset that the log lacks.
    """

    def __init__(self, unreadable: range) -> None:
        self._unreadable = unreadable
        self._next = 0
        self._left_over: list[Message] = []

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, 10

    def assign(self, places: list[TopicPartition]) -> None:
        self._next = places[0].offset

    def poll(self, _: float) -> Message:
        if self._left_over:
            return self._left_over.pop()
        if self._next in self._unreadable:
            self._left_over.append(message(0, 1 << 62, error=KafkaError(KafkaError._AUTO_OFFSET_RESET)))
            return message(0, self._unreadable.start, error=KafkaError(KafkaError._BAD_COMPRESSION))
        self._next += 1
        return message(0, self._next - 1)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("unreadable", "has_previous", "first_offset"),
    [
        (range(0), True, 5),
        (range(5, 7), True, 5),  # the batch at the position
        (range(3, 5), False, 5),  # the one before it: it was skipped
        (range(3, 7), False, 5),  # it was folded in part before it was damaged
    ],
)
def test_a_batch_that_cannot_be_read_hides_no_position(
    monkeypatch: pytest.MonkeyPatch, unreadable: range, has_previous: bool, first_offset: int
) -> None:
    monkeypatch.setattr(log_probe, "reader_of", lambda _: ScriptedReader(unreadable))
    log = log_probe.probe_log(ProcessorSettings(), 0, 5)
    assert (log.start_offset, log.end_offset, log.first_offset) == (0, 10, first_offset)
    assert (log.previous is not None) == has_previous


class SilentReader(ScriptedReader):
    """A reader whose broker falls silent before an offset."""

    def __init__(self, silent_from: int) -> None:
        super().__init__(range(0))
        self._silent_from = silent_from

    def poll(self, timeout_s: float) -> Message:
        return None if self._next >= self._silent_from else super().poll(timeout_s)  # type: ignore[return-value]


@pytest.mark.parametrize("silent_from", [4, 5], ids=["the record below", "the record at it"])
def test_a_silent_broker_is_not_taken_for_a_log_without_a_record(
    silent_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_probe, "reader_of", lambda _: SilentReader(silent_from))
    with pytest.raises(Lost, match=r"events of partition 0: .*_TIMED_OUT"):
        log_probe.probe_log(ProcessorSettings(), 0, 5)
