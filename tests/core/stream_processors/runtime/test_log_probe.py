"""When a position is in the log, and when the log lacks records that were folded."""

import pytest

from sessionary.schemas.records import Position
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.log_probe import LogProbe, RecordStamp

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
