"""A topic that was deleted and made again is another one, whatever its name and offsets."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import encode_position
from sessionary.schemas.kafka.log_progress import LogEnd, LogEndClient
from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import changelog, log_identity, log_probe, partition_owner
from sessionary.stream_processors.runtime.changelog import RecoveryProgress, recover, seal_with
from sessionary.stream_processors.runtime.log_identity import LogClient, TopicIds
from sessionary.stream_processors.runtime.log_probe import LogProbe, find_traces
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, SETTINGS, ChangelogEntry, StoreRig
from tests.core.stream_processors.runtime.messages import message
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.core.stream_processors.runtime.scripted_changelog import PARTITION, ScriptedChangelog
from tests.support.event_factory import TICK, EventFactory, snapshot

IDS = TopicIds("events-1", "changelog-1")
POSITION = IDS.complete(Position(40, 5_000, 0, 7, 0))


def changelog_of(*positions: Position) -> ScriptedChangelog:
    return ScriptedChangelog([ChangelogEntry(POSITION_KEY, encode_position(position), None) for position in positions])


def recover_with(
    log: ScriptedChangelog, ids: TopicIds, monkeypatch: pytest.MonkeyPatch, store: MemoryStore | None = None
) -> Position:
    monkeypatch.setattr(changelog, "reader_of", log)
    state, store = JOB.new_state(PARTITION), store or MemoryStore(JOB.row_codec)
    recover(SETTINGS, state, store, JOB.row_codec, lambda: True, RecoveryProgress(), ids)
    return state.position


@pytest.mark.parametrize(
    ("now", "topic", "parts"),
    [
        (IDS._replace(events="events-2"), SETTINGS.topics.events, ("events-1", "events-2")),
        (IDS._replace(changelog="changelog-2"), SETTINGS.topics.changelog, ("changelog-1", "changelog-2")),
    ],
)
def test_a_partition_whose_topic_was_made_again_does_not_open(
    now: TopicIds, topic: str, parts: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Halted) as caught:
        recover_with(changelog_of(POSITION), now, monkeypatch)
    assert caught.value.reason == "topic_replaced"
    for part in (f"the topic {topic} ", *parts, "below offset 40", "batch 7"):
        assert part in caught.value.detail


@pytest.mark.parametrize("now", [IDS, TopicIds(), TopicIds(None, IDS.changelog)], ids=["same", "none", "one"])
def test_ids_that_are_the_same_or_unknown_halt_nothing(now: TopicIds, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recover_with(changelog_of(POSITION), now, monkeypatch) == POSITION
    former = Position(40, 5_000, 0, 7, 0)
    assert recover_with(changelog_of(former), now, monkeypatch) == former
    assert now.complete(POSITION) == POSITION, "an id that was known stays known"


def test_a_store_is_not_continued_with_another_changelog(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryStore(JOB.row_codec), IDS._replace(changelog="changelog-2")
    store.save_rows({}, SavedPosition(POSITION, 1, time.time()))
    log = changelog_of(*(now.complete(Position(n, 5_000, 0, n, 0)) for n in (1, 2)))
    assert recover_with(log, now, monkeypatch, store).next_offset == 2
    assert log.read_offsets == [[0, 1]], "it was read from the start"


def test_the_seal_names_the_topics_of_the_position() -> None:
    sealed = seal_with(MemoryStore(JOB.row_codec), 3, IDS)(Position(40, 5_000, 0, 7, 0), {})
    assert (sealed.events_topic_id, sealed.changelog_topic_id, sealed.leader_epoch) == (*IDS, 3)


def test_an_owner_asks_for_the_ids_and_commits_them(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)

    async def story() -> None:
        bench = OwnerBench(topic_ids=lambda: IDS)
        recovery.gate.release()
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        await bench.seen(lambda: owner.is_open)
        assert recovery.topic_ids == IDS
        owner.offer_records(0, [LogRecord(0, 5_000, None, TICK)])
        assert await owner.wait_until_committed(0, 60)
        committed = owner.state.position
        assert (committed.events_topic_id, committed.changelog_topic_id) == IDS
        await bench.assignment.close()

    asyncio.run(story())


def test_a_partition_without_a_position_that_was_folded_before_does_not_begin_again(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(find_traces=lambda partition: [f"t.batches has records of {partition}"])
        recovery.gate.release()
        bench.assignment.take_assignment([2])
        await bench.seen(lambda: bench.assignment.halted_partitions)
        fault = bench.assignment.halted_partitions[2]
        assert fault.reason == "position_lost"
        for part in ("partition 2", ".changelog has no position", "t.batches has"):
            assert part in fault.detail
        await bench.assignment.close()

    asyncio.run(story())


def test_rows_without_a_position_halt_the_partition(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(JOB.row_codec)
    rig = StoreRig(store)
    agent = EventFactory("s1")
    created = agent.event_bytes("session_created", snapshot=snapshot("first", "1"))
    rig.fold_records([LogRecord(0, START_MS, agent.key.encoded(), created)])

    async def story() -> None:
        bench = OwnerBench()
        recovery.gate.release()
        owner = PartitionOwner(bench.context, 0, lambda: store, None)
        with pytest.raises(Halted, match=r"position_lost: .* the changelog has rows"):
            await owner.task

    asyncio.run(story())


def test_a_position_needs_no_other_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = FakeRecovery()
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
    monkeypatch.setattr(partition_owner, "probe_log", lambda *_: LogProbe(0, 40))

    def recover_position(*arguments: Any) -> int:
        end = recovery.recover(*arguments)
        arguments[1].load_position(POSITION)
        return end

    monkeypatch.setattr(partition_owner, "recover", recover_position)

    async def story() -> None:
        bench = OwnerBench(find_traces=lambda _: pytest.fail("it was asked"))
        recovery.gate.release()
        bench.assignment.take_assignment([0])
        await bench.seen(lambda: bench.assignment.owners[0].is_open)
        await bench.assignment.close()

    asyncio.run(story())


class ScriptedTraces:
    """A consumer that reports a group's offset; the logs of topics, by their start and end."""

    def __init__(self, committed: int, logs: dict[str, tuple[int, int]], records: dict[str, int]) -> None:
        self._committed, self._logs, self._records = committed, logs, records
        self._topic = ""

    def __call__(self, config: dict[str, Any]) -> "ScriptedTraces":
        assert config["group.id"] == SETTINGS.group_id
        return self

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, self._committed) for place in places]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return self._logs[place.topic]

    def assign(self, places: list[TopicPartition]) -> None:
        self._topic = places[0].topic

    def poll(self, _: float) -> Message:
        if (offset := self._records.get(self._topic)) is not None:
            return message(0, offset)
        return message(0, self._logs[self._topic][1], error=KafkaError(KafkaError._PARTITION_EOF))

    def close(self) -> None:
        """There is no connection."""


@pytest.mark.parametrize(
    ("committed", "log", "first", "parts"),
    [
        (-1001, (0, 0), None, []),
        (0, (0, 0), None, []),  # the worker opened it, and folded nothing
        (0, (0, 9), None, []),  # a transaction was aborted
        (12, (0, 0), None, ["has committed its offset 12"]),
        (-1001, (0, 9), 3, ["t.batches has its records from offset 3 on"]),
        (-1001, (7, 7), None, ["t.batches has its records from offset 7 on"]),  # they are too old to be there
    ],
)
def test_a_partition_was_folded_before_if_its_group_or_a_committed_record_shows_it(
    committed: int, log: tuple[int, int], first: int | None, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {} if first is None else {"t.batches": first}
    monkeypatch.setattr(log_probe, "Consumer", ScriptedTraces(committed, {"t.batches": log}, records))
    traces = find_traces(SETTINGS, ["t.batches"], 0)
    assert [part in trace for part, trace in zip(parts, traces, strict=True)] == [True] * len(parts)


def test_a_group_whose_offset_may_not_be_read_says_nothing_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusingGroup(ScriptedTraces):
        def committed(self, places: list[TopicPartition], timeout: float) -> list[Any]:
            return [SimpleNamespace(offset=-1001, error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]

    monkeypatch.setattr(log_probe, "Consumer", RefusingGroup(0, {}, {}))
    with pytest.raises(Lost, match="whether it was folded before is not known"):
        find_traces(SETTINGS, [], 0)


def test_a_broker_that_does_not_answer_about_its_logs_loses_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    client, ends = LogClient(SETTINGS), dict[int, LogEnd]()
    monkeypatch.setattr(log_identity, "ask_topic_id", refuse)
    with pytest.raises(Lost, match=r"the ids of sessionary\.events"):
        client.ask_ids()
    monkeypatch.setattr(log_identity, "ask_topic_id", lambda _connection, topic, _timeout_s: f"id of {topic}")
    assert client.ask_ids() == ("id of sessionary.events", "id of sessionary.changelog")
    monkeypatch.setattr(LogEndClient, "ask_ends", lambda *_: ends)
    with pytest.raises(Lost, match=r"the end of sessionary\.changelog, partition 3"):
        client.ask_changelog_end(3)
    ends[3] = LogEnd(70, 1)
    assert client.ask_changelog_end(3) == 70
