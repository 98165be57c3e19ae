import json

import pytest

from sessionary.sinks.core.intent import Batch, Intent, Limits, PartitionPlan, parse_intent
from sessionary.sinks.core.rows.history import RawRecord

LIMITS = Limits(rows=3, bytes=100, seconds=1.0)


def record(offset: int, size: int = 1) -> RawRecord:
    return RawRecord("t.audit", 2, offset, 1_000 + offset, None, b"v" * size)


def gathered(plan: PartitionPlan, *offsets: int, now: float = 0.0, high: int = 0) -> PartitionPlan:
    plan.add([record(offset) for offset in offsets], now, high)
    return plan


def offsets(batch: Batch) -> list[int]:
    return [found.offset for found in batch.records]


def written(plan: PartitionPlan) -> Batch:
    """Take, declare and write one batch; return it as it was taken."""
    batch = plan.take(0.0, 7)
    if batch.intent is not None:
        plan.declared()
    plan.wrote()
    return batch


def test_a_batch_is_due_by_rows_bytes_or_age_and_never_when_empty() -> None:
    assert not PartitionPlan(LIMITS, 0, "").due(99.0)
    assert not gathered(PartitionPlan(LIMITS, 0, ""), 0, 1).due(0.999)
    assert gathered(PartitionPlan(LIMITS, 0, ""), 0, 1).due(1.0)
    assert gathered(PartitionPlan(LIMITS, 0, ""), 0, 1, 2).due(0.0)
    heavy = PartitionPlan(LIMITS, 0, "")
    heavy.add([record(0, size=100)], 0.0)
    assert heavy.due(0.0)


def test_a_small_batch_waits_for_longer_where_more_waits_in_the_log() -> None:
    behind = gathered(PartitionPlan(LIMITS, 0, ""), 0, 1, high=5)  # 2, 3 and 4 are to come
    assert not behind.due(3.999)
    assert behind.due(4.0)
    assert gathered(PartitionPlan(LIMITS, 0, ""), 0, 1, high=4).due(1.0)  # no more than it has already
    assert gathered(behind, 2, high=5).due(0.0)
    caught_up = gathered(PartitionPlan(LIMITS, 0, ""), 0, high=3)
    caught_up.reached_end(3)
    assert caught_up.due(1.0)


def test_records_that_were_taken_already_are_dropped() -> None:
    plan = gathered(PartitionPlan(LIMITS, 0, ""), 0, 1)
    gathered(plan, 0, 1, 2)
    gathered(plan, 1, 2)
    assert offsets(plan.take(0.0, 0)) == [0, 1, 2]


def test_the_intent_is_committed_at_the_first_record_and_names_the_last() -> None:
    plan = gathered(PartitionPlan(LIMITS, 5, ""), 6, 8, 9, 11)
    batch = plan.take(0.0, 7)
    assert (batch.first, batch.last, offsets(batch)) == (6, 9, [6, 8, 9])
    assert batch.intent == Intent(9, 3, 7)
    assert json.loads(batch.intent.encoded()) == {"v": 1, "to": 9, "n": 3, "at": 7}
    assert batch.token("g.sink.audit", "t.audit", 2) == "g.sink.audit:t.audit:2:6-9"
    assert plan.waiting == 1


def test_a_batch_in_flight_stays_as_it_is_while_more_arrives() -> None:
    plan = gathered(PartitionPlan(LIMITS, 0, ""), 0, 1, 2)
    batch = plan.take(0.0, 7)
    gathered(plan, 3, 4, 5)
    assert not plan.due(9.0)
    assert plan.in_flight is batch
    plan.declared()
    assert plan.in_flight is not None
    assert plan.in_flight.intent is None
    assert offsets(plan.in_flight) == [0, 1, 2]
    plan.wrote()
    assert plan.landed == 3
    assert plan.due(0.0)


@pytest.mark.parametrize("crash", ["before the insert", "after the insert"])
def test_after_a_crash_the_successor_writes_exactly_the_declared_records_under_the_same_token(crash: str) -> None:
    first = gathered(PartitionPlan(LIMITS, 4, ""), 4, 6)
    declared = first.take(0.0, 7)
    assert declared.intent is not None
    metadata = declared.intent.encoded()
    first.declared()
    if crash == "after the insert":
        first.wrote()  # nothing of this was committed: the successor sees the same offset and metadata
    successor = PartitionPlan(LIMITS, declared.first, metadata)
    assert successor.replaying
    gathered(successor, 4)
    assert not successor.due(99.0)  # whatever its age: the block must be the same
    gathered(successor, 6, 7, 8, 9, 10)
    assert successor.due(0.0)
    replay = successor.take(0.0, 8)
    assert replay.intent is None  # it stands committed already
    assert offsets(replay) == [4, 6]
    assert replay.token("g", "t", 2) == declared.token("g", "t", 2)
    successor.wrote()
    assert not successor.replaying
    assert offsets(successor.take(0.0, 9)) == [7, 8, 9]


def test_a_replay_of_more_records_than_a_batch_may_hold_stays_one_block() -> None:
    plan = PartitionPlan(LIMITS, 0, Intent(6, 7, 0).encoded())
    gathered(plan, 0, 1, 2, 3, 4, 5)
    assert not plan.due(99.0)
    gathered(plan, 6)
    assert offsets(plan.take(0.0, 0)) == [0, 1, 2, 3, 4, 5, 6]


def test_a_replay_whose_records_the_log_has_lost_ends_at_the_next_record_or_the_end() -> None:
    beyond = gathered(PartitionPlan(LIMITS, 0, Intent(6, 7, 0).encoded()), 5, 9)
    assert beyond.due(0.0)
    assert offsets(beyond.take(0.0, 0)) == [5]
    empty = PartitionPlan(LIMITS, 0, Intent(6, 7, 0).encoded())
    empty.reached_end(6)
    assert not empty.due(0.0)
    empty.reached_end(7)
    assert empty.due(0.0)
    assert offsets(empty.take(0.0, 0)) == []
    empty.wrote()
    assert empty.closing_commit() == 7


def test_when_idle_the_end_behind_transaction_markers_is_committed_once() -> None:
    plan = gathered(PartitionPlan(LIMITS, 0, ""), 0, 1)
    plan.reached_end(3)
    written(plan)
    assert plan.closing_commit() == 3
    plan.closed(3)
    assert plan.closing_commit() is None
    plan.reached_end(4)  # a marker alone
    assert plan.closing_commit() == 4


def test_an_intent_stands_until_its_batch_is_written() -> None:
    plan = gathered(PartitionPlan(LIMITS, 0, ""), 0, 1)
    plan.take(0.0, 7)
    assert plan.closing_commit() is None
    plan.declared()
    assert plan.closing_commit() is None
    plan.wrote()
    assert plan.closing_commit() == 2  # wipes the intent
    assert PartitionPlan(LIMITS, 0, Intent(6, 7, 0).encoded()).closing_commit() is None


def test_records_that_wait_are_not_committed_past() -> None:
    plan = gathered(PartitionPlan(LIMITS, 0, ""), 0, 1, 2, 3)
    plan.reached_end(9)
    written(plan)
    assert plan.waiting == 1
    assert plan.closing_commit() == 3


def test_a_record_that_comes_twice_is_taken_once() -> None:
    plan = gathered(PartitionPlan(LIMITS, 2, ""), 1, 2, 2, 3)
    assert offsets(plan.take(0.0, 0)) == [2, 3]


@pytest.mark.parametrize("metadata", [None, "", "x", "[]", "{}", '{"v":2,"to":5,"n":1,"at":0}', '{"v":1,"to":"a"}'])
def test_metadata_that_is_not_ours_is_no_intent(metadata: str | None) -> None:
    assert parse_intent(metadata) is None
    assert not PartitionPlan(LIMITS, 3, metadata).replaying


def test_the_oldest_record_that_has_not_landed_is_known() -> None:
    plan = PartitionPlan(LIMITS, 0, "")
    assert plan.oldest_ms is None
    gathered(plan, 3, 4)
    assert plan.oldest_ms == 1_003
    plan.take(0.0, 0)
    gathered(plan, 5)
    assert plan.oldest_ms == 1_003
    plan.wrote()
    assert plan.oldest_ms == 1_005
