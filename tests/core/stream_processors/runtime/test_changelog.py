"""How a changelog is read, without a broker."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.families import processor_job
from sessionary.stream_processors.runtime import changelog
from sessionary.stream_processors.runtime.changelog import PREFETCH_KIB, RecoveryProgress, reader_of, recover
from sessionary.stream_processors.runtime.worker_context import RECOVERIES_MAX
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import PartitionStores


def test_all_recoveries_of_a_worker_prefetch_less_than_one_reader_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(changelog, "Consumer", configs.append)
    reader_of(ProcessorSettings())
    assert configs[0]["queued.max.messages.kbytes"] == PREFETCH_KIB
    assert RECOVERIES_MAX * PREFETCH_KIB <= 65_536


class DamagedChangelog:
    """A reader whose log begins with a batch of a wrong checksum."""

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, 9

    def assign(self, _: list[TopicPartition]) -> None:
        pass

    def poll(self, _: float) -> Message:
        error = KafkaError(KafkaError._BAD_MSG, "failed CRC32C check")
        return Message(topic="t.changelog", partition=3, offset=7, error=error)

    def consume(self, _: int, timeout: float) -> list[Message]:
        return []

    def close(self) -> None:
        pass


def test_a_damaged_changelog_halts_the_partition_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "reader_of", lambda _: DamagedChangelog())
    settings = ProcessorSettings()
    job = processor_job(settings)
    store = PartitionStores(settings, None, job.row_codec).store_of(3)
    with pytest.raises(Halted, match="partition 3: the batch that begins at offset 7 of ") as caught:
        recover(settings, job.new_state(3), store, job.row_codec, lambda: True, RecoveryProgress())
    assert caught.value.reason == "changelog_unreadable"
