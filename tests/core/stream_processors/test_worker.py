"""What a worker tells of its parts, and of its partitions."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError as DriverError
from confluent_kafka import KafkaException

from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.stream_processors import worker
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import ProcessorFailed
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_identity import LogClient, TopicIds
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.worker import READY_S, Processor
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.support.event_factory import TICK


def test_a_worker_that_ends_by_a_failure_has_no_part_that_must_make_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("a part has failed")

    async def run() -> None:
        processor = Processor(ProcessorSettings(bootstrap_servers="127.0.0.1:1", api_port=0), str(tmp_path))
        assert len(processor.read_turns()) == 3
        monkeypatch.setattr(processor.app, "start", fail)
        with pytest.raises(RuntimeError, match="a part has failed"):
            await processor.run()
        assert processor.read_turns() == {}

    asyncio.run(run())


def test_a_worker_that_cannot_join_its_group_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise KafkaConnectionError("the broker closed the connection")

    async def run() -> None:
        processor = Processor(ProcessorSettings(bootstrap_servers="127.0.0.1:1", api_port=0), str(tmp_path))
        monkeypatch.setattr(processor.app, "start", fail)
        with pytest.raises(ProcessorFailed, match=r"cannot join its group: .*closed the connection"):
            await processor.run()

    asyncio.run(run())


def test_ticks_that_wait_count_as_folded_for_readiness_and_for_the_groups_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery, reported = FakeRecovery(), list[tuple[dict[int, int], str | None]]()
    recovery.gate.release()
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
    monkeypatch.setattr(partition_owner, "recover", recovery.recover)
    monkeypatch.setattr(partition_owner, "probe_log", lambda *_: LogProbe(0, 0))
    monkeypatch.setattr(worker, "find_traces", lambda *_: list[str]())
    monkeypatch.setattr(LogClient, "ask_ids", lambda _: TopicIds("events-1"))
    monkeypatch.setattr(LogClient, "ask_changelog_end", lambda *_: 0)
    monkeypatch.setattr(RecordingWriter, "written", [])
    monkeypatch.setattr(worker, "_REPORT_S", 0.01)

    async def commit_offsets(offsets: dict[int, int], topic_id: str | None) -> bool:
        reported.append((offsets, topic_id))
        return True

    async def story() -> None:
        settings = ProcessorSettings(bootstrap_servers="127.0.0.1:1", api_port=0, partitions=1, commit_interval_ms=0)
        processor = Processor(settings, str(tmp_path))
        monkeypatch.setattr(processor.app, "_consumer", SimpleNamespace(commit_offsets=commit_offsets))
        processor.assignment.take_assignment([0])
        owner = processor.assignment.owners[0]
        await OwnerBench.seen(lambda: owner.is_open)
        for offset in range(5):
            owner.offer_records(offset, [LogRecord(offset, 1_000, None, TICK)])
            await OwnerBench.seen(lambda offset=offset: owner.position.next_offset > offset)  # type: ignore[misc]
        await OwnerBench.seen(lambda: owner.commits)
        assert owner.state.position.next_offset == 1, "the other ticks wait"
        duty = asyncio.create_task(processor._report_offsets())
        await OwnerBench.seen(lambda: reported)
        assert reported == [({0: 5}, "events-1")]
        duty.cancel()
        began_s = time.monotonic() - 2 * READY_S
        for end, stalled in ((5, list[int]()), (6, [0])):
            for at_s in (began_s, began_s + READY_S):
                processor._watch_fetching({0: end}, at_s)
            assert list(processor._stalled_partitions()) == stalled
        await processor.assignment.close()

    asyncio.run(story())


def test_a_question_about_the_topics_that_fails_is_logged_and_halts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> TopicIds:
        raise KafkaException(DriverError(DriverError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(worker, "ask_topic_ids", refuse)

    async def story() -> None:
        settings = ProcessorSettings(bootstrap_servers="127.0.0.1:1", api_port=0)
        processor = Processor(settings, str(tmp_path))
        for _ in range(2):
            assert await processor._ask_topic_ids(AdminConnection(settings)) is None
        await processor.assignment.close()

    asyncio.run(story())
    assert caplog.text.count("whether the topics were made again is not known") == 1
