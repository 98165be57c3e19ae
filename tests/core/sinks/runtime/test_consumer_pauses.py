"""What a sink does once Kafka is well again: it fetches; and where its consumer is dead for good: it ends."""

import threading
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.errors import Fenced, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import Flusher
from sessionary.sinks.runtime.consumer import SinkConsumer
from sessionary.sinks.runtime.hung_calls import Watchdog
from sessionary.sinks.settings import SinkSettings


class Driver:
    """What librdkafka keeps of pauses: by partition, and across assignments."""

    def __init__(self) -> None:
        self.paused: set[int] = set()
        self.assigned: set[int] = set()

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, 5) for place in partitions]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = {place.partition for place in partitions}

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {place.partition for place in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {place.partition for place in partitions}


def test_partitions_that_come_back_after_the_trouble_are_not_paused_any_more() -> None:
    definition, settings = SINKS["history"], SinkSettings()
    sink = SinkConsumer(definition, settings, cast(Flusher, None), SinkMetrics("history", "g"))
    sink._consumer.close()
    driver = Driver()
    sink._consumer = cast(Any, driver)
    places = [TopicPartition(settings.topics.events, number) for number in range(2)]
    sink._on_assign(cast(Any, driver), places)
    sink._stand_still(Transient("commit", "the coordinator is away"))
    assert driver.paused == {0, 1}
    sink._on_lost(cast(Any, driver), places)
    sink._go_on()  # with nothing assigned there is nothing that it could resume
    sink._on_assign(cast(Any, driver), places)
    assert driver.assigned == {0, 1}
    assert driver.paused == set()


def test_partitions_that_come_while_it_stands_still_are_paused() -> None:
    definition, settings = SINKS["history"], SinkSettings()
    sink = SinkConsumer(definition, settings, cast(Flusher, None), SinkMetrics("history", "g"))
    sink._consumer.close()
    driver = Driver()
    sink._consumer = cast(Any, driver)
    sink._stand_still(Transient("commit", "the coordinator is away"))
    sink._on_assign(cast(Any, driver), [TopicPartition(settings.topics.events, 3)])
    assert driver.paused == {3}
    sink._go_on()
    assert driver.paused == set()


@pytest.mark.parametrize("code", [KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID])
def test_a_consumer_that_is_dead_for_good_ends_the_sink(code: int) -> None:
    definition, settings = SINKS["history"], SinkSettings()
    sink = SinkConsumer(definition, settings, cast(Flusher, None), SinkMetrics("history", "g"))
    sink._consumer.close()

    class Dead(Driver):
        def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
            raise KafkaException(KafkaError(code))

    sink._consumer = cast(Any, Dead())
    with pytest.raises(Fenced):
        sink._commit(0, 5, "")
    with pytest.raises(Fenced):
        sink._on_error(KafkaError(code))


def test_a_commit_that_hangs_ends_the_process() -> None:
    definition, settings = SINKS["history"], SinkSettings()
    sink = SinkConsumer(definition, settings, cast(Flusher, None), SinkMetrics("history", "g"))
    sink._consumer.close()
    given_up = threading.Event()

    class Hanging(Driver):
        def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
            assert given_up.wait(30)  # an exit would be the end of this test
            return offsets

    sink._consumer = cast(Any, Hanging())
    sink.watchdog = Watchdog(0.01, look_s=0.01)
    sink.watchdog.start(given_up.set)
    sink._commit(0, 5, "")
    assert given_up.is_set()


def test_a_group_whose_offsets_are_not_to_be_had_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    definition, settings = SINKS["history"], SinkSettings()
    sink = SinkConsumer(definition, settings, cast(Flusher, None), SinkMetrics("history", "g"))
    sink._consumer.close()

    class Away(Driver):
        asked = 0

        def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            self.asked += 1
            if self.asked < 3:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return super().committed(partitions, timeout)

    driver = Away()
    sink._consumer = cast(Any, driver)
    sink._on_assign(cast(Any, driver), [TopicPartition(settings.topics.events, 3)])
    assert (driver.assigned, sink._unplanned != []) == (set(), True)
    sink._plan()
    assert (driver.asked, driver.assigned) == (2, set())
    sink._plan()
    assert (driver.asked, driver.assigned, sink._unplanned) == (3, {3}, [])
    assert "asking again" in caplog.text


def test_a_partition_that_is_taken_away_is_not_asked_about_any_more() -> None:
    definition, settings = SINKS["history"], SinkSettings()
    sink = SinkConsumer(definition, settings, cast(Flusher, None), SinkMetrics("history", "g"))
    sink._consumer.close()

    class Away(Driver):
        def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    sink._consumer = cast(Any, Away())
    places = [TopicPartition(settings.topics.events, 3)]
    sink._on_assign(cast(Any, sink._consumer), places)
    sink._on_lost(cast(Any, sink._consumer), places)
    assert sink._unplanned == []
