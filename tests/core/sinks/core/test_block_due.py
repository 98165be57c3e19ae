import pytest

from sessionary.sinks.core.block_due import BlockLimits, WaitingRecords, is_block_due

LIMITS = BlockLimits(rows=9_000, bytes=100, seconds=1.0, idle_seconds=60.0)


@pytest.mark.parametrize(
    ("waiting", "now_s", "is_due"),
    [
        # Records arrived at 10 s; those that are all idle may wait until 70 s.
        (WaitingRecords(1, 1, 10.0, 70.0), 11.0, False),
        (WaitingRecords(1, 1, 10.0, 70.0), 69.999, False),
        (WaitingRecords(1, 1, 10.0, 70.0), 70.0, True),
        # Idle records that are old already are collected for as long as others.
        (WaitingRecords(1, 1, 10.0, 10.0), 10.999, False),
        (WaitingRecords(1, 1, 10.0, 10.0), 11.0, True),
        # Another record among them: as if it had come alone.
        (WaitingRecords(5, 5, 10.0, 70.0, busy_since_s=40.0), 40.999, False),
        (WaitingRecords(5, 5, 10.0, 70.0, busy_since_s=40.0), 41.0, True),
        (WaitingRecords(1, 1, 10.0, 70.0, busy_since_s=10.0), 11.0, True),
        # More is known to wait in the log.
        (WaitingRecords(1, 1, 10.0, 70.0, busy_since_s=10.0, is_far_behind=True), 13.999, False),
        (WaitingRecords(1, 1, 10.0, 70.0, busy_since_s=10.0, is_far_behind=True), 14.0, True),
        (WaitingRecords(1, 1, 10.0, 10.0, is_far_behind=True), 13.999, False),
        (WaitingRecords(1, 1, 10.0, 10.0, is_far_behind=True), 14.0, True),
        # A full block does not wait; one of many idle records waits no longer than others.
        (WaitingRecords(9_000, 1, 10.0, 70.0), 10.0, True),
        (WaitingRecords(1, 100, 10.0, 70.0), 10.0, True),
        (WaitingRecords(5_000, 1, 10.0, 70.0), 10.999, False),
        (WaitingRecords(5_000, 1, 10.0, 70.0), 11.0, True),
    ],
)
def test_when_a_block_is_due(waiting: WaitingRecords, now_s: float, is_due: bool) -> None:
    assert is_block_due(waiting, LIMITS, now_s) is is_due
