"""The watch over commits does not trust one client of Kafka."""

from typing import Any, cast

from confluent_kafka import Consumer, Message, TopicPartition

from tests.chaos.commit_watch import SILENCE_S_MAX, CommitWatch
from tests.chaos.stack import PREFIX
from tests.support.waiting import wait_until

EVENTS = f"{PREFIX}.events"


class Event:
    """An event of partition 2 as the watch reads it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return EVENTS

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"acme"


class LostConsumer:
    """Delivers what it is made with, then nothing for ever."""

    def __init__(self, messages: list[Event]) -> None:
        self._messages = messages
        self.assigned: list[TopicPartition] = []
        self.closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = places

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        del count, timeout_s
        found, self._messages = self._messages, []
        return cast(list[Message], found)

    def close(self) -> None:
        self.closed = True


def test_a_consumer_that_hears_nothing_is_replaced_and_the_next_one_goes_on() -> None:
    now_s = 0.0
    made: list[LostConsumer] = []

    def open_consumer(_config: dict[str, Any]) -> Consumer:
        made.append(LostConsumer([Event(40)] if not made else [Event(41)]))
        return cast(Consumer, made[-1])

    watch = CommitWatch("127.0.0.1:1", open_consumer, lambda: now_s)
    try:
        wait_until(lambda: watch.event_ends == {2: 41}, 30, "the first event")
        now_s = SILENCE_S_MAX
        assert len(made) == 1
        now_s = SILENCE_S_MAX + 0.1
        wait_until(lambda: watch.event_ends == {2: 42}, 30, "the event that the next consumer reads")
    finally:
        watch.close()
    assert [one.closed for one in made[:2]] == [True, True]
    assert {(one.topic, one.partition): one.offset for one in made[1].assigned}[EVENTS, 2] == 41
