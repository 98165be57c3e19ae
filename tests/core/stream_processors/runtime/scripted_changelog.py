"""A changelog of one partition, and readers of it that fail or fall silent by a script."""

import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.settings import KafkaSettings
from tests.core.store_rig import ChangelogEntry

PARTITION = 3


class ScriptedChangelog:
    """Call it instead of `reader_of`.

    Each reader in turn ends after as many records as `limits` has for it: it fails, or is silent if
    `is_silent`; a reader without a limit reads all. While `is_away`, no new reader gets an answer.
    """

    def __init__(
        self, entries: Sequence[ChangelogEntry], limits: Sequence[int] = (), *, is_silent: bool = False
    ) -> None:
        self.entries = list(entries)
        self.limits = list(limits)
        self.is_silent, self.is_away = is_silent, False
        self.readers: list[ScriptedReader] = []
        self.low = 0
        self.hidden_from: int | None = None  # where an open transaction begins; None: there is none
        self.headers: dict[int, list[tuple[str, str | bytes | None]]] = {}  # by offset, instead of `due`

    def __call__(self, _: KafkaSettings) -> "ScriptedReader":
        self.readers.append(ScriptedReader(self))
        return self.readers[-1]

    @property
    def read_offsets(self) -> list[list[int]]:
        """The offsets of the records that each reader delivered; of those that were assigned."""
        return [reader.delivered for reader in self.readers if reader.next_offset is not None]

    @property
    def stable_end(self) -> int:
        """The end for readers of committed records."""
        return len(self.entries) if self.hidden_from is None else self.hidden_from

    def message(self, offset: int) -> Message:
        key, value, due = self.entries[offset]
        headers = self.headers.get(offset, [] if due is None else [("due", due)])
        return Message(topic="t", partition=PARTITION, offset=offset, key=key, value=value, headers=headers)

    def event(self, code: int, offset: int) -> Message:
        return Message(topic="t", partition=PARTITION, offset=offset, error=KafkaError(code, "reported so"))


class ScriptedReader:
    """A consumer of a `ScriptedChangelog`; it delivers five records at a time."""

    BATCH_RECORDS = 5

    def __init__(self, log: ScriptedChangelog) -> None:
        self._log = log
        self._left: int | None = None
        self.next_offset: int | None = None
        self._ended_at: int | None = None  # the end is reported once
        self.delivered: list[int] = []
        self.is_closed = False

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        if self._log.is_away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "reported so"))
        return self._log.low, self._log.stable_end

    def assign(self, places: list[TopicPartition]) -> None:
        self.next_offset = max(self._log.low, places[0].offset)
        self._left = self._log.limits.pop(0) if self._log.limits else None

    def poll(self, _: float) -> Message | None:
        assert self.next_offset is not None
        if self._left == 0 and self._log.is_silent:
            time.sleep(0.001)
            return None
        if self._left == 0:
            raise KafkaException(KafkaError(KafkaError._FAIL, "reported so"))
        if self.next_offset >= self._log.stable_end:
            if self._ended_at == self.next_offset:
                return None
            self._ended_at = self.next_offset
            return self._log.event(KafkaError._PARTITION_EOF, self.next_offset)
        self.delivered.append(self.next_offset)
        self.next_offset += 1
        if self._left is not None:
            self._left -= 1
        return self._log.message(self.next_offset - 1)

    def consume(self, _: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        while len(found) < self.BATCH_RECORDS - 1 and self._left != 0 and self.next_offset != self._log.stable_end:
            message = self.poll(0)
            assert message is not None
            found.append(message)
        return found

    def close(self) -> None:
        self.is_closed = True
