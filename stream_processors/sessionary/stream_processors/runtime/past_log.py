"""Reads what a session's state at a point is folded from: its partition's log, and audit trail.

    audit trail, from its begin ──▶ where the session began, decisions, hashes
    events, from there on ────────▶ `core.past`, a part at a time

Everything here blocks.
"""

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.kafka.clients import is_unreadable_batch
from sessionary.schemas.records import AuditRecord, Position
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.past import PastLog, PastState, Point, find_beginning, is_of_interest, state_at
from sessionary.stream_processors.errors import Lost, StateExpired
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.runtime.decisions import read_each
from sessionary.stream_processors.runtime.job import partition_settings
from sessionary.stream_processors.runtime.log_probe import probe_log
from sessionary.stream_processors.settings import ProcessorSettings

_RECORDS: Final = 500  # that are read at once
_PAUSE_S: Final = 0.2
_SILENCE_S: Final = 10.0


class PastReader:
    """Folds single sessions from Kafka. One instance may serve any number of threads."""

    def __init__(self, settings: ProcessorSettings, judge: Judge) -> None:
        """Connect to nothing yet."""
        self._settings, self._judge = settings, judge
        self._decoder = decoder_for(settings)

    def state_at(self, session: SessionKey, partition: int, point: Point, end: Position) -> PastState:
        """Return a session's state at a point below `end`, up to which its partition is folded.

        Raises `PointUnknown`; `StateExpired` if log or trail do not reach back to its first event;
        `Lost` if the broker does not answer, `Unavailable` if a schema registry does not.
        """
        trail = list(self._read_trail(session, partition))
        begin = find_beginning(trail)
        first = end.next_offset if begin is None else begin.source_offset
        start = probe_log(self._settings, partition, first).start_offset
        if begin is not None and first < start:
            raise StateExpired(
                f"the events of session {session.session_id} begin at offset {first}, and the log of partition "
                f"{partition} at {start}: those before are deleted"
            )
        last = int(point.value) if point.kind == "offset" else end.next_offset - 1
        log = PastLog(
            records=self._read_events(partition, first, min(last, end.next_offset - 1)),
            trail=trail,
            end=end,
            settings=partition_settings(self._settings),
            judge=self._judge,
            decoder=self._decoder,
        )
        return state_at(log, session, partition, point)

    def _read_events(self, partition: int, first: int, last: int) -> Iterator[LogRecord]:
        for read in read_each(self._settings, partition, first, last):
            yield from read.records

    def _read_trail(self, session: SessionKey, partition: int) -> Iterator[AuditRecord]:
        """Yield the session's audit records and the partition's decisions, in order.

        Other sessions' records are not decoded.
        """
        topic, key, decoder = self._settings.topics.audit, session.encoded(), Decoder()
        reader = reader_of(self._settings)
        try:
            for value in _read_values(reader, TopicPartition(topic, partition, OFFSET_BEGINNING), (None, key)):
                try:
                    record = decoder.decode_record(value)
                except DecodeError:
                    continue
                if isinstance(record, AuditRecord) and is_of_interest(record, session):
                    yield record
        except KafkaException as error:
            raise Lost(f"{topic} of partition {partition}: {error.args[0]}") from error
        finally:
            reader.close()


def _read_values(reader: Consumer, place: TopicPartition, keys: tuple[bytes | None, ...]) -> Iterator[bytes]:
    """Yield the values under these keys up to the partition's end."""
    _, end = reader.get_watermark_offsets(place, timeout=_SILENCE_S)
    if end == 0:
        return
    reader.assign([place])
    heard_s = time.monotonic()
    while time.monotonic() - heard_s <= _SILENCE_S:
        for message in reader.consume(_RECORDS, _PAUSE_S):
            heard_s = time.monotonic()
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            if error is not None and not is_unreadable_batch(message):
                raise KafkaException(error)
            if error is None and message.key() in keys:
                yield message.value() or b""
    raise Lost(f"{place.topic} of partition {place.partition}: silent for {_SILENCE_S:g} s")
