"""Who asks for a topic's id, of a broker that does not answer."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from sessionary.schemas.kafka.admin_connection import AdminConnection
from sessionary.schemas.kafka.topic_ids import ask_topic_id
from sessionary.schemas.settings import KafkaSettings
from tests.support.waiting import wait_until


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let only that go to which no one refers, as in a process that allocates little."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.usefixtures("no_collection")
def test_clients_that_got_no_answer_leave_no_thread_behind() -> None:
    before = count_threads()
    connection = AdminConnection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    for _ in range(3):
        with pytest.raises(KafkaException):
            ask_topic_id(connection, "t", 0.2)
    wait_until(lambda: count_threads() <= before, 60, "the end of their threads")
