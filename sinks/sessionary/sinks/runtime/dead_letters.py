"""Dead letters of a sink: records that can become no row, with their bytes, on the topic `sink-rejected`.

They are produced and acknowledged before the batch that they stood in counts as written, so that none is lost. After a
crash in between they are produced again: position and sink tell the copies.
"""

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaException, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.topics import REJECTED_BYTES_MAX
from sessionary.sinks.core.rows import RawRecord, no_headers, rejected_event
from sessionary.sinks.errors import Transient
from sessionary.sinks.settings import SinkSettings

_FLUSH_TIMEOUT_S = 10.0
_FRAME_BYTES = 4_096  # what Kafka and the headers add to a value
_log = logging.getLogger(__name__)


class DeadLetters:
    """Produces dead letters; connects at the first one. Not thread-safe."""

    def __init__(self, settings: SinkSettings, sink: str) -> None:
        self._settings = settings
        self._sink = sink
        self._producer: Producer | None = None

    def send(self, letters: Sequence[tuple[RawRecord, str]]) -> None:
        """Produce and wait until all brokers have them. Blocks up to 10 s; raises `Transient`."""
        failures: list[str] = []
        producer = self._open()
        for raw, detail in letters:
            value = encoded_letter(raw, f"sink {self._sink}: {detail}")
            try:
                producer.produce(
                    self._settings.topics.sink_rejected,
                    value,
                    raw.key,
                    partition=raw.partition,
                    on_delivery=lambda error, _message: failures.append(str(error)) if error is not None else None,
                )
            except (KafkaException, BufferError) as error:
                raise Transient("dead_letters", str(error)) from error
        if producer.flush(_FLUSH_TIMEOUT_S) or failures:
            producer.purge()
            producer.flush(0)
            raise Transient("dead_letters", failures[0] if failures else "the broker does not acknowledge")

    def _open(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._settings.client_config(),
                    "acks": "all",
                    "enable.idempotence": True,
                    "partitioner": "murmur2_random",
                    "message.max.bytes": REJECTED_BYTES_MAX,
                },
                logger=_log,
            )
        return self._producer


def encoded_letter(raw: RawRecord, detail: str) -> bytes:
    """Encode the letter; a value that does not fit into one stays where it is, and the letter says so."""
    value = encode_record(rejected_event(raw, detail))
    if len(value) + len(raw.key or b"") + _FRAME_BYTES <= REJECTED_BYTES_MAX:
        return value
    left_out = f"{detail} (value of {len(raw.value or b'')} bytes left out, it stands at the source position)"
    return encode_record(rejected_event(raw._replace(value=None, read_headers=no_headers), left_out))


__all__ = ["DeadLetters", "encoded_letter"]
