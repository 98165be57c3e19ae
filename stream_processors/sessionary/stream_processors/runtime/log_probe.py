"""Asks the broker for a partition's range of offsets and its first record from an offset on."""

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sessionary.schemas.log_ends import LogEndClient
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.settings import ProcessorSettings

_PROBE_S = 5.0


class LogProbe(NamedTuple):
    """The broker's answer."""

    start_offset: int  # the log's first offset
    end_offset: int  # the offset that its next record will have
    first_offset: int | None = None  # of the first record at or after the offset asked for; None: there is none

    def check_position(self, partition: int, position: int) -> None:
        """Raise `Halted` if `position` is outside of the log."""
        if not self.start_offset <= position <= self.end_offset:
            holds = f"{self.start_offset} to {self.end_offset}"
            detail = f"partition {partition}: next is offset {position}, but the log holds {holds}"
            raise Halted("log_gap", detail)


def probe_log(settings: ProcessorSettings, partition: int, offset: int) -> LogProbe:
    """Ask for a partition of the events topic. Blocks. Raises `Lost` without an answer."""
    reader = reader_of(settings)
    try:
        topic = TopicPartition(settings.topics.events, partition, offset)
        log = LogProbe(*reader.get_watermark_offsets(topic, timeout=_PROBE_S))
        if not log.start_offset <= offset < log.end_offset:
            return log
        reader.assign([topic])
        message = reader.poll(_PROBE_S)
        if message is None:
            return log
        error = message.error()
        if error is None:
            return log._replace(first_offset=message.offset())
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        return log
    except KafkaException as error:
        raise Lost(f"events of partition {partition}: {error.args[0]}") from error
    finally:
        reader.close()


class LogEndProbe:
    """Asks for the ends of many partitions, again and again, over one connection."""

    def __init__(self, settings: ProcessorSettings) -> None:
        self._topic = settings.topics.events
        self._client = LogEndClient(settings, committed_only=True)

    def log_ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the next offset of each partition of the events topic that answers. Blocks."""
        return self._client.ask_ends(self._topic, partitions, _PROBE_S)


__all__ = ["LogEndProbe", "LogProbe", "probe_log"]
