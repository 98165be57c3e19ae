"""A log that was cut below the position: fills it up to there, and finds what must not be folded.

A partition's offsets are identities: of audit records, refused events, rows of history, and of what
sinks have committed. So none is folded twice. A log that ends below the position is filled with
ticks up to it. What was appended since the loss, below the position, has offsets of records that
were folded; it is left unfolded.
"""

import bisect

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sessionary.schemas.codec import encode_record
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.records import Position, Tick
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.settings import ProcessorSettings

FILL_MAX = 1_000_000  # offsets; a log that lost more is no loss of its last records
_TIMEOUT_S = 30.0
_POLL_S = 5.0


def fill_log(settings: ProcessorSettings, partition: int, log: LogProbe, next_offset: int) -> None:
    """Append ticks until the log ends at `next_offset` or later.

    Blocks for up to 30 s. Raises `Lost` if they are not acknowledged, or more than `FILL_MAX` are
    needed.
    """
    missing = next_offset - log.end_offset
    if missing > FILL_MAX:
        raise Lost(f"partition {partition}: its log lacks {missing} offsets, and at most {FILL_MAX} are filled")
    producer = Producer({**settings.client_config(), "linger.ms": 5, "message.timeout.ms": int(_TIMEOUT_S * 1_000)})
    failures: list[KafkaError] = []
    try:
        tick = encode_record(Tick(settings.worker_name))
        for _ in range(missing):
            while True:
                try:
                    producer.produce(
                        settings.topics.events,
                        tick,
                        partition=partition,
                        on_delivery=lambda error, _: failures.append(error) if error is not None else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(_TIMEOUT_S)
    except KafkaException as error:
        raise Lost(f"partition {partition}: ticks were not sent: {error.args[0]}") from error
    finally:
        discard_producer(producer)
    if left or failures:
        raise Lost(f"partition {partition}: ticks were not acknowledged: {failures[0] if failures else 'no answer'}")


class _ReplacedOffsets:
    """For each offset from the log's start on: whether its record was appended after the loss."""

    def __init__(self, reader: Consumer, topic: TopicPartition, position: Position) -> None:
        self._reader, self._topic, self._position = reader, topic, position

    def __len__(self) -> int:
        return self._position.next_offset

    def __getitem__(self, offset: int) -> bool:
        self._topic.offset = offset
        self._reader.assign([self._topic])
        message = self._reader.poll(_POLL_S)
        if message is None:
            raise Lost(f"events of partition {self._topic.partition}: nothing read at offset {offset}")
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            return True
        epoch, known = message.leader_epoch(), self._position.leader_epoch
        if epoch is not None and known is not None:
            return epoch > known
        return message.timestamp()[1] > self._position.clock_ms


def find_replaced(settings: ProcessorSettings, partition: int, position: Position, start_offset: int) -> int:
    """Return the first offset below the position whose record was appended after the loss.

    The log must reach the position. Without a leader epoch in the position, the records are told by
    their stamps: those that were folded are not after its clock. Blocks. Raises `Lost` without an
    answer.
    """
    reader = reader_of(settings)
    try:
        replaced = _ReplacedOffsets(reader, TopicPartition(settings.topics.events, partition), position)
        return bisect.bisect_left(replaced, x=True, lo=start_offset)
    except KafkaException as error:
        raise Lost(f"events of partition {partition}: {error.args[0]}") from error
    finally:
        reader.close()
