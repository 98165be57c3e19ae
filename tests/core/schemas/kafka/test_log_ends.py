"""Who asks for the ends of a log, against brokers of which one falls silent."""

from sessionary.schemas.kafka.admin_connection import AdminConnection
from sessionary.schemas.kafka.log_ends import LogEndClient
from sessionary.schemas.settings import KafkaSettings
from tests.support.mock_cluster import mock_cluster
from tests.support.waiting import wait_until


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
