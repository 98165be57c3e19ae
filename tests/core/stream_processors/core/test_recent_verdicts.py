"""What is kept of the last records' outcomes, and for how long."""

from sessionary.stream_processors.core.model import (
    EVENT_ID_KEPT,
    RECORDS_KEPT,
    JudgedRecords,
    RecentVerdicts,
    RecordVerdict,
)
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

APPLIED = RecordVerdict(None, None)


def judged_range(first: int, number: int, key: bytes = b"k") -> JudgedRecords:
    judged = JudgedRecords()
    judged.offsets.extend(range(first, first + number))
    judged.key_hashes.extend([hash(key)] * number)
    return judged


def test_a_record_is_found_by_its_offset_and_its_key() -> None:
    recent, judged = RecentVerdicts(), judged_range(10, 4)
    judged.offsets[3] = 17  # offsets between hold ticks and markers
    judged.rejections[11], judged.duplicates[12] = "late", "event-1"
    recent.add_batch(judged_range(3, 2))
    recent.add_batch(judged)
    recent.add_batch(JudgedRecords())  # ticks only
    recent.add_batch(judged_range(30, 1, b"other"))
    assert recent.find(10, b"k") == recent.find(17, b"k") == recent.find(4, b"k") == APPLIED
    assert recent.find(11, b"k") == RecordVerdict("late", None)
    assert recent.find(12, b"k") == RecordVerdict(None, "event-1")
    assert [recent.find(offset, b"k") for offset in (0, 2, 5, 13, 16, 18, 30, 31)] == [None] * 8
    assert recent.find(30, b"other") == APPLIED


def test_the_last_records_are_kept_and_older_batches_go() -> None:
    recent = RecentVerdicts()
    for first in range(0, 4 * RECORDS_KEPT, 1_000):
        recent.add_batch(judged_range(first, 1_000))
        last = first + 999
        assert recent.find(last, b"k") == recent.find(max(0, last - RECORDS_KEPT + 1), b"k") == APPLIED
    assert recent.find(last - RECORDS_KEPT - 1_000, b"k") is None


def test_what_is_kept_is_bounded() -> None:
    assert (RECORDS_KEPT, EVENT_ID_KEPT) == (8_192, 128)
    judged = JudgedRecords()
    for offset, length in enumerate((1, EVENT_ID_KEPT, EVENT_ID_KEPT + 1)):
        judged.add_duplicate(offset, "x" * length)
    assert judged.duplicates == {0: "x", 1: "x" * EVENT_ID_KEPT, 2: ""}


def test_a_batch_tells_what_became_of_each_of_its_records() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rejected = agent.event_bytes("session_resumed", {"event_id": "e-1"})
    for key, value in ((agent.key.encoded(), rejected), (agent.key.encoded(), rejected), (None, b"no tick")):
        rig.append(key, value)
    rig.tick()
    found = [outcome.judged for outcome in rig.outcomes]
    assert [list(judged.offsets) for judged in found] == [[0], [1], [2], [3], [4], [5], [6], []]
    assert [list(judged.key_hashes) for judged in found[-4:]] == [
        *([hash(agent.key.encoded())] for _ in range(2)),
        [hash(b"")],
        [],
    ]
    assert [judged.rejections for judged in found[-4:]] == [{4: "illegal_transition"}, {}, {6: "bad_key"}, {}]
    assert [judged.duplicates for judged in found[-4:]] == [{}, {5: "e-1"}, {}, {}]
    assert not any(judged.rejections or judged.duplicates for judged in found[:4])


def test_a_batch_goes_exactly_if_enough_records_are_left_without_it() -> None:
    recent = RecentVerdicts()
    recent.add_batch(judged_range(0, 1))
    recent.add_batch(judged_range(1, RECORDS_KEPT - 1))
    assert recent.find(0, b"k") == APPLIED
    recent.add_batch(judged_range(RECORDS_KEPT, 1))
    assert recent.find(0, b"k") is None
    assert recent.find(1, b"k") == recent.find(RECORDS_KEPT, b"k") == APPLIED
    recent.add_batch(judged_range(RECORDS_KEPT + 1, RECORDS_KEPT))
    assert recent.find(RECORDS_KEPT, b"k") is None
    assert recent.find(RECORDS_KEPT + 1, b"k") == APPLIED
