"""How many bytes the state of a session and of a run takes: more fields must be worth it."""

import gc
import tracemalloc
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from sessionary.schemas.ids import SessionKey, new_session_id, run_key
from sessionary.schemas.records import SessionState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX, FamilyCodec
from sessionary.stream_processors.store.shelves import whole_key
from sessionary.stream_processors.store.stores import MemoryStore, RocksMemory, RocksStore, Store
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, ChangelogEntry, StoreRig
from tests.support.event_factory import EventFactory

IDLE_SESSION_BYTES_MAX = 1_100  # of memory, with all that finds the row
IDLE_ROW_BYTES_MAX = 390  # the id of a snapshot has its 17 characters
SESSIONS = 10_000
# Required are 64,000; these are what rows of today take, and 5 bytes more for each row.
ENDED_RUN_BYTES_MAX, RUN_AT_WORK_BYTES_MAX = 50_300, 61_100
STEPS, CALLS = 50, 5
RUN_ID = str(uuid.UUID(int=7, version=4))
OUTPUT = '"' + "x" * 2_000 + '"'  # large enough for a row of its own


class StateBytes(NamedTuple):
    """The bytes of keys and rows, without the contents that are rows of their own."""

    rows: int
    stored: int  # what the store keeps
    written: int  # of their changelog records, before batches are compressed


@pytest.fixture(params=["memory", "rocksdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreRig]:
    codec = JOB.row_codec
    store = MemoryStore(codec) if request.param == "memory" else RocksStore(tmp_path, codec, RocksMemory(1))
    yield StoreRig(store)
    store.close()


def say(rig: StoreRig, agent: EventFactory, event_type: str, *, step: int | None = None, **fields: Any) -> None:
    """Let an agent's event be applied; `step` says which step of the run it belongs to."""
    step_id = None if step is None else str(uuid.UUID(int=step, version=4))
    marks = {"run_id": None if event_type.startswith("session") else RUN_ID, "step_id": step_id}
    offset = rig.state.position.next_offset
    rig.fold_records(
        [LogRecord(offset, START_MS + offset, agent.key.encoded(), agent.event_bytes(event_type, marks, **fields))]
    )
    assert rig.state.position.next_offset == offset + 1


def start(rig: StoreRig, agent: EventFactory) -> None:
    say(rig, agent, "session_created")
    for phase in ("validating", "connecting"):
        say(rig, agent, "session_phase_changed", phase=phase)
    say(rig, agent, "session_started")


def call_fields(step: int, number: int) -> dict[str, Any]:
    key = sha256(f"{step}:{number}".encode()).hexdigest()
    return {"tool_call_id": str(uuid.uuid4()), "tool_name": "place_order", "idem_key": key, "try_number": 1}


def kept_items(store: Store) -> dict[bytes, bytes]:
    """Return what a store keeps, as it keeps it."""
    if isinstance(store, MemoryStore):
        return {**store._shelf.whole, **store._shelf.compact}
    assert isinstance(store, RocksStore)
    return dict(cast(Any, store._db.items(from_key=b"\x01")))


def measure(rig: StoreRig) -> StateBytes:
    kept = {key: row for key, row in kept_items(rig.store).items() if not whole_key(key).endswith(CONTENT_SUFFIX)}
    changelog = [
        entry
        for entry in rig.compacted_changelog()
        if entry.key != POSITION_KEY and not entry.key.endswith(CONTENT_SUFFIX)
    ]
    return StateBytes(
        len(kept),
        sum(len(key) + len(row) for key, row in kept.items()),
        sum(len(key) + len(value or b"") + len(due or b"") for key, value, due in changelog),
    )


@pytest.mark.parametrize(
    ("ends", "bytes_max"),
    [(True, ENDED_RUN_BYTES_MAX), (False, RUN_AT_WORK_BYTES_MAX)],
    ids=["calls that ended", "calls that run"],
)
def test_a_run_of_50_steps_with_5_calls_each(rig: StoreRig, ends: bool, bytes_max: int) -> None:
    agent = EventFactory()
    start(rig, agent)
    idle = measure(rig)
    say(rig, agent, "run_started", mode="detached", plan_json=None, input_json=None)
    say(rig, agent, "run_running", progress=None)
    for step in range(STEPS):
        named = {"name": f"step-{step}", "attempt": 1}
        say(rig, agent, "step_started", step=step, **named, input_json=None)
        for number in range(CALLS):
            call = call_fields(step, number)
            say(rig, agent, "tool_call_started", step=step, side_effect=True, limit_ms=20_000, **call)
            if ends:
                say(rig, agent, "tool_call_succeeded", step=step, result_json=OUTPUT, **call)
        if ends:
            say(rig, agent, "step_succeeded", step=step, output_json=OUTPUT, **named)
    found = measure(rig)
    assert found.rows - idle.rows == 1 + STEPS * (1 + CALLS)
    assert found.stored - idle.stored <= bytes_max
    assert found.stored < 0.56 * found.written  # names and keys are not repeated
    parent, rows, children = run_key(*agent.key, RUN_ID), dict(rig.state.rows), found.rows - 2
    rig.recover_from(rig.store, [])
    assert dict(rig.state.rows) == rows
    rig.recover_from(MemoryStore(JOB.row_codec), rig.compacted_changelog())
    assert dict(rig.state.rows) == rows
    assert len({*rig.state.children(parent)} & rows.keys()) == children


def test_an_idle_session(rig: StoreRig) -> None:
    agent = EventFactory()
    start(rig, agent)
    found = measure(rig)
    assert found.rows == 1
    assert found.stored == found.written <= IDLE_ROW_BYTES_MAX


def test_the_memory_of_idle_sessions() -> None:
    """What a partition has of a session that is silent: its row, and its place among the timers."""
    rig, agent, codec = StoreRig(), EventFactory(), FamilyCodec(SESSION_JUDGE.families)
    start(rig, agent)
    row = rig.state.rows[agent.key.encoded()]
    assert isinstance(row, SessionState)
    keys = [SessionKey(row.tenant_id, new_session_id()) for _ in range(SESSIONS)]
    packed = [codec.pack(row._replace(session_id=key.session_id), NEWEST_RULES.version) for key in keys]
    gc.collect()
    tracemalloc.start()
    try:
        read = [ChangelogEntry(key.encoded(), one.value, one.due) for key, one in zip(keys, packed, strict=True)]
        rig.recover_from(MemoryStore(codec), read)
        del read
        gc.collect()
        traced_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rig.state.live == SESSIONS
    assert IDLE_ROW_BYTES_MAX < traced_bytes / SESSIONS <= IDLE_SESSION_BYTES_MAX
