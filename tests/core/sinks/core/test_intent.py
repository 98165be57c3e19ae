import json

import pytest

from sessionary.sinks.core.block_due import BlockLimits
from sessionary.sinks.core.intent import (
    Intent,
    PartitionPlan,
    Piece,
    RecordBlock,
    ascending_records,
    count_block,
    count_up_to,
    parse_metadata,
    record_sizes,
    share_block,
)
from sessionary.sinks.core.rows.shared import RawRecord

LIMITS = BlockLimits(rows=3, bytes=100, seconds=1.0)


def make_record(offset: int, size: int = 1) -> RawRecord:
    return RawRecord("t.audit", 2, offset, 1_000 + offset, None, b"v" * size)


def with_records(plan: PartitionPlan, *offsets: int, now: float = 0.0, high: int = 0) -> PartitionPlan:
    plan.add_records([make_record(offset) for offset in offsets], now, high)
    return plan


def block_offsets(block: RecordBlock) -> list[int]:
    return [found.offset for found in block.records]


def write_block(plan: PartitionPlan) -> RecordBlock:
    """Take, declare and write one block; return it as it was taken."""
    block = plan.take_block(0.0, 7)
    if block.intent is not None:
        plan.mark_declared()
    plan.mark_written()
    return block


def test_a_block_is_due_by_rows_bytes_or_age_and_never_when_empty() -> None:
    assert not PartitionPlan(LIMITS, 0, "").is_due(99.0)
    assert not with_records(PartitionPlan(LIMITS, 0, ""), 0, 1).is_due(0.999)
    assert with_records(PartitionPlan(LIMITS, 0, ""), 0, 1).is_due(1.0)
    assert with_records(PartitionPlan(LIMITS, 0, ""), 0, 1, 2).is_due(0.0)
    heavy = PartitionPlan(LIMITS, 0, "")
    heavy.add_records([make_record(0, size=100)], 0.0)
    assert heavy.is_due(0.0)


def test_a_small_block_waits_longer_if_more_waits_in_the_log() -> None:
    behind = with_records(PartitionPlan(LIMITS, 0, ""), 0, 1, high=5)  # 2, 3 and 4 are to come
    assert not behind.is_due(3.999)
    assert behind.is_due(4.0)
    assert with_records(PartitionPlan(LIMITS, 0, ""), 0, 1, high=4).is_due(1.0)  # no more than it has already
    assert with_records(behind, 2, high=5).is_due(0.0)
    caught_up = with_records(PartitionPlan(LIMITS, 0, ""), 0, high=3)
    caught_up.reached_end(3)
    assert caught_up.is_due(1.0)


def test_records_that_were_taken_already_are_dropped() -> None:
    plan = with_records(PartitionPlan(LIMITS, 0, ""), 0, 1)
    with_records(plan, 0, 1, 2)
    with_records(plan, 1, 2)
    assert block_offsets(plan.take_block(0.0, 0)) == [0, 1, 2]


def test_the_intent_is_committed_at_the_first_record_and_names_the_last() -> None:
    plan = with_records(PartitionPlan(LIMITS, 5, ""), 6, 8, 9, 11)
    block = plan.take_block(0.0, 7)
    assert (block.first, block.last, block_offsets(block)) == (6, 9, [6, 8, 9])
    assert block.intent == Intent(9, 3, 7)
    assert json.loads(block.intent.to_metadata()) == {"v": 1, "topic": None, "to": 9, "n": 3, "at": 7}
    assert block.insert_token("g.sink.audit", "t.audit", 2) == "g.sink.audit:t.audit:2:6-9"
    assert plan.waiting_records == 1


def test_a_block_in_flight_stays_as_it_is_while_more_arrives() -> None:
    plan = with_records(PartitionPlan(LIMITS, 0, ""), 0, 1, 2)
    block = plan.take_block(0.0, 7)
    with_records(plan, 3, 4, 5)
    assert not plan.is_due(9.0)
    assert plan.in_flight is block
    plan.mark_declared()
    assert plan.in_flight is not None
    assert plan.in_flight.intent is None
    assert block_offsets(plan.in_flight) == [0, 1, 2]
    plan.mark_written()
    assert plan.landed == 3
    assert plan.is_due(0.0)


@pytest.mark.parametrize("crash", ["before the insert", "after the insert"])
def test_after_a_crash_the_successor_writes_exactly_the_declared_records_under_the_same_token(crash: str) -> None:
    first = with_records(PartitionPlan(LIMITS, 4, ""), 4, 6)
    declared = first.take_block(0.0, 7)
    assert declared.intent is not None
    metadata = declared.intent.to_metadata()
    first.mark_declared()
    if crash == "after the insert":
        first.mark_written()  # nothing of this was committed: the successor sees the same offset and metadata
    successor = PartitionPlan(LIMITS, declared.first, metadata)
    assert successor.is_replaying
    with_records(successor, 4)
    assert not successor.is_due(99.0)  # whatever its age: the block must be the same
    with_records(successor, 6, 7, 8, 9, 10)
    assert successor.is_due(0.0)
    replay = successor.take_block(0.0, 8)
    assert replay.intent is None  # it is committed already
    assert block_offsets(replay) == [4, 6]
    assert replay.insert_token("g", "t", 2) == declared.insert_token("g", "t", 2)
    successor.mark_written()
    assert not successor.is_replaying
    assert block_offsets(successor.take_block(0.0, 9)) == [7, 8, 9]


def test_a_replay_of_more_records_than_a_block_may_hold_stays_one_block() -> None:
    plan = PartitionPlan(LIMITS, 0, Intent(6, 7, 0).to_metadata())
    with_records(plan, 0, 1, 2, 3, 4, 5)
    assert not plan.is_due(99.0)
    with_records(plan, 6)
    assert block_offsets(plan.take_block(0.0, 0)) == [0, 1, 2, 3, 4, 5, 6]


def test_a_replay_whose_records_the_log_has_lost_ends_at_the_next_record_or_the_end() -> None:
    beyond = with_records(PartitionPlan(LIMITS, 0, Intent(6, 7, 0).to_metadata()), 5, 9)
    assert beyond.is_due(0.0)
    assert block_offsets(beyond.take_block(0.0, 0)) == [5]
    empty = PartitionPlan(LIMITS, 0, Intent(6, 7, 0).to_metadata())
    empty.reached_end(6)
    assert not empty.is_due(0.0)
    empty.reached_end(7)
    assert empty.is_due(0.0)
    assert block_offsets(empty.take_block(0.0, 0)) == []
    empty.mark_written()
    assert empty.closing_commit() == 7


def test_when_idle_the_end_behind_transaction_markers_is_committed_once() -> None:
    plan = with_records(PartitionPlan(LIMITS, 0, ""), 0, 1)
    plan.reached_end(3)
    write_block(plan)
    assert plan.closing_commit() == 3
    plan.mark_closed(3)
    assert plan.closing_commit() is None
    plan.reached_end(4)  # a marker alone
    assert plan.closing_commit() == 4


def test_an_intent_stays_committed_until_its_block_is_write_block() -> None:
    plan = with_records(PartitionPlan(LIMITS, 0, ""), 0, 1)
    plan.take_block(0.0, 7)
    assert plan.closing_commit() is None
    plan.mark_declared()
    assert plan.closing_commit() is None
    plan.mark_written()
    assert plan.closing_commit() == 2  # wipes the intent
    assert PartitionPlan(LIMITS, 0, Intent(6, 7, 0).to_metadata()).closing_commit() is None


def test_records_that_wait_are_not_committed_past() -> None:
    plan = with_records(PartitionPlan(LIMITS, 0, ""), 0, 1, 2, 3)
    plan.reached_end(9)
    write_block(plan)
    assert plan.waiting_records == 1
    assert plan.closing_commit() == 3


def test_a_record_that_comes_twice_is_taken_once() -> None:
    plan = with_records(PartitionPlan(LIMITS, 2, ""), 1, 2, 2, 3)
    assert block_offsets(plan.take_block(0.0, 0)) == [2, 3]


@pytest.mark.parametrize(
    "metadata", [None, "", "x", "[]", "{}", '{"v":9,"topic":null,"to":5,"n":1,"at":0}', '{"v":1,"to":5,"n":1,"at":0}']
)
def test_metadata_that_is_not_ours_is_no_intent(metadata: str | None) -> None:
    assert parse_metadata(metadata) == (None, None)
    assert not PartitionPlan(LIMITS, 3, metadata).is_replaying


def test_the_oldest_record_that_has_not_landed_is_known() -> None:
    plan = PartitionPlan(LIMITS, 0, "")
    assert plan.behind_since_ms is None
    with_records(plan, 3, 4)
    assert plan.behind_since_ms == 1_003
    plan.take_block(0.0, 0)
    with_records(plan, 5)
    assert plan.behind_since_ms == 1_003
    plan.mark_written()
    assert plan.behind_since_ms == 1_005


def test_a_topic_s_id_is_in_token_and_metadata_from_the_first_commit_on() -> None:
    plan = with_records(PartitionPlan(LIMITS, 0, "", "id-1"), 0, 1)
    block = plan.take_block(0.0, 7)
    assert block.insert_token("g", "t", 2) == "g:t:id-1:2:0-1"
    assert block.intent is not None
    assert parse_metadata(block.intent.to_metadata()) == ("id-1", Intent(1, 2, 7, "id-1"))
    idle = PartitionPlan(LIMITS, 5, "", "id-1")
    idle.reached_end(5)
    assert idle.closing_commit() == 5, "a commit without metadata has no id"
    assert parse_metadata(idle.closing_metadata) == ("id-1", None)
    idle.mark_closed(5)
    assert idle.closing_commit() is None


def make_idle(offset: int) -> RawRecord:
    return make_record(offset)._replace(value=b"idle")


IDLE_LIMITS = LIMITS._replace(rows=50, idle_seconds=60.0, is_idle=lambda value: value == b"idle")


def test_idle_records_wait_until_another_one_comes_and_go_with_it_in_their_order() -> None:
    plan = PartitionPlan(IDLE_LIMITS, 0, "")
    plan.add_records([make_idle(0)], 10.0)
    plan.add_records([make_idle(1)], 20.0)
    assert plan.holds_idle_only
    assert not plan.is_due(69.9)
    plan.add_records([make_idle(2), make_record(3), make_idle(4)], 30.0)
    assert not plan.holds_idle_only
    assert not plan.is_due(30.9)
    assert plan.is_due(31.0)
    assert block_offsets(plan.take_block(31.0, 7)) == [0, 1, 2, 3, 4]


def test_the_wait_of_an_idle_record_begins_at_its_log_time() -> None:
    plan = PartitionPlan(IDLE_LIMITS, 0, "")
    plan.add_records([make_idle(0)], 10.0, now_ms=1_000 + 45_000)  # 45 s after its log time
    assert not plan.is_due(24.9)
    assert plan.is_due(25.0)
    late = PartitionPlan(IDLE_LIMITS, 0, "")
    late.add_records([make_idle(0)], 10.0, now_ms=1_000 + 3_600_000)
    assert not late.is_due(10.9), "a log that is read again makes no tiny blocks"
    assert late.is_due(11.0)
    ahead = PartitionPlan(IDLE_LIMITS, 0, "")
    ahead.add_records([make_idle(0)], 10.0, now_ms=0)  # the broker's clock is ahead
    assert not ahead.is_due(69.9)
    assert ahead.is_due(70.0)


def test_idle_records_count_as_behind_from_the_end_of_their_wait_only() -> None:
    plan = PartitionPlan(IDLE_LIMITS, 0, "")
    plan.add_records([make_idle(0)], 10.0)
    assert plan.behind_since_ms == 61_000
    plan.add_records([make_record(500)], 10.5)
    assert plan.behind_since_ms == 1_500
    plan.take_block(11.5, 7)
    assert plan.behind_since_ms == 1_500
    plan.mark_written()
    assert plan.behind_since_ms is None


def test_the_end_of_a_block_is_committed_while_idle_records_wait() -> None:
    plan = PartitionPlan(IDLE_LIMITS, 0, "")
    plan.add_records([make_record(0)], 10.0)
    write_block(plan)
    plan.add_records([make_idle(1), make_idle(2)], 11.0)
    assert plan.closing_commit() == 1
    plan.mark_closed(1)
    assert plan.closing_commit() is None


def test_a_shared_block_has_the_records_of_all_partitions_and_each_intent_names_it() -> None:
    plans = {partition: PartitionPlan(LIMITS, 0, "", "id-1") for partition in (7, 2)}
    with_records(plans[7], 4, 6)
    with_records(plans[2], 1, 2)
    shared = share_block({partition: plan.take_block(0.0, 9) for partition, plan in plans.items()})
    assert block_offsets(shared) == [1, 2, 4, 6], "in the order of the partitions"
    pieces = (Piece(2, 1, 2), Piece(7, 4, 6))
    for plan, last in ((plans[7], 6), (plans[2], 2)):
        plan.share_intent(shared)
        assert plan.in_flight is not None
        intent = plan.in_flight.intent
        assert intent == Intent(last, 4, 9, "id-1", pieces)
        assert parse_metadata(intent.to_metadata()) == ("id-1", intent)
    token = shared.insert_token("g", "t", 2)
    assert token.startswith("g:t:id-1:shared:")
    assert token == shared.insert_token("g", "t", 7)
    other = shared._replace(pieces=(Piece(2, 1, 2), Piece(7, 4, 7)))
    assert token != other.insert_token("g", "t", 2)


def test_the_intents_of_64_partitions_fit_into_a_commit() -> None:
    pieces = tuple(Piece(9_000 + number, 10**11 + number, 10**11 + 5_000) for number in range(64))
    assert len(Intent(10**11, 320_000, 1_795_219_200_000, "i" * 22, pieces).to_metadata()) <= 4_096


def test_after_a_shared_replay_a_plan_goes_on_behind_it() -> None:
    intent = Intent(6, 9, 7, None, (Piece(2, 4, 6), Piece(3, 0, 5)))
    plan = PartitionPlan(LIMITS, 4, intent.to_metadata())
    assert plan.shared_replay == intent
    assert PartitionPlan(LIMITS, 4, Intent(6, 3, 7).to_metadata()).shared_replay is None
    plan.mark_replayed()
    assert (plan.is_replaying, plan.landed, plan.next_offset) == (False, 7, 7)
    assert plan.closing_commit() == 7, "the intent is done with"


def make_records(*offsets: int, size: int = 1) -> list[RawRecord]:
    return [RawRecord("t.events", 0, offset, 1_000, None, b"v" * size) for offset in offsets]


@pytest.mark.parametrize(
    ("offsets", "first", "left"),
    [
        ((), 0, ()),
        ((3, 4, 7), 3, (3, 4, 7)),
        ((3, 4, 7), 4, (4, 7)),
        ((3, 4, 7), 8, ()),
        ((3, 4, 4, 5), 0, (3, 4, 5)),
        ((3, 5, 4, 6), 0, (3, 5, 6)),
    ],
)
def test_records_before_an_offset_or_out_of_order_are_left_out(
    offsets: tuple[int, ...], first: int, left: tuple[int, ...]
) -> None:
    assert tuple(record.offset for record in ascending_records(make_records(*offsets), first)) == left


def test_sizes_are_those_of_key_and_value() -> None:
    records = [
        RawRecord("t.events", 0, 0, 0, b"key", b"value"),
        RawRecord("t.events", 0, 1, 0, b"key", None),
        RawRecord("t.events", 0, 2, 0, None, b""),
    ]
    assert record_sizes(records) == [8, 3, 0] == [record.size for record in records]


def test_a_block_ends_with_the_record_that_reaches_its_rows_or_bytes() -> None:
    records = make_records(0, 1, 2, 3, size=10)
    assert [count_block(records, 4, size) for size in (1, 10, 11, 20, 21, 40, 41)] == [1, 1, 2, 2, 3, 4, 4]
    assert [count_block(records, rows, 1_000) for rows in (1, 3, 4, 5)] == [1, 3, 4, 4]
    assert [count_block(make_records(0, 1, 2, size=0), 3, 1)] == [3]


def test_records_up_to_an_offset_are_counted() -> None:
    records = make_records(3, 5, 6)
    assert [count_up_to(records, last) for last in (2, 3, 4, 5, 6, 9)] == [0, 1, 1, 2, 3, 3]
