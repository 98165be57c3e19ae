"""When a reader stands still although its log goes on."""

from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.kafka.log_progress import LogEndClient, LogProgress, StalledPartition
from sessionary.schemas.settings import KafkaSettings
from tests.support.mock_cluster import mock_cluster
from tests.support.waiting import wait_until


def test_a_partition_stands_still_once_it_was_behind_at_one_position_for_long() -> None:
    progress = LogProgress()
    progress.observe({0: 10, 1: 20}, {0: 12, 1: 20}, 100.0)
    progress.observe({0: 10, 1: 20}, {0: 15, 1: 20}, 105.0)
    assert progress.stalled_partitions(109.9, 10.0) == {}
    assert progress.stalled_partitions(110.0, 10.0) == {0: StalledPartition(10, 15, 10.0)}
    assert str(StalledPartition(10, 15, 10.4)) == "at offset 10 for 10 s, the log ends at 15"


def test_any_move_begins_again_although_the_reader_is_still_behind() -> None:
    progress = LogProgress()
    for second in range(0, 60, 5):
        progress.observe({0: 10 + second}, {0: 1_000}, float(second))
        assert progress.stalled_partitions(float(second), 5.0) == {}


def test_time_without_an_answer_of_the_log_does_not_count() -> None:
    progress = LogProgress()
    progress.observe({0: 10}, {0: 12}, 0.0)
    progress.observe({0: 10}, {}, 60.0)
    assert progress.stalled_partitions(60.0, 10.0) == {}
    progress.observe({0: 10}, {0: 12}, 65.0)
    assert progress.stalled_partitions(70.0, 10.0) == {}
    assert progress.stalled_partitions(75.0, 10.0) == {0: StalledPartition(10, 12, 10.0)}


def test_a_question_without_an_answer_does_not_start_the_count_again() -> None:
    progress = LogProgress()
    for now_s, ends in ((0.0, {0: 12}), (5.0, {0: 12}), (10.0, {}), (15.0, {0: 12})):
        progress.observe({0: 10}, ends, now_s)
    assert progress.stalled_partitions(19.9, 10.0) == {}
    progress.observe({0: 10}, {0: 12}, 20.0)
    assert progress.stalled_partitions(20.0, 10.0) == {0: StalledPartition(10, 12, 10.0)}


def test_a_partition_whose_log_does_not_answer_is_not_called_still() -> None:
    progress = LogProgress()
    for now_s, ends in ((0.0, {0: 12}), (10.0, {0: 12}), (15.0, {})):
        progress.observe({0: 10}, ends, now_s)
    assert progress.stalled_partitions(60.0, 10.0) == {}


def test_a_partition_that_is_not_to_move_or_has_caught_up_does_not_stand_still() -> None:
    progress = LogProgress()
    progress.observe({0: 10, 1: 5}, {0: 12, 1: 6}, 0.0)
    progress.observe({1: 6}, {0: 12, 1: 6}, 10.0)
    assert progress.stalled_partitions(99.0, 10.0) == {}


def test_partitions_that_do_not_answer_are_left_out_until_a_new_client_finds_their_leader() -> None:
    with mock_cluster() as cluster:
        cluster.create_topic("t", leaders=[1, 2, 3])
        connection = AdminConnection(KafkaSettings(bootstrap_servers=cluster.bootstrap_servers))
        client = LogEndClient(connection, committed_only=True)
        ends = {0: 0, 1: 0, 2: 0}

        def ask_offsets(timeout_s: float = 1.0) -> dict[int, int]:
            return {partition: end.offset for partition, end in client.ask_ends("t", ends, timeout_s).items()}

        wait_until(lambda: client.ask_ends("t", [], 1.0) == {} and client.partition_count == 3, 60, "the partitions")
        wait_until(lambda: ask_offsets() == ends, 60, "all ends")
        assert client.partition_count == 3
        former = connection.open_client()
        assert ask_offsets(60.0) == ends
        assert connection.open_client() is former
        cluster.silence_broker(1)
        assert 0 not in client.ask_ends("t", ends, 1.0)
        cluster.move_leader("t", 0, 2)
        wait_until(lambda: ask_offsets() == ends, 60, "all ends again")
        assert connection.open_client() is not former


def test_without_a_broker_there_is_no_answer_and_no_error() -> None:
    client = LogEndClient(AdminConnection(KafkaSettings(bootstrap_servers="127.0.0.1:1")), committed_only=False)
    assert client.ask_ends("t", [0, 1], 0.1) == {}
    assert client.ask_ends("t", [], 0.1) == {}
