"""What a partition's log holds at a position: asked where the position and what was fetched do not meet."""

from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.settings import ProcessorSettings

_PROBE_S = 5.0


class LogProbe(NamedTuple):
    """What the log itself says."""

    start_offset: int
    end_offset: int
    first_offset: int | None = None  # its first record at or after the offset in question; None: there is none

    def check_position(self, partition: int, position: int) -> None:
        """Raise `Halted` where the log does not hold what stands at the position."""
        if not self.start_offset <= position <= self.end_offset:
            detail = (
                f"partition {partition}: next is {position}, but the log holds {self.start_offset} to {self.end_offset}"
            )
            raise Halted("log_gap", detail)


def probe_log(settings: ProcessorSettings, partition: int, offset: int) -> LogProbe:
    """Ask the log. Blocks. Raises `Lost` where it does not answer."""
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


__all__ = ["LogProbe", "probe_log"]
