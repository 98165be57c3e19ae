"""The loop of a sink, with a consumer, a clock and a block target that the tests hand in."""

import threading

import pytest
from confluent_kafka import KafkaError

from sessionary.sinks.core.intent import Intent, RecordBlock
from sessionary.sinks.errors import Fenced, OperatorError, Transient
from sessionary.sinks.runtime.consumer import RetryPause
from sessionary.sinks.runtime.hung_calls import CallWatchdog
from tests.core.sinks.runtime.consumer_rig import NO_BLOCK, SinkRig

_LONGER_THAN_ANY_PAUSE_S = 60.0


def coordinator_error() -> KafkaError:
    return KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)


@pytest.fixture
def rig() -> SinkRig:
    return SinkRig()


def test_messages_that_an_assignment_overtook_are_dropped_and_fetched_again(rig: SinkRig) -> None:
    rig.kafka.offsets[0] = 100, ""
    rig.kafka.append_records(0, 50, first=100)

    def overtake() -> None:
        # Offsets 100 to 149 are not in ClickHouse: if 150 were taken first, they would be taken for
        # repetitions. The consumer delivers 150 to 159 after the assignment.
        rig.kafka.append_records(0, 10)
        rig.kafka.schedule_assignment(0)

    def check_nothing_taken() -> None:
        assert rig.target.offsets == []
        # Fetching starts in the callback, and again once the overtaken messages are dropped.
        assert rig.kafka.calls == ["committed", "assign [(0, 100)]", "assign [(0, 100)]"] * 2
        rig.advance(1.0)

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, overtake, check_nothing_taken, lambda: None)
    assert rig.target.offsets == [list(range(100, 160))]


def test_the_intent_is_committed_before_the_insert_and_the_end_after_it(rig: SinkRig) -> None:
    rig.kafka.append_records(0, 3)
    commits_at_insert: list[tuple[int, int, str]] = []

    def check_block() -> None:
        assert rig.target.offsets == [[0, 1, 2]]
        assert rig.kafka.commits == [*commits_at_insert, (0, 3, NO_BLOCK)]

    write = rig.target.write_block

    def write_block(partition: int, block: RecordBlock) -> None:
        commits_at_insert.extend(rig.kafka.commits)
        write(partition, block)

    rig.target.write_block = write_block  # type: ignore[method-assign]
    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0), lambda: None, lambda: rig.advance(1.0), lambda: None, check_block
    )
    ((partition, offset, metadata),) = commits_at_insert
    assert (partition, offset, metadata) == (0, 0, Intent(2, 3, 101_000).to_metadata())


def test_a_declared_block_of_a_former_owner_is_written_again(rig: SinkRig) -> None:
    rig.kafka.offsets[0] = 4, Intent(5, 2, 7).to_metadata()
    rig.kafka.append_records(0, 3, first=4)
    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, lambda: None)
    assert rig.target.offsets == [[4, 5], [6]]
    assert rig.target.blocks[0][1].replay_of == Intent(5, 2, 7)
    assert rig.kafka.commits[0][1] == 6  # the replay itself is not declared again


def test_a_sink_that_stops_writes_what_it_has_collected_and_leaves(rig: SinkRig) -> None:
    rig.kafka.append_records(1, 2)
    rig.run_steps(lambda: rig.kafka.schedule_assignment(1), lambda: None)
    assert rig.target.offsets == [[0, 1]]
    assert rig.kafka.commits[-1] == (1, 2, NO_BLOCK)
    assert rig.kafka.calls[-1] == "close"
    assert rig.target.is_closed


def test_a_block_that_fails_is_written_again_as_it_was(rig: SinkRig) -> None:
    rig.kafka.append_records(0, 2)

    def fail_next() -> None:
        rig.target.error = OperatorError("no_table", "database x lacks a table")
        rig.advance(1.0)

    def check_blocked() -> None:
        assert rig.metrics.health() == (True, "blocked: no_table")
        assert rig.kafka.paused == {0}
        rig.kafka.append_records(0, 5)
        rig.target.error = None
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    def check_resumed() -> None:
        assert rig.metrics.health() == (True, "ok")
        assert rig.kafka.paused == set()
        assert rig.target.offsets == [[0, 1]]

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, fail_next, check_blocked, check_resumed)
    assert rig.target.offsets == [[0, 1], [2, 3, 4, 5, 6]]


def test_a_sink_is_ready_only_once_clickhouse_takes_its_rows(rig: SinkRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.kafka.append_records(0, 2)
    rig.target.open_error = OperatorError("authentication", "wrong password")

    def readiness() -> tuple[bool, str]:
        return rig.metrics.readiness(lambda: (True, "ready"))

    def check_waits() -> None:
        assert readiness() == (False, "no row is stored: authentication: wrong password")
        assert rig.metrics.health() == (True, "blocked: authentication")
        assert "is ready" not in caplog.text
        rig.target.open_error = None
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    def check_ready() -> None:
        assert readiness() == (True, "ready")
        assert rig.kafka.paused == set()
        rig.target.error = Transient("network", "cut off")
        rig.kafka.append_records(0, 1)
        rig.advance(1.0)

    def check_failed() -> None:
        assert readiness() == (False, "no row is stored: network: cut off; try again in 0.25 s")
        rig.target.error = None
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    with caplog.at_level("INFO"):
        rig.run_steps(
            lambda: rig.kafka.schedule_assignment(0),
            lambda: None,
            check_waits,
            lambda: None,
            lambda: None,
            check_ready,
            lambda: None,
            check_failed,
            lambda: None,
            lambda: None,
        )
    assert readiness() == (True, "ready")
    assert rig.target.offsets == [[0, 1, 2]]
    assert "sink history is ready: 1 partitions" in caplog.text


def test_partitions_that_come_back_after_the_fault_are_not_paused_any_more(rig: SinkRig) -> None:
    for partition in (0, 1):
        rig.kafka.append_records(partition, 1)

    def fail_commits() -> None:
        rig.kafka.commit_error = coordinator_error()
        rig.advance(1.0)

    def lose_partitions() -> None:
        assert rig.kafka.paused == {0, 1}
        rig.kafka.schedule_loss()
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)  # with nothing assigned it resumes nothing

    def assign_again() -> None:
        assert rig.kafka.paused == {0, 1}
        rig.kafka.commit_error = None
        rig.kafka.schedule_assignment(0, 1)

    def check_fetching() -> None:
        assert rig.kafka.assigned == {0, 1}
        assert rig.kafka.paused == set()

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0, 1),
        lambda: None,
        fail_commits,
        lose_partitions,
        assign_again,
        check_fetching,
    )


def test_partitions_that_come_during_a_pause_are_paused(rig: SinkRig) -> None:
    rig.kafka.append_records(0, 1)

    def fail_commits() -> None:
        rig.kafka.commit_error = coordinator_error()
        rig.advance(1.0)

    def assign_more() -> None:
        assert rig.kafka.paused == {0}
        rig.kafka.schedule_assignment(0, 3)

    def end_fault() -> None:
        assert rig.kafka.paused == {0, 3}
        rig.kafka.commit_error = None
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    def check_fetching() -> None:
        assert rig.kafka.paused == set()

    rig.run_steps(
        lambda: rig.kafka.schedule_assignment(0), lambda: None, fail_commits, assign_more, end_fault, check_fetching
    )


@pytest.mark.parametrize("code", [KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID])
@pytest.mark.parametrize("way", ["commit", "callback", "message"])
def test_a_consumer_that_is_fenced_ends_the_sink(rig: SinkRig, code: int, way: str) -> None:
    rig.kafka.append_records(0, 1)
    steps_left = [0]

    def fence() -> None:
        match way:
            case "commit":
                rig.kafka.commit_error = KafkaError(code)
                rig.advance(1.0)
            case "callback":
                rig.kafka.on_error(KafkaError(code))
            case _:
                rig.kafka.deliver_error(KafkaError(code))

    with pytest.raises(Fenced):
        rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, fence, lambda: steps_left.append(1))
    assert steps_left == [0]
    assert rig.kafka.calls[-1] == "close"
    assert rig.target.is_closed


def test_a_commit_that_hangs_ends_the_process() -> None:
    hung = threading.Event()
    watchdog = CallWatchdog(0.01, check_every_s=0.01)
    rig = SinkRig(watchdog)
    rig.kafka.append_records(0, 1)

    def hang() -> None:
        assert hung.wait(30)  # the process would end here; this test lets the commit return

    def start_hanging() -> None:
        watchdog.start(hung.set)
        rig.kafka.on_commit = hang
        rig.advance(1.0)

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, start_hanging)
    assert hung.is_set()
    assert rig.target.offsets == [[0]]


def test_a_group_whose_offsets_cannot_be_read_is_asked_again(rig: SinkRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.kafka.committed_error = KafkaError(KafkaError._TIMED_OUT)
    rig.kafka.offsets[3] = 5, ""

    def check_unassigned() -> None:
        assert rig.kafka.calls == ["committed", "assign []", "assign []", "committed", "assign []"]
        assert rig.kafka.assigned == set()
        rig.kafka.committed_error = None

    def check_assigned() -> None:
        assert rig.kafka.calls[5:] == ["committed", "assign [(3, 5)]"]
        assert rig.kafka.assigned == {3}

    def check_not_asked_again() -> None:
        assert rig.kafka.calls.count("committed") == 3

    rig.run_steps(lambda: rig.kafka.schedule_assignment(3), check_unassigned, check_assigned, check_not_asked_again)
    assert "asked for again" in caplog.text


def test_a_partition_that_is_taken_away_is_not_asked_about_any_more(rig: SinkRig) -> None:
    rig.kafka.committed_error = KafkaError(KafkaError._TIMED_OUT)

    def check_not_asked() -> None:
        assert rig.kafka.calls.count("committed") == 2

    rig.run_steps(lambda: rig.kafka.schedule_assignment(3), rig.kafka.schedule_loss, check_not_asked, check_not_asked)
    assert rig.kafka.assigned == set()


def test_a_fault_that_passes_is_counted_and_reported_once(rig: SinkRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.kafka.append_records(0, 1)

    def fail_next() -> None:
        rig.target.error = Transient("network", "connection refused")
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    def fail_again() -> None:
        rig.advance(_LONGER_THAN_ANY_PAUSE_S)

    rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: None, fail_next, fail_again, fail_again)
    labels = {"sink": "history", "group": "g", "reason": "network"}
    assert rig.metrics.registry.get_sample_value("sessionary_sink_retries_total", labels) == 3
    assert caplog.text.count("the sink pauses") == 1
    assert rig.metrics.health() == (True, "ok")  # no operator is needed
    assert rig.target.offsets == []


def test_each_fault_in_a_row_doubles_the_pause_up_to_10_seconds() -> None:
    pause = RetryPause()
    for expected_s in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        pause.extend("network", 100.0)
        assert pause.holds_back(100.0 + expected_s - 0.001)
        assert not pause.holds_back(100.0 + expected_s)
        assert pause.is_active
        assert pause.reason == "network"


def test_a_pause_that_has_ended_holds_nothing_back_and_starts_short_again() -> None:
    pause = RetryPause()
    assert not pause.is_active
    pause.extend("network", 100.0)
    pause.extend("network", 100.0)
    pause.end()
    assert not pause.is_active
    assert not pause.holds_back(0.0)
    assert pause.reason is None
    pause.extend("commit", 100.0)
    assert not pause.holds_back(100.25)
