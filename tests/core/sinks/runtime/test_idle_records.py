"""A sink's idle records: they wait, and partitions share their blocks."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import Tick
from sessionary.sinks.core.intent import Intent, Piece, RecordBlock
from sessionary.sinks.errors import OperatorError, Transient
from tests.core.sinks.runtime.consumer_rig import NO_BLOCK, SinkRig

_LONGER_THAN_ANY_PAUSE_S = 60.0


@pytest.fixture
def rig() -> SinkRig:
    return SinkRig()


def append_ticks(rig: SinkRig, count: int = 1, *, partition: int = 0) -> None:
    for _ in range(count):
        rig.kafka.append_record(partition, b"", encode_record(Tick("p1")))


def test_ticks_wait_a_minute_and_are_no_standstill_and_no_lag(rig: SinkRig) -> None:
    rig.clock.now_s = 1.0  # the time of the first record
    append_ticks(rig, 3)

    def check_waiting() -> None:
        rig.log_ends = {0: 3}
        for _ in range(5):
            rig.ask_log()
        assert rig.log_watch.readiness() == (True, "ready")
        assert rig.target.offsets == []
        assert rig.metrics.registry.get_sample_value("sessionary_sink_lag_seconds", rig.labels(0)) == 0
        assert rig.metrics.registry.get_sample_value("sessionary_sink_lag_records", rig.labels(0)) == 3
        assert rig.metrics.registry.get_sample_value("sessionary_sink_landed_offset", rig.labels(0)) == 0
        rig.advance(60.0)

    def check_written() -> None:
        assert rig.target.offsets == [[0, 1, 2]]
        assert rig.kafka.commits[-1] == (0, 3, NO_BLOCK)

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: rig.advance(2.0),
        check_waiting,
        lambda: None,
        check_written,
    )


def test_ticks_go_with_the_next_event_and_at_the_end(rig: SinkRig) -> None:
    rig.clock.now_s = 1.0
    append_ticks(rig, 2)

    def send_event() -> None:
        rig.kafka.append_records(0, 1)
        append_ticks(rig)

    def check_event() -> None:
        assert rig.target.offsets == [[0, 1, 2, 3]]
        append_ticks(rig, 2)

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        send_event,
        lambda: rig.advance(1.0),
        check_event,
        lambda: None,
    )
    assert rig.target.offsets == [[0, 1, 2, 3], [4, 5]], "a sink that stops writes what waits"
    assert rig.kafka.commits[-1] == (0, 6, NO_BLOCK)


def test_partitions_share_a_block_of_ticks_whose_intents_are_committed_together(rig: SinkRig) -> None:
    rig.clock.now_s = 1.0
    append_ticks(rig, 2)
    append_ticks(rig, 1, partition=1)
    rig.kafka.append_records(2, 1)  # an event
    commits_at_insert: list[tuple[int, int, str]] = []

    def fail_next() -> None:
        assert rig.target.offsets == [[0]]  # the event
        rig.kafka.commits.clear()
        rig.target.error = OperatorError("no_table", "database x lacks a table")
        rig.advance(60.0)

    def check_declared() -> None:
        commits_at_insert.extend(rig.kafka.commits)
        rig.target.error = None
        append_ticks(rig, 5)  # they are not part of the block that was declared
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    def check_written() -> None:
        (block,) = [block for _, block in rig.target.blocks[1:]]
        assert block.pieces == (Piece(0, 0, 1), Piece(1, 0, 0))
        assert [(record.partition, record.offset) for record in block.records] == [(0, 0), (0, 1), (1, 0)]
        assert rig.kafka.commits[len(commits_at_insert) :] == [(0, 2, NO_BLOCK), (1, 1, NO_BLOCK)]

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1, 2),
        lambda: None,
        lambda: rig.advance(1.0),
        lambda: None,
        fail_next,
        check_declared,
        check_written,
    )
    pieces = (Piece(0, 0, 1), Piece(1, 0, 0))
    declared = [Intent(last, 3, 62_000, None, pieces).to_metadata() for last in (1, 0)]
    assert commits_at_insert == [(0, 0, declared[0]), (1, 0, declared[1])]


def test_a_shared_block_that_cannot_be_written_stops_only_its_partitions(rig: SinkRig) -> None:
    rig.clock.now_s = 1.0
    append_ticks(rig, 1)
    append_ticks(rig, 1, partition=1)
    append_ticks(rig, 1, partition=2)
    write, failing, seen = rig.target.write_block, [True], list[tuple[bool, str]]()

    def write_block(partition: int, block: RecordBlock) -> None:
        if block.pieces and failing:
            raise OperatorError("block_not_kept", "2 rows sent, 0 found")
        write(partition, block)

    def send_event() -> None:
        rig.kafka.append_records(2, 1, first=1)  # with it, partition 2 has a block of its own
        rig.advance(1.0)

    def send_another() -> None:
        rig.kafka.append_records(2, 1, first=2)
        rig.advance(1.0)

    def mend() -> None:
        seen.append(rig.metrics.health())
        assert rig.target.offsets == [[0, 1], [2]]
        failing.clear()
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    rig.target.write_block = write_block  # type: ignore[method-assign]
    steps = [
        lambda: rig.kafka.schedule_assignment(0, 1, 2),
        lambda: None,
        send_event,
        *[lambda: rig.advance(1.0)] * 2,
        lambda: rig.advance(60.0),
        lambda: None,
        send_another,
        *[lambda: rig.advance(1.0)] * 2,
        mend,
        *[lambda: None] * 4,
    ]
    rig.run_steps(*steps)
    assert seen == [(True, "blocked: partition 0: block_not_kept, partition 1: block_not_kept")]
    assert rig.target.blocks[2][1].pieces == (Piece(0, 0, 0), Piece(1, 0, 0))
    assert {(partition, offset) for partition, offset, _ in rig.kafka.commits} >= {(0, 1), (1, 1), (2, 3)}
    assert rig.metrics.health() == (True, "ok")


def test_a_shared_block_that_was_written_blocks_no_partition_if_its_commit_fails(rig: SinkRig) -> None:
    rig.clock.now_s = 1.0
    append_ticks(rig)
    append_ticks(rig, partition=1)
    rig.target.error = OperatorError("block_not_kept", "1 row sent, 0 found")
    commit, refused = rig.kafka.commit, list[int]()

    def refuse_ends(offsets: list[TopicPartition], **options: Any) -> Any:
        if offsets[0].metadata == NO_BLOCK:
            refused.append(offsets[0].offset)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return commit(offsets=offsets, **options)

    def mend_target() -> None:
        assert rig.metrics.health() == (True, "blocked: partition 0: block_not_kept, partition 1: block_not_kept")
        rig.target.error = None
        rig.kafka.commit = refuse_ends  # type: ignore[method-assign]
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    def check_written() -> None:
        assert (rig.target.offsets, refused) == ([[0, 0]], [1])
        assert "block_not_kept" not in rig.metrics.health()[1]

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        lambda: rig.advance(60.0),
        mend_target,
        *[lambda: None] * 4,
        check_written,
    )


def test_who_owns_one_partition_of_a_shared_block_writes_all_of_it_again(rig: SinkRig) -> None:
    pieces = (Piece(0, 4, 5), Piece(3, 7, 9))
    intent = Intent(5, 5, 7, None, pieces)
    rig.kafka.offsets[0] = 4, intent.to_metadata()
    rig.kafka.append_records(0, 3, first=4)
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, lambda: None)
    assert rig.ranges_read == [{0: (4, 5), 3: (7, 9)}]
    replay = rig.target.blocks[0][1]
    assert (replay.pieces, replay.replay_of, replay.intent) == (pieces, intent, None)
    assert [(record.partition, record.offset) for record in replay.records] == [(0, 4), (0, 5), (3, 7), (3, 8), (3, 9)]
    assert rig.target.offsets[1:] == [[6]]
    assert rig.kafka.commits[-1] == (0, 7, NO_BLOCK)


def test_an_owner_of_several_partitions_of_a_shared_block_writes_it_again_once(rig: SinkRig) -> None:
    pieces = (Piece(0, 4, 5), Piece(3, 7, 9))
    rig.kafka.offsets[0] = 4, Intent(5, 5, 7, None, pieces).to_metadata()
    rig.kafka.offsets[3] = 7, Intent(9, 5, 7, None, pieces).to_metadata()
    rig.kafka.append_records(0, 2, first=4)
    rig.kafka.append_records(3, 3, first=7)
    rig.target.error = Transient("network", "connection refused")

    def heal() -> None:
        assert rig.target.offsets == []
        assert "assign [(0, 4), (3, 7)]" not in rig.kafka.calls, "nothing is read before"
        rig.target.error = None
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 3), lambda: None, heal, lambda: None, lambda: None)
    assert rig.target.offsets == [[4, 5, 7, 8, 9]]
    assert {(partition, offset) for partition, offset, _ in rig.kafka.commits} == {(0, 6), (3, 10)}
