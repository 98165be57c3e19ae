"""A topic that was deleted and made again is another one, whatever its name and offsets."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import encode_position, encode_record
from sessionary.schemas.kafka.log_progress import LogEnd, LogEndClient
from sessionary.schemas.records import BatchAcknowledged, BatchRecord, Position
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import changelog, log_identity, log_probe, partition_owner
from sessionary.stream_processors.runtime.changelog import RecoveryProgress, recover, seal_with
from sessionary.stream_processors.runtime.log_identity import LogClient, TopicIds
from sessionary.stream_processors.runtime.log_probe import LogProbe, find_traces
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.worker_context import RECOVERIES_MAX
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, SETTINGS, ChangelogEntry, StoreRig
from tests.core.stream_processors.runtime.messages import end_of, message
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
    assert [f"rebuild {PARTITION}{mode}" in caught.value.detail for mode in ("", " --accept-topics", " --accept-rows")]


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
        bench = OwnerBench(find_traces=lambda partition, _: [f"t.batches has records of {partition}"])
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
    created = agent.event_bytes("session_created", snapshot=snapshot("first", '{"n":1}'))
    rig.fold_records([LogRecord(0, START_MS, agent.key.encoded(), created)])

    async def story() -> None:
        bench = OwnerBench()
        recovery.gate.release()
        owner = PartitionOwner(bench.context, 0, lambda: store, None)
        with pytest.raises(Halted, match=r"position_lost: .* the changelog has rows"):
            await owner.task

    asyncio.run(story())


def open_at_position(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch, changelog_end: int, traces: list[str]
) -> tuple[list[str], list[Position]]:
    """Return the faults of opening a partition whose changelog ends at 0, and of what was asked."""
    asked: list[Position] = []
    monkeypatch.setattr(partition_owner, "probe_log", lambda *_: LogProbe(0, 40))

    def recover_position(*arguments: Any) -> int:
        recovery.gate.release()
        end = recovery.recover(*arguments)
        arguments[1].load_position(Position(40, 5_000, 0, 7, 0))
        return end

    def find_some(_: int, position: Position) -> list[str]:
        asked.append(position)
        return traces

    monkeypatch.setattr(partition_owner, "recover", recover_position)

    async def story() -> list[str]:
        bench = OwnerBench(lambda: IDS, find_some, lambda _: changelog_end)
        owner = PartitionOwner(bench.context, 0, lambda: MemoryStore(JOB.row_codec), None)
        await bench.seen(lambda: owner.is_open or owner.task.done())
        owner.request_end()
        await asyncio.wait([owner.task])
        return [str(owner.task.exception())] if owner.task.exception() else []

    return asyncio.run(story()), asked


def test_a_position_that_a_later_batch_follows_is_not_the_last_one(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fault,), asked = open_at_position(recovery, monkeypatch, 0, ["t.batches has its batch 8"])
    assert asked == [POSITION], "with the ids of the topics"
    for part in ("position_lost: partition 0", "ends with batch 7, at offset 40", "t.batches has its batch 8"):
        assert part in fault
    assert fault.index("Bring the replica back") < fault.index("retry 0") < fault.index("partition rebuild 0")


def test_a_later_batch_of_a_later_owner_is_no_loss(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,), _ = open_at_position(recovery, monkeypatch, 3, ["t.batches has its batch 8"])
    assert "its changelog was written to while it was read" in fault


def test_a_position_without_a_later_batch_is_the_last_one(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_at_position(recovery, monkeypatch, 3, [])[0] == []


class ScriptedTraces:
    """A consumer that reports a group's offset; the logs of topics, and their committed records."""

    def __init__(
        self,
        committed: TopicPartition,
        logs: dict[str, tuple[int, int]],
        records: dict[str, list[Message]],
    ) -> None:
        self._committed, self._logs, self._records = committed, logs, records
        self._topic, self._left = "", list[Message]()

    def __call__(self, config: dict[str, Any]) -> "ScriptedTraces":
        assert config["group.id"] == SETTINGS.group_id
        return self

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [self._committed]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return self._logs[place.topic]

    def assign(self, places: list[TopicPartition]) -> None:
        self._topic = places[0].topic
        self._left = [one for one in self._records.get(self._topic, []) if (one.offset() or 0) >= places[0].offset]

    def poll(self, _: float) -> Message:
        return self._left.pop(0) if self._left else end_of(0, self._logs[self._topic][1])

    def close(self) -> None:
        """There is no connection."""


NO_POSITION = IDS.complete(Position(0, 0, 0, 0, 0))
BATCHES, AUDIT = SETTINGS.topics.batches, SETTINGS.topics.audit


def batch(offset: int, number: int) -> Message:
    record = BatchRecord(0, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "w", 1)
    return message(0, offset, encode_record(record))


def acknowledgement(offset: int, number: int = 7) -> Message:
    return message(0, offset, encode_record(BatchAcknowledged(0, number, 0, "w")))


def damaged(offset: int) -> Message:
    return message(0, offset, error=KafkaError(KafkaError._BAD_MSG))


def traces_of(
    monkeypatch: pytest.MonkeyPatch,
    offset: int = -1001,
    metadata: str = "",
    events_end: int = 90,
    batches: tuple[int, int] = (0, 0),
    audit: tuple[int, int] = (0, 0),
    records: Sequence[Message] = (),
    position: Position = NO_POSITION,
) -> list[str]:
    committed = TopicPartition(SETTINGS.topics.events, 0, offset, metadata)
    logs = {SETTINGS.topics.events: (0, events_end), BATCHES: batches, AUDIT: audit}
    monkeypatch.setattr(log_probe, "Consumer", ScriptedTraces(committed, logs, {BATCHES: list(records)}))
    return find_traces(SETTINGS, [BATCHES, AUDIT], 0, position)


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        ({}, []),
        ({"offset": 0}, []),  # the worker opened it, and folded nothing
        ({"batches": (0, 9), "audit": (0, 9)}, []),  # a transaction was aborted
        ({"batches": (7, 9)}, []),  # another one too, and is too old to be there
        ({"batches": (7, 7)}, []),
        ({"batches": (0, 9), "records": [acknowledgement(2)]}, []),  # of a former topic, sent late
        ({"offset": 12, "metadata": "events-0"}, []),  # committed late
        ({"offset": 12, "events_end": 11}, []),
        ({"offset": 12, "metadata": "events-1"}, ["has committed its offset 12"]),
        ({"offset": 12}, ["has committed its offset 12"]),
        ({"batches": (0, 9), "records": [batch(3, 1)]}, ["batches has its records from offset 3 on"]),
        ({"batches": (0, 9), "records": [acknowledgement(2), batch(4, 1)]}, ["batches has its records from offset 4"]),
        ({"batches": (0, 9), "records": [damaged(2)]}, ["batches has its records from offset 2"]),
        ({"batches": (7, 7), "audit": (3, 3)}, ["batches begins at offset 7", "audit begins at offset 3"]),
        ({"batches": (7, 7), "offset": 12}, ["has committed its offset 12", "batches begins at offset 7"]),
    ],
)
def test_a_partition_was_folded_before_if_its_group_or_a_committed_record_shows_it(
    found: dict[str, Any], parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = traces_of(monkeypatch, **found)
    assert [part in trace for part, trace in zip(parts, traces, strict=True)] == [True] * len(parts)


def test_a_group_whose_offset_is_not_known_shows_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = SimpleNamespace(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), offset=-1001, metadata=None)
    monkeypatch.setattr(log_probe, "Consumer", ScriptedTraces(committed, {}, {}))  # type: ignore[arg-type]
    with pytest.raises(Lost, match="how far it was folded is not known"):
        find_traces(SETTINGS, [], 0, Position(0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("batches", "records", "later"),
    [
        ((0, 0), [], None),
        ((0, 9), [batch(0, 6), batch(3, 7), acknowledgement(5, 8)], None),
        ((0, 9), [batch(3, 7), batch(5, 8), acknowledgement(7, 8)], 8),
        ((0, 900), [batch(0, 70), batch(850, 7)], None),  # what is long past is not read
        ((0, 900), [batch(850, 8), message(0, 851, b"of a later release")], 8),
        ((0, 9), [batch(3, 8), damaged(5), batch(6, 9)], 8),
    ],
)
def test_a_later_batch_shows_that_a_position_is_not_the_last_one(
    batches: tuple[int, int], records: list[Message], later: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = traces_of(monkeypatch, 90, "events-1", batches=batches, records=records, position=POSITION)
    assert traces == ([] if later is None else [f"{BATCHES} has its batch {later}"])


def test_a_job_that_leaves_no_batches_has_none_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = TopicPartition(SETTINGS.topics.events, 0, 90)
    monkeypatch.setattr(log_probe, "Consumer", ScriptedTraces(committed, {}, {}))
    assert find_traces(SETTINGS, [], 0, POSITION) == []


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


def test_a_topic_that_is_made_again_between_two_questions_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["events 1", "changelog 1", "events 2", "changelog 1"])
    monkeypatch.setattr(log_identity, "ask_topic_id", lambda _connection, _topic, _timeout_s: next(answers))
    client = LogClient(SETTINGS)
    assert client.ask_ids() == ("events 1", "changelog 1")
    assert client.ask_ids() == ("events 2", "changelog 1"), "although no time has passed"


def test_what_shows_a_former_fold_is_asked_in_a_recovery_turn(recovery: FakeRecovery) -> None:
    held: list[int] = []

    async def story() -> None:
        def find_none(_partition: int, _position: Position) -> list[str]:
            held.append(bench.context.recovery_turns._value)
            return []

        bench = OwnerBench(find_traces=find_none)
        recovery.gate.release(3)
        bench.assignment.take_assignment(range(3))
        await bench.seen(lambda: all(owner.is_open for owner in bench.assignment.owners.values()))
        assert len(held) == 3
        assert max(held) < RECOVERIES_MAX
        await bench.assignment.close()

    asyncio.run(story())
