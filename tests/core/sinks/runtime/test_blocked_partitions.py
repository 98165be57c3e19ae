"""What a sink does with a partition that holds a batch that cannot be read."""

import pytest

from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.errors import OperatorError, Transient
from tests.core.sinks.runtime.consumer_rig import SinkRig


@pytest.fixture
def rig() -> SinkRig:
    sink = SinkRig()
    sink.kafka.append_records(0, 3)
    sink.kafka.append_unreadable(0)
    sink.kafka.append_records(0, 2)
    sink.kafka.append_records(1, 2)
    return sink


def blocked(rig: SinkRig, partition: int) -> float | None:
    labels = {"sink": "history", "group": "g", "partition": str(partition), "reason": "batch_unreadable"}
    return rig.metrics.registry.get_sample_value("sessionary_sink_partition_blocked", labels)


def written(rig: SinkRig, wanted: int) -> list[int]:
    return [record.offset for partition, block in rig.target.blocks for record in block.records if partition == wanted]


def test_the_partition_is_blocked_by_name_and_the_others_go_on(rig: SinkRig, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[float | None] = []

    def look() -> None:
        seen.extend([blocked(rig, 0), blocked(rig, 1)])
        assert rig.metrics.health() == (True, "blocked: partition 0: batch_unreadable")
        rig.kafka.append_records(1, 2)

    rig.log_ends = {0: 6, 1: 4}
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), lambda: None, look, *[rig.ask_log] * 4)
    assert seen == [1, None]
    assert written(rig, 0) == [0, 1, 2]
    assert written(rig, 1) == [0, 1, 2, 3]
    assert rig.kafka.offsets[0][0] <= 3, "nothing is committed behind the last record that landed"
    assert len(rig.consumers) == 1, "a consumer that stands still on purpose is not replaced"
    for part in ("partition 0 is blocked", "offset 3", "otherwise skip it"):
        assert part in caplog.text


def test_a_blocked_partition_is_tried_again_from_its_next_offset(rig: SinkRig) -> None:
    def mend() -> None:
        rig.kafka.unreadable.clear()
        rig.advance(61.0)

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        lambda: rig.advance(29.0),
        lambda: rig.advance(1.5),
        *[lambda: None] * 3,
        mend,
        *[lambda: None] * 3,
    )
    assert [call for call in rig.kafka.calls if call.startswith("seek")] == ["seek 0 to 3"] * 2
    assert written(rig, 0) == [0, 1, 2, 3, 4, 5]
    assert blocked(rig, 0) is None
    assert rig.metrics.health() == (True, "ok")


def test_an_assignment_ends_every_block(rig: SinkRig) -> None:
    def look() -> None:
        assert blocked(rig, 0) is None
        rig.kafka.unreadable.clear()
        rig.kafka.schedule_assignment(0, 1)

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        lambda: rig.kafka.schedule_assignment(1),
        look,
        *[lambda: None] * 3,
    )
    assert rig.kafka.paused == set()
    assert written(rig, 0)[-6:] == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_an_operator_had_skipped_is_left_out(rig: SinkRig, caplog: pytest.LogCaptureFixture) -> None:
    def decide() -> None:
        rig.target.skips[0, 3] = 3
        rig.advance(61.0)

    def fail() -> None:
        rig.target.skip_error = Transient("network", "no answer")
        rig.advance(30.5)

    def recover() -> None:
        rig.target.skip_error = None

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1), *[lambda: None] * 2, fail, recover, decide, *[lambda: None] * 4
    )
    assert [call for call in rig.kafka.calls if call.startswith("seek")] == ["seek 0 to 3", "seek 0 to 4"]
    assert written(rig, 0) == [0, 1, 2, 4, 5]
    assert blocked(rig, 0) is None
    assert "offsets 3 to 3 were skipped by an operator's decision" in caplog.text


def test_a_block_that_one_partition_cannot_write_stops_no_other(rig: SinkRig) -> None:
    rig.kafka.unreadable.clear()
    write = rig.target.write_block
    failing, seen = [True], list[tuple[bool, str]]()

    def write_block(partition: int, block: RecordBlock) -> None:
        if partition == 0 and failing:
            raise OperatorError("block_not_kept", "1 row sent, 0 found")
        write(partition, block)

    def mend() -> None:
        seen.append(rig.metrics.health())
        failing.clear()
        rig.advance(60.0)

    rig.target.write_block = write_block  # type: ignore[method-assign]
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        *[lambda: rig.advance(1.0)] * 3,
        mend,
        *[lambda: None] * 3,
    )
    assert seen == [(True, "blocked: partition 0: block_not_kept")]
    assert written(rig, 1) == [0, 1]
    assert written(rig, 0) == [0, 1, 2, 3, 4, 5]
    assert rig.metrics.health() == (True, "ok")
