"""What is kept of the last records' outcomes, and for how long."""

from sessionary.stream_processors.core.recent import RECORDS_KEPT, JudgedRecords, RecentOutcomes, RecordOutcome

APPLIED = RecordOutcome(None, None)


def judged_range(first: int, number: int, key: bytes = b"k") -> JudgedRecords:
    judged = JudgedRecords()
    judged.offsets.extend(range(first, first + number))
    judged.key_hashes.extend([hash(key)] * number)
    return judged


def test_a_record_is_found_by_its_offset_and_its_key() -> None:
    recent, judged = RecentOutcomes(), judged_range(10, 4)
    judged.offsets[3] = 17  # offsets between hold ticks and markers
    judged.refusals[11], judged.duplicates[12] = "late", "event-1"
    recent.add_batch(judged_range(3, 2))
    recent.add_batch(judged)
    recent.add_batch(JudgedRecords())  # ticks only
    recent.add_batch(judged_range(30, 1, b"other"))
    assert recent.find(10, b"k") == recent.find(17, b"k") == recent.find(4, b"k") == APPLIED
    assert recent.find(11, b"k") == RecordOutcome("late", None)
    assert recent.find(12, b"k") == RecordOutcome(None, "event-1")
    assert [recent.find(offset, b"k") for offset in (0, 2, 5, 13, 16, 18, 30, 31)] == [None] * 8
    assert recent.find(30, b"other") == APPLIED


def test_the_last_records_are_kept_and_older_batches_go() -> None:
    recent = RecentOutcomes()
    for first in range(0, 4 * RECORDS_KEPT, 1_000):
        recent.add_batch(judged_range(first, 1_000))
        last = first + 999
        assert recent.find(last, b"k") == recent.find(max(0, last - RECORDS_KEPT + 1), b"k") == APPLIED
    assert recent.find(last - RECORDS_KEPT - 1_000, b"k") is None
