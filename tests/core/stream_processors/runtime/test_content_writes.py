"""A large content of a row is written if it changes, and comes back in every recovery."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import SessionContent, SessionState, Tombstone
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.session import row_size
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import DAY_MS
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX
from sessionary.stream_processors.store.stores import MemoryStore, RocksMemory, RocksStore, Store
from tests.core.fold_rig import activation_record
from tests.core.oracle_rig import START_MS
from tests.core.random_agents import RandomAgents
from tests.core.store_rig import JOB, StoreRig
from tests.support.event_factory import TICK, EventFactory, snapshot, snapshot_id

BEATS = 5_000
STATE_JSON = '{"a":"' + 200_000 * "a" + '"}'
BYTES_MAX = 8_000_000
SNAPSHOT = snapshot("first", STATE_JSON)
FORMER = 2 * bytes.fromhex(snapshot_id("first")[5:])  # the range of ids before the head


class Log:
    """Makes the records of a log."""

    def __init__(self) -> None:
        self.offset, self.at_ms = 0, START_MS

    def record(self, key: bytes | None, value: bytes) -> LogRecord:
        self.offset += 1
        return LogRecord(self.offset - 1, self.at_ms, key, value)

    def event(self, agent: EventFactory, event_type: str, **fields: Any) -> LogRecord:
        return self.record(agent.key.encoded(), agent.event_bytes(event_type, **fields))

    def start(self, agent: EventFactory, **created: Any) -> list[LogRecord]:
        return [
            self.event(agent, "session_created", **created),
            *(self.event(agent, "session_phase_changed", phase=phase) for phase in ("validating", "connecting")),
            self.event(agent, "session_started"),
        ]


OTHERS = NEWEST_RULES._replace(finished_run_days=NEWEST_RULES.finished_run_days + 1)


class Story:
    """One session with a large content, folded record by record."""

    def __init__(self, store: Store | None = None) -> None:
        self.log, self.rig, self.agent = Log(), StoreRig(store), EventFactory()
        self.key = self.agent.key.encoded()
        self.rig.fold_records(self.log.start(self.agent, snapshot=SNAPSHOT))

    def send(self, event_type: str, **fields: Any) -> Mapping[bytes, Any]:
        """Fold an event; return what the transaction wrote to the changelog, by key."""
        return self.append(self.log.event(self.agent, event_type, **fields))

    def append(self, record: LogRecord) -> Mapping[bytes, Any]:
        known = len(self.rig.changelog)
        self.rig.fold_records([record])
        return {
            key: None if value is None else Decoder().decode_record(value)
            for key, value, _ in self.rig.changelog[known:-1]
        }

    @property
    def row(self) -> SessionState:
        row = self.rig.state.rows[self.key]
        assert isinstance(row, SessionState)
        return row


def rig_with_sessions(count: int) -> tuple[StoreRig, list[EventFactory], Log]:
    """Return a fold with sessions in Active, each with a content of 200 kB, all of them equal."""
    story = Story()
    agents = [story.agent, *(EventFactory(f"s{n}") for n in range(1, count))]
    row, content = (story.rig.store.stored_row(key) for key in (story.key, story.key + CONTENT_SUFFIX))
    assert row is not None
    store = MemoryStore(JOB.row_codec)
    for agent in agents:
        agent.epoch = story.row.epoch
        of_agent = row.replace(story.agent.key.session_id.encode(), agent.key.session_id.encode())
        store.load_rows({agent.key.encoded(): of_agent, agent.key.encoded() + CONTENT_SUFFIX: content})
    rig = StoreRig(store)
    rig.state.load_position(story.rig.state.position)
    assert len(rig.store.rows) == count
    return rig, agents, story.log


@pytest.mark.parametrize("sessions", [60, BEATS])
def test_heartbeats_write_no_content(sessions: int) -> None:
    rig, agents, log = rig_with_sessions(sessions)
    for _ in range(math.ceil(BEATS / sessions)):
        log.at_ms += 1_000
        rig.fold_records([log.event(agent, "heartbeat") for agent in agents])
    rows = [rig.state.rows[agent.key.encoded()] for agent in agents]
    assert {row.last_event_at for row in rows} == {log.at_ms}
    assert {row.state_json for row in rows} == {STATE_JSON}
    assert not any(key.endswith(CONTENT_SUFFIX) for key, _, _ in rig.changelog)
    assert sum(not key.startswith(b"\0") for key, _, _ in rig.changelog) >= BEATS
    assert rig.written_bytes <= BYTES_MAX


def test_a_content_is_written_with_the_event_that_changes_it() -> None:
    story = Story()
    content = story.key + CONTENT_SUFFIX
    assert [entry.key for entry in story.rig.changelog] == [story.key, content, b"\0position"]
    assert list(story.send("session_activity")) == [story.key]
    updated = story.send("state_updated", base_version=1, new_version=2, state_json=STATE_JSON + " ")
    assert updated[content] == SessionContent(STATE_JSON + " ", SNAPSHOT)
    held = snapshot("held", STATE_JSON, "first")
    taken = story.send("snapshot_created", snapshot=held)
    assert taken[content] == SessionContent(STATE_JSON + " ", held, FORMER)
    last = snapshot("last", STATE_JSON, "held")
    assert story.send("session_paused", snapshot=last)[content].snapshot == last
    assert story.row.state == "Paused"
    (rest,) = story.send("session_resumed", snapshot_id=snapshot_id("last")).values()
    assert isinstance(rest, SessionState)
    assert (rest.content_apart, rest.state_json, rest.snapshot.state_json) == (True, "", "")
    assert len(encode_record(rest)) < 1_000
    assert (story.row.content_apart, story.row.snapshot, story.row.state_json) == (False, last, STATE_JSON + " ")


def test_a_content_that_became_small_is_one_record_with_its_row() -> None:
    story = Story()
    content = story.key + CONTENT_SUFFIX
    small_snapshot = snapshot("small", parent="first")
    taken = story.send("snapshot_created", snapshot=small_snapshot)
    assert taken[content] == SessionContent(STATE_JSON, small_snapshot, FORMER)
    small = story.send("state_updated", base_version=1, new_version=2, state_json="{}")
    assert (small[story.key], small[content]) == (story.row, None)
    assert list(story.send("heartbeat")) == [story.key]
    large = story.send("state_updated", base_version=2, new_version=3, state_json=STATE_JSON)
    assert large[content] == SessionContent(STATE_JSON, small_snapshot, FORMER)


def test_a_session_that_ends_takes_its_content_along() -> None:
    story = Story()
    assert list(story.send("session_terminated")) == [story.key]
    story.log.at_ms += 86_400_000
    for _ in range(100):  # an outage is nothing that a deadline fires in
        story.log.at_ms += 1_000
        ended = story.append(story.log.record(None, TICK))
        if ended:
            break
    assert isinstance(ended[story.key], Tombstone)
    assert ended[story.key + CONTENT_SUFFIX] is None
    story.log.at_ms += TOMBSTONE_MS + DAY_MS  # to the end of its last day
    assert story.append(story.log.record(None, TICK)) == {story.key: None}
    assert story.rig.store.row_sum == (0, 0)


def test_a_record_under_the_key_of_a_content_is_rejected() -> None:
    story = Story()
    for key in (story.key + CONTENT_SUFFIX, CONTENT_SUFFIX):
        value = story.agent.event_bytes("heartbeat")
        assert story.append(story.log.record(key, value)) == {}
        assert story.rig.state.rows.get(key) is None
    assert list(story.rig.store.rows) == [story.key]


def new_memory_store(_folder: Path) -> Store:
    return MemoryStore(JOB.row_codec)


def new_rocks_store(folder: Path) -> Store:
    return RocksStore(folder, JOB.row_codec, RocksMemory(1))


def row_bytes(rows: Mapping[bytes, Any]) -> dict[bytes, bytes]:
    return {key: encode_record(row) for key, row in rows.items()}


@pytest.mark.parametrize("new_store", [new_memory_store, new_rocks_store])
@pytest.mark.parametrize("characters_max", [0, 72])  # a new session has 73
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.interpreted
def test_rows_after_a_recovery_are_those_in_memory(
    seed: int, characters_max: int, new_store: Callable[[Path], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random stories go through an activation; contents grow and shrink past the bound."""
    rng = Random(f"contents {seed}")
    agents = RandomAgents(Random(f"agents {seed}"))
    for _ in range(300):
        agents.act_once()
    log = [record._replace(offset=n) for n, record in enumerate(agents.rig.log)]
    monkeypatch.setattr(row_size, "CONTENT_CHARACTERS_MAX", characters_max)
    rig = StoreRig(new_store(tmp_path / "first"))
    whole = JOB.new_state(0)  # never recovers anything
    whole.finish_loading()
    activated_at = rng.randrange(len(log) // 2)
    folders, apart = 0, set[int]()
    while log:
        if rig.state.position.next_offset >= activated_at and rig.state.position.rules == NEWEST_RULES:
            rig.announce(OTHERS)
            batch = whole.begin()
            batch.announce_rules(OTHERS, "ops")
            whole.merge(batch)
            begins = activation_record(log[0].offset, log[0].timestamp_ms, OTHERS)
            log = [begins, *(record._replace(offset=record.offset + 1) for record in log)]
        cut = rng.choice((1, 3, 20))
        rig.fold_records(log[:cut])
        waiting = log[:cut]
        while waiting:
            batch = whole.begin()
            while waiting and batch.apply(waiting[0]):
                del waiting[0]
            whole.merge(batch)
        del log[:cut]
        fate = rng.random()
        if fate < 0.1:
            rig.recover_from(rig.store, [])
        elif fate < 0.3:
            folders += 1
            rig.store.close()
            changelog = rig.changelog if fate < 0.2 else rig.compacted_changelog()
            rig.recover_from(new_store(tmp_path / f"{folders}"), changelog)
        assert row_bytes(rig.state.rows) == row_bytes(whole.rows)
        assert rig.state.next_deadline_ms == whole.next_deadline_ms
        apart.add(rig.store.count_again().rows - len(rig.state.rows))
    assert rig.state.position.rules == OTHERS
    assert max(apart) > 0
    rig.store.close()
