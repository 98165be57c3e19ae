"""Checks an engine's output: every event counted once, per key in order.

Shares no code with any engine.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from benchmarks.measurements.keyed_count.job import KEYS, NUMBER_DIGITS, PARTITIONS, key_bytes

_READ = 20_000
_SILENCE_MAX_S = 60.0


class OutputCheck(NamedTuple):
    """The result of checking the committed records of the output topic."""

    outputs: int
    missing: int  # events without an output
    doubled: int  # outputs of an event that already has one
    wrong: int  # outputs with a wrong count, out of order, or of another key

    @property
    def is_right(self) -> bool:
        """True if no output is missing, doubled or wrong."""
        return not (self.missing or self.doubled or self.wrong)

    def __str__(self) -> str:
        if self.is_right:
            return f"{self.outputs:,} outputs, all correct"
        return f"WRONG: {self.missing:,} missing, {self.doubled:,} doubled, {self.wrong:,} wrong of {self.outputs:,}"


def committed_records(bootstrap_servers: str, topic: str) -> Iterator[list[Message]]:
    """Yield all committed records of a topic, partition by partition in order."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"{topic}-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 262_144,
            "fetch.queue.backoff.ms": 5,  # by default a full queue pauses for a second
            "log_level": 0,
        }
    )
    try:
        reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        ended, last_message_s = 0, time.monotonic()
        while ended < PARTITIONS:
            messages = reader.consume(_READ, 0.2)
            if messages:
                last_message_s = time.monotonic()
            elif time.monotonic() - last_message_s > _SILENCE_MAX_S:
                raise RuntimeError(f"{topic}: silent for {_SILENCE_MAX_S:g} s")
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
                elif error is not None:
                    raise KafkaException(error)
            yield [message for message in messages if message.error() is None]
    finally:
        reader.close()


def count_committed(bootstrap_servers: str, topic: str) -> int:
    """Return how many committed records a topic holds."""
    return sum(map(len, committed_records(bootstrap_servers, topic)))


class OutputAuditor:
    """Checks outputs one by one, in the order of their partitions."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys
        self._encoded = [key_bytes(number) for number in range(KEYS)]
        self._seen = bytearray(len(keys))
        self._counts = [0] * KEYS
        self._latest = [-1] * KEYS
        self._outputs = self._doubled = self._wrong = 0

    def take_output(self, record_key: bytes, value: bytes) -> None:
        """Check one output, `count number…`."""
        count, _, rest = value.partition(b" ")
        number = int(rest[:NUMBER_DIGITS])
        drawn = self._keys[number]
        self._outputs += 1
        if self._seen[number]:
            self._doubled += 1
            return
        self._seen[number] = 1
        expected = self._counts[drawn] = self._counts[drawn] + 1
        if int(count) != expected or number <= self._latest[drawn] or record_key != self._encoded[drawn]:
            self._wrong += 1
        self._latest[drawn] = number

    def result(self) -> OutputCheck:
        """Return the result so far."""
        return OutputCheck(self._outputs, len(self._keys) - sum(self._seen), self._doubled, self._wrong)


def check_output(bootstrap_servers: str, topic: str, keys: Sequence[int]) -> OutputCheck:
    """Read the whole output topic and compare it with the events' keys. Blocks."""
    auditor = OutputAuditor(keys)
    for messages in committed_records(bootstrap_servers, topic):
        for message in messages:
            auditor.take_output(message.key() or b"", message.value() or b"")
    return auditor.result()
