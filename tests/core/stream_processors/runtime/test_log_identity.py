"""A topic that was deleted and made again is another one, whatever its name and offsets."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from sessionary.schemas.codec import encode_position
from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime import changelog, partition_owner
from sessionary.stream_processors.runtime.changelog import RecoveryProgress, recover, seal_with
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition
from tests.core.store_rig import JOB, SETTINGS, ChangelogEntry
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.core.stream_processors.runtime.scripted_changelog import PARTITION, ScriptedChangelog
from tests.support.event_factory import TICK

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
