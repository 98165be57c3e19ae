"""A program that reads new committed records of a topic, and records when it saw each one.

    python -m benchmarks.programs.reader audit|plain TOPIC --out FILE

It creates `<FILE>.ready` when it begins to read, writes `<FILE>.count` twice a second, and FILE on
SIGTERM. FILE has lines `name ns`: ns since the epoch. `audit` decodes audit records and names them
`<session>/<event type>`; `plain` reads the name from a record of `sender plain`.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings

_CALL_S = 10.0
_REPORT_S = 0.5


def _audit_name(decoder: Decoder, value: bytes) -> str | None:
    record = decoder.decode_record(value)
    assert isinstance(record, AuditRecord)
    return f"{record.session_id}/{record.event_type}" if record.kind == "transition" else None


def plain_name(value: bytes) -> str | None:
    """Return the name in a record of `sender plain`; None if the record is not passed on."""
    return value[1:].rstrip(b"\0").decode() if value[:1] == b"1" else None


def _read_records(
    consumer: Consumer, name_of: Callable[[bytes], str | None], stop: threading.Event, count: Path
) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []
    printed_s = time.monotonic()
    while not stop.is_set():
        if time.monotonic() - printed_s > _REPORT_S:
            printed_s = time.monotonic()
            count.write_text(str(len(seen)))
        message = consumer.poll(0.1)
        value = message.value() if message is not None and message.error() is None else None
        if value is not None:
            at_ns = time.time_ns()
            if (name := name_of(value)) is not None:
                seen.append((name, at_ns))
    return seen


def main() -> int:
    """Read until SIGTERM, then write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.reader")
    parser.add_argument("mode", choices=("audit", "plain"))
    parser.add_argument("topic")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = Consumer(
        {
            **KafkaSettings.from_env().client_config(),
            "group.id": "benchmark-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    places = [TopicPartition(given.topic, n) for n in consumer.list_topics(given.topic).topics[given.topic].partitions]
    ends = [consumer.get_watermark_offsets(place, timeout=_CALL_S)[1] for place in places]
    consumer.assign(
        [TopicPartition(p.topic, p.partition, end or OFFSET_END) for p, end in zip(places, ends, strict=True)]
    )
    consumer.poll(0)
    given.out.with_suffix(".ready").touch()
    decoder = Decoder()
    name_of = (lambda value: _audit_name(decoder, value)) if given.mode == "audit" else plain_name
    seen = _read_records(consumer, name_of, stop, given.out.with_suffix(".count"))
    consumer.close()
    given.out.write_text("".join(f"{name} {at_ns}\n" for name, at_ns in seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
