"""What a sink does if the log is not the one that the group's offsets are of, or lacks them."""

import pytest
from confluent_kafka import KafkaError

from sessionary.sinks.core.intent import Intent
from sessionary.sinks.runtime.blocked_partitions import RETRY_S
from tests.core.sinks.runtime.consumer_rig import SinkRig


def blocked(rig: SinkRig, partition: int, reason: str) -> float | None:
    labels = {"sink": "history", "group": "g", "partition": str(partition), "reason": reason}
    return rig.metrics.registry.get_sample_value("sessionary_sink_partition_blocked", labels)


def written(rig: SinkRig, wanted: int) -> list[int]:
    return [record.offset for partition, block in rig.target.blocks for record in block.records if partition == wanted]


def with_gap(rig: SinkRig) -> SinkRig:
    """Let partition 0 be committed up to 3 in a log that begins at 5; partition 1 is sound."""
    rig.kafka.append_records(0, 8)
    rig.kafka.lows[0] = 5
    rig.kafka.offsets[0] = 3, ""
    rig.kafka.append_records(1, 2)
    return rig


def test_a_committed_offset_before_the_log_s_start_halts_that_partition_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, seen = with_gap(SinkRig()), list[float | None]()
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        lambda: rig.advance(1.0),
        lambda: seen.extend([blocked(rig, 0, "log_gap"), blocked(rig, 1, "log_gap")]),
        lambda: rig.advance(RETRY_S + 1),
        lambda: None,
        lambda: seen.append(blocked(rig, 0, "log_gap")),
    )
    assert seen == [1, None, 1]
    assert written(rig, 0) == []
    assert written(rig, 1) == [0, 1]
    assert rig.kafka.offsets[0] == (3, ""), "the group's offset stays where the loss begins"
    assert "the next offset is 3, but the log begins at 5" in caplog.text
    assert caplog.text.count("is blocked") == 1


def test_a_gap_that_is_accepted_is_left_behind() -> None:
    rig = with_gap(SinkRig(accept_gaps="0"))
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), *[lambda: None] * 3, lambda: rig.advance(1.0))
    assert written(rig, 0) == [5, 6, 7]
    assert blocked(rig, 0, "log_gap") is None
    assert rig.kafka.offsets[0][0] == 8


@pytest.mark.parametrize("accept_gaps", ["", "0"])
def test_a_report_of_another_offset_is_no_loss(accept_gaps: str) -> None:
    rig = SinkRig(accept_gaps=accept_gaps)
    rig.kafka.append_records(0, 4)
    lacked = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: rig.kafka.deliver_error(lacked, 1 << 62),
        lambda: rig.kafka.append_records(0, 2),
        lambda: rig.advance(1.0),
    )
    assert blocked(rig, 0, "log_truncated") is None
    assert written(rig, 0) == [0, 1, 2, 3, 4, 5]


def test_an_offset_beyond_the_log_s_end_halts_the_partition() -> None:
    rig, seen = SinkRig(), list[float | None]()
    rig.kafka.append_records(0, 2)
    rig.kafka.offsets[0] = 9, ""
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: seen.append(blocked(rig, 0, "log_truncated")),
    )
    assert seen == [1]
    assert rig.kafka.offsets[0] == (9, "")


def replaced_rig(accept_gaps: str = "", *, copies: str = "") -> SinkRig:
    """Return a sink whose group read another topic of the same name up to offset 2."""
    rig = SinkRig(accept_gaps=accept_gaps, copies=copies)
    rig.topic_id = "id-2"
    rig.kafka.append_records(0, 4)
    rig.kafka.offsets[0] = 2, Intent(3, 2, 7, "id-1").to_metadata()
    rig.kafka.append_records(1, 3)
    rig.kafka.offsets[1] = 1, Intent(2, 2, 7).to_metadata()  # the topic had no id then
    return rig


def test_a_topic_that_was_made_again_halts_its_partitions_by_name(caplog: pytest.LogCaptureFixture) -> None:
    rig, seen = replaced_rig(), list[float | None]()
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        lambda: rig.advance(1_000.0),
        lambda: seen.append(blocked(rig, 0, "topic_replaced")),
    )
    assert seen == [1]
    assert written(rig, 0) == []
    assert rig.kafka.offsets[0][0] == 2
    assert written(rig, 1) == [1, 2]
    assert rig.target.blocks[0][1].insert_token("g", "t", 1) == "g:t:1:1-2"
    assert "its id was id-1, and is id-2" in caplog.text


def test_a_new_topic_that_is_accepted_is_read_from_its_beginning() -> None:
    rig = replaced_rig(accept_gaps="0,1")
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), lambda: None, lambda: rig.advance(1.0), lambda: None)
    assert written(rig, 0) == [0, 1, 2, 3]
    assert '"id-2"' in rig.kafka.offsets[0][1]


def test_a_copy_that_is_accepted_is_read_on_and_a_declared_block_is_repeated_as_it_was() -> None:
    rig = replaced_rig(copies="id-9,id-2")
    rig.kafka.append_records(0, 1)
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), lambda: None, lambda: rig.advance(1.0), lambda: None)
    assert written(rig, 0) == [2, 3, 4]
    tokens = [block.insert_token("g", "t", 0) for partition, block in rig.target.blocks if partition == 0]
    assert tokens == ["g:t:id-1:0:2-3", "g:t:id-2:0:4-4"]


def test_a_topic_that_was_made_again_after_an_accepted_copy_halts_its_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, seen = replaced_rig(copies="id-1,true"), list[float | None]()
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: rig.advance(1_000.0),
        lambda: seen.append(blocked(rig, 0, "topic_replaced")),
    )
    assert (seen, written(rig, 0)) == ([1], [])
    assert "restart this sink once with SESSIONARY_SINK_ACCEPT_TOPICS=id-2: it continues" in caplog.text


def test_a_copy_of_a_topic_whose_offsets_are_gone_is_read_on_after_the_stored_rows() -> None:
    rig = SinkRig(copies="id-2")
    rig.topic_id, rig.target.topic_ids = "id-2", {"id-1"}
    rig.target.next_offsets = {"id-1": {0: 3}}
    rig.kafka.append_records(0, 5)
    rig.kafka.append_records(1, 2)  # of which nothing is stored
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0, 1), lambda: None, lambda: rig.advance(1.0), lambda: None)
    assert (written(rig, 0), written(rig, 1)) == ([3, 4], [0, 1])
    assert '"id-2"' in rig.kafka.offsets[0][1]


def test_a_copy_that_ends_before_the_group_s_offset_is_no_copy() -> None:
    rig, seen = SinkRig(copies="id-2"), list[float | None]()
    rig.topic_id, rig.target.topic_ids = "id-2", {"id-1"}
    rig.target.next_offsets = {"id-1": {0: 9}}
    rig.kafka.append_records(0, 5)
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: rig.advance(1.0),
        lambda: None,
        lambda: seen.append(blocked(rig, 0, "log_truncated")),
    )
    assert seen == [1]
    assert rig.target.blocks == []


def test_a_topic_that_is_made_again_meanwhile_halts_its_partitions() -> None:
    rig, seen = SinkRig(), list[float | None]()
    rig.topic_id = "id-1"
    rig.kafka.append_records(0, 2)

    def replace_topic() -> None:
        rig.topic_id = "id-2"
        rig.ask_log()
        rig.kafka.append_records(0, 2)

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: rig.advance(1.0),
        lambda: None,
        replace_topic,
        lambda: rig.advance(1.0),
        lambda: seen.append(blocked(rig, 0, "topic_replaced")),
    )
    assert seen == [1]
    assert written(rig, 0) == [0, 1]


def test_a_group_without_offsets_begins_no_other_topic_by_itself() -> None:
    """Kafka deletes a group's offsets with the topic, so that only the rows know the former one."""
    rig, seen = SinkRig(), list[float | None]()
    rig.topic_id, rig.target.topic_ids = "id-2", {"id-1"}
    rig.kafka.append_records(0, 2)
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0),
        lambda: None,
        lambda: seen.append(blocked(rig, 0, "topic_replaced")),
    )
    assert seen == [1]
    assert rig.target.blocks == []


def test_a_partition_goes_on_by_itself_if_its_log_has_the_offset_again() -> None:
    """Another replica, which has the records, leads again."""
    rig = with_gap(SinkRig())

    def bring_back() -> None:
        rig.kafka.lows.clear()
        rig.advance(RETRY_S + 1)

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        *[lambda: None] * 2,
        bring_back,
        *[lambda: None] * 2,
        lambda: rig.advance(1.0),
    )
    assert written(rig, 0) == [3, 4, 5, 6, 7]
    assert blocked(rig, 0, "log_gap") is None
