"""Which logs a partition has: the ids of its topics, by which a topic that was made anew shows.

A topic that was deleted and made again has the same name, the same offsets, and leader epochs that
begin at 0 again. Only its id is another one. The position holds the ids of the events and of the
changelog, and each opening compares them with the broker's. If the broker gives topics no ids,
nothing is compared; what `log_probe` finds is all that is known then.
"""

import threading
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.kafka.log_progress import LogEndClient
from sessionary.schemas.records import Position
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.settings import ProcessorSettings

_ASK_S = 5.0


class TopicIds(NamedTuple):
    """Kafka's ids of a partition's topics; None: unknown, or the broker gives topics none."""

    events: str | None = None
    changelog: str | None = None

    def complete(self, position: Position) -> Position:
        """Return a position with these ids. One that is unknown now stays as it was."""
        return position._replace(
            events_topic_id=self.events or position.events_topic_id,
            changelog_topic_id=self.changelog or position.changelog_topic_id,
        )

    def find_replaced(self, partition: int, position: Position, topics: TopicNames) -> Halted | None:
        """Return the fault if a topic has another id than `position` says, else None."""
        if is_other_topic(position.events_topic_id, self.events):
            return _topic_replaced(partition, position, topics.events, position.events_topic_id, self.events)
        if is_other_topic(position.changelog_topic_id, self.changelog):
            return _topic_replaced(partition, position, topics.changelog, position.changelog_topic_id, self.changelog)
        return None


NO_IDS: Final = TopicIds()


def is_other_topic(former: str | None, topic_id: str | None) -> bool:
    """Return whether two ids are known, and of different topics."""
    return former is not None and topic_id is not None and former != topic_id


def _topic_replaced(partition: int, position: Position, topic: str, former: str | None, topic_id: str | None) -> Halted:
    return Halted(
        "topic_replaced",
        f"partition {partition}: the topic {topic} has the id {topic_id}, and had {former} when the position was "
        "written: another topic has this name now. Possible causes: it was deleted and made again, or the pipeline was "
        f"moved to copies of its topics. All events below offset {position.next_offset} are folded (batch "
        f"{position.batch_number}). If all records were copied to the same offsets: sessionary partition rebuild "
        f"{partition} --accept-topics. If only the changelog was made again: sessionary partition rebuild {partition}. "
        "If the events are gone, their effects can be kept: sessionary partition rebuild "
        f"{partition} --accept-rows. If the brokers are restored as a whole, from copies of their disks: sessionary "
        f"partition retry {partition}",
    )


def ask_topic_ids(connection: AdminConnection, topics: TopicNames) -> TopicIds:
    """Return the ids of the events and of the changelog.

    Blocks for up to 12 s. Raises `KafkaException`, also if a topic does not exist.
    """
    return TopicIds(
        ask_topic_id(connection, topics.events, _ASK_S),
        ask_topic_id(connection, topics.changelog, _ASK_S),
    )


class LogClient:
    """Asks about the logs of a partition that opens, over one connection. For any thread.

    Blocks for each other thread too. Raises `Lost` without an answer.
    """

    def __init__(self, settings: ProcessorSettings) -> None:
        """Connect to nothing yet."""
        self._topics = settings.topics
        self._connection = AdminConnection(settings)
        self._ends = LogEndClient(self._connection, committed_only=False)
        self._lock = threading.Lock()

    def ask_ids(self) -> TopicIds:
        """Return the ids of the topics. Blocks for up to 12 s.

        Each call asks: a topic can be deleted and made again in half a second, and a decision that
        took the former id would halt the partition that it should open.
        """
        with self._lock:
            try:
                return ask_topic_ids(self._connection, self._topics)
            except KafkaException as error:
                raise Lost(f"the ids of {self._topics.events} and its changelog: {error.args[0]}") from error

    def ask_changelog_end(self, partition: int) -> int:
        """Return the high watermark of a partition's changelog. Blocks for up to 11 s.

        An open transaction hides what is before it from readers of committed records.
        """
        return self._ask_end(self._topics.changelog, partition)

    def ask_events_end(self, partition: int) -> int:
        """Return the high watermark of a partition's events. Blocks for up to 11 s."""
        return self._ask_end(self._topics.events, partition)

    def _ask_end(self, topic: str, partition: int) -> int:
        with self._lock:
            end = self._ends.ask_ends(topic, [partition], _ASK_S).get(partition)
        if end is None:
            raise Lost(f"the end of {topic}, partition {partition}: no answer")
        return end.offset
