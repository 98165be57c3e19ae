"""Reads a partition's audit trail, to its end. Everything here blocks."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.kafka.clients import is_unreadable_batch
from sessionary.schemas.records import AuditRecord
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.settings import ProcessorSettings

_RECORDS: Final = 500  # that are read at once
_SILENCE_S: Final = 10.0
_PAUSE_S: Final = 0.2


class AuditPart(NamedTuple):
    """Some records of a trail, or none for a moment, and at which offset the trail begins."""

    start_offset: int
    records: Sequence[AuditRecord]


def read_audit(
    settings: ProcessorSettings,
    partition: int,
    refuse: Callable[[str], Exception],
    keys: Collection[bytes | None] | None = None,
    since_ms: int | None = None,
) -> Iterator[AuditPart]:
    """Yield a partition's audit trail, in parts; with `keys` only the records under these.

    `since_ms`: from the first record on that was appended at this time or later.

    Raises the error that `refuse` returns, for a batch that cannot be read: behind it the client
    may miss others. Raises `Lost` if the broker does not answer.
    """
    topic, decoder = settings.topics.audit, Decoder()
    reader, place = reader_of(settings), TopicPartition(topic, partition, OFFSET_BEGINNING)
    try:
        start, end = reader.get_watermark_offsets(place, timeout=_SILENCE_S)
        if end == 0:
            return
        if since_ms is not None:
            place = _find_place(reader, TopicPartition(topic, partition, since_ms), end)
        reader.assign([place])
        heard_s, is_at_end = time.monotonic(), False
        while not is_at_end:
            records: list[AuditRecord] = []
            for message in reader.consume(_RECORDS, _PAUSE_S):
                heard_s, error = time.monotonic(), message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    is_at_end = True
                    break
                if is_unreadable_batch(message):
                    raise refuse(f"a batch of {topic} cannot be read")
                if error is not None:
                    raise KafkaException(error)
                if keys is None or message.key() in keys:
                    records += _decode(decoder, message)
            yield AuditPart(start, records)
            if time.monotonic() - heard_s > _SILENCE_S:
                raise Lost(f"{topic} of partition {partition}: silent for {_SILENCE_S:g} s")
    except KafkaException as error:
        raise Lost(f"{topic} of partition {partition}: {error.args[0]}") from error
    finally:
        reader.close()


def _find_place(reader: Consumer, asked: TopicPartition, end: int) -> TopicPartition:
    """Return where the records begin that were appended at a time or later, or the end."""
    (found,) = reader.offsets_for_times([asked], timeout=_SILENCE_S)
    if found.error is not None:
        raise KafkaException(found.error)
    return TopicPartition(asked.topic, asked.partition, found.offset if found.offset >= 0 else end)


def _decode(decoder: Decoder, message: Message) -> Sequence[AuditRecord]:
    """Return the audit record of a message; nothing if it is none."""
    try:
        record = decoder.decode_record(message.value() or b"")
    except DecodeError:
        return ()
    return (record,) if isinstance(record, AuditRecord) else ()
