"""Produces a sink's dead letters: records that it cannot store, to the topic `sink-rejected`.

Letters are acknowledged before the block that their records came with counts as written, so that
none is lost. After a crash in between they are produced again; sink and source position identify
the copies.
"""

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaException, Producer

from sessionary.schemas.codec.record_sizes import EncodedRecord, encode_to_fit
from sessionary.schemas.kafka.clients import ORDERED, discard_producer, flush_producer
from sessionary.schemas.rules import NEWEST_RULES, REJECTED_BYTES_MAX
from sessionary.sinks.core.rows.dead_letters import dead_letter_record
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.errors import Transient
from sessionary.sinks.settings import SinkSettings

_FLUSH_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)


class DeadLetterProducer:
    """Produces the dead letters of one sink. Connects at the first one; not thread-safe."""

    def __init__(self, settings: SinkSettings, sink: str) -> None:
        self._settings = settings
        self._sink = sink
        self._producer: Producer | None = None

    def send_letters(self, letters: Sequence[tuple[RawRecord, str]]) -> None:
        """Produce letters as (record, why) and wait for their acknowledgement.

        Blocks for up to 10 s. Raises `Transient`.
        """
        failures: list[str] = []
        producer = self._open_producer()
        for raw, detail in letters:
            key, value = encode_letter(raw, f"sink {self._sink}: {detail}")
            try:
                producer.produce(
                    self._settings.topics.sink_rejected,
                    value,
                    key,
                    partition=raw.partition,
                    on_delivery=lambda error, _message: failures.append(str(error)) if error is not None else None,
                )
            except (KafkaException, BufferError) as error:
                self._drop_producer(producer)
                raise Transient("dead_letters", str(error)) from error
        try:
            left = flush_producer(producer, _FLUSH_TIMEOUT_S)
        except KafkaException as error:  # a fatal one: this producer sends nothing more
            self._drop_producer(producer)
            raise Transient("dead_letters", str(error)) from error
        if left or failures:
            why = failures[0] if failures else f"the broker did not acknowledge within {_FLUSH_TIMEOUT_S:g} s"
            self._drop_producer(producer)
            raise Transient("dead_letters", why)

    def _drop_producer(self, producer: Producer) -> None:
        """Send the next letters by a new producer: this one may have lost its brokers for ever."""
        self._producer = None
        discard_producer(producer)

    def _open_producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._settings.client_config(),
                    **ORDERED,
                    "message.max.bytes": REJECTED_BYTES_MAX,
                },
                logger=_log,
            )
        return self._producer


def encode_letter(raw: RawRecord, detail: str) -> EncodedRecord:
    """Encode the dead letter of a record; one that is too large is cut (see `encode_to_fit`)."""
    return encode_to_fit(raw.key, dead_letter_record(raw, detail), REJECTED_BYTES_MAX, NEWEST_RULES.version)
