"""Stores keep keys and rows shorter, and give back exactly what they were given."""

import uuid
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import agent_key, artifact_key, call_key, message_key, run_key, step_key
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    EndedToolCall,
    FinishedRun,
    MessageState,
    RunState,
    SessionState,
    StepState,
    TimedStep,
    Tombstone,
    ToolCallState,
)
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.model import POSITION_KEY
from sessionary.stream_processors.core.tombstones import chunk_key
from sessionary.stream_processors.store import shelves
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX
from sessionary.stream_processors.store.shelves import compact_key, compact_row, whole_key, whole_row
from tests.support.values import example, values

TENANT, SESSION_ID, RUN_ID = "acme", str(uuid.UUID(int=1, version=4)), str(uuid.UUID(int=2, version=4))
SESSION = f"{TENANT}:{SESSION_ID}".encode()
RUN = run_key(TENANT, SESSION_ID, RUN_ID)
NAMED_RUN = run_key(TENANT, SESSION_ID, "nightly:1")
CHILDREN = [
    *(make(parent, "a") for parent in (RUN, SESSION, NAMED_RUN) for make in (step_key, call_key, artifact_key)),
    message_key(SESSION, 7),
]
ROWS = [SESSION, RUN, NAMED_RUN, *CHILDREN]
KEYS = [*ROWS, *(key + CONTENT_SUFFIX for key in ROWS)]
OTHER_KEYS = [
    *(b"", b"k", b":", b"a:", b":b", POSITION_KEY, CONTENT_SUFFIX, chunk_key(1, 2), b"\x01", b"\x05\x01", b"\xff"),
    *(key.upper() for key in CHILDREN[:2]),
    *(SESSION + b"\0" + rest for rest in (b"C" + b"0" * 32, b"0" * 33, b"c" + b"0" * 31, b"c" + b"F" * 32, b"", b"c")),
    *(CHILDREN[0] + rest for rest in (b"0", b"\0", CONTENT_SUFFIX[:-1], CONTENT_SUFFIX + b"t")),
    *(compact_key(key) for key in KEYS),
    *(compact_key(compact_key(key)) for key in KEYS),
    *(compact_key(key)[:-1] for key in KEYS),
]
NAMES = len(TENANT) + len(SESSION_ID) + 2
# Kinds of rows, their keys, and how many bytes of them need not be kept.
CASES: Sequence[tuple[type[Any], bytes, int]] = [
    *((kind, SESSION, 0) for kind in (SessionState, Tombstone)),
    *((kind, RUN, 0) for kind in (RunState, FinishedRun)),
    *((kind, step_key(RUN, "a"), NAMES + 37 + 1) for kind in (StepState, TimedStep)),
    *((kind, step_key(NAMED_RUN, "a"), 0) for kind in (StepState, TimedStep)),
    *((kind, call_key(RUN, "a"), NAMES + 38 + 1) for kind in (ToolCallState, EndedToolCall)),
    *((kind, call_key(SESSION, "a"), NAMES + 1) for kind in (ToolCallState, EndedToolCall)),
    (ArtifactState, artifact_key(RUN, "a"), NAMES + 38 + 1),
    (ArtifactState, artifact_key(SESSION, "a"), NAMES + 1),
    (MessageState, message_key(SESSION, 7), NAMES + 1),
    (AgentState, agent_key(SESSION, "a"), NAMES + 1),
]
CLASSES = [kind for kind, _, _ in CASES]
DUE = bytes(8)


def row_of(kind: type[Any], key: bytes, **fields: Any) -> bytes:
    """Return a packed row as it stands under a key."""
    run_id = RUN_ID if key.startswith(RUN) else "nightly:1" if key.startswith(NAMED_RUN) else None
    names = {"tenant_id": TENANT, "session_id": SESSION_ID, "run_id": run_id}
    here = {name: value for name, value in names.items() if name in kind._fields}
    return DUE + encode_record(example(kind)._replace(**here, **fields))


def test_every_key_comes_back_and_none_is_taken_for_another() -> None:
    keys = [*KEYS, *OTHER_KEYS]
    assert [whole_key(compact_key(key)) for key in keys] == keys
    assert len({compact_key(key) for key in keys}) == len({*keys})


def test_keys_of_children_are_half_as_long() -> None:
    assert [len(step_key(RUN, "a")), len(compact_key(step_key(RUN, "a")))] == [113, 54]
    assert [len(message_key(SESSION, 7)), len(compact_key(message_key(SESSION, 7)))] == [75, 38]
    assert len(compact_key(step_key(RUN, "a") + CONTENT_SUFFIX)) == 54
    for key in (SESSION, RUN, NAMED_RUN, SESSION + CONTENT_SUFFIX, step_key(NAMED_RUN, "a")):
        assert compact_key(key) is key  # in memory, timers hold the same object


def kept_under(key: bytes, stored: bytes) -> bytes:
    """Return the compact form of a row; fail unless the row comes back from it."""
    kept = compact_row(compact_key(key), stored)
    assert whole_row(compact_key(key), kept) == stored
    return kept


@pytest.mark.parametrize(("kind", "key", "less"), CASES)
def test_a_childs_row_comes_back_without_what_its_key_says(kind: type[Any], key: bytes, less: int) -> None:
    stored = row_of(kind, key)
    kept = kept_under(key, stored)
    assert len(stored) - len(kept) == less
    assert (SESSION_ID.encode() in kept) == (less == 0)


def test_a_hash_is_bytes_and_a_time_that_never_comes_takes_none() -> None:
    key, digest = call_key(RUN, "a"), sha256(b"a")
    short = kept_under(key, row_of(EndedToolCall, key, idem_key="k", step_id=None))
    long = kept_under(key, row_of(EndedToolCall, key, idem_key=digest.hexdigest(), step_id=None))
    assert digest.digest() in long
    assert len(long) - len(short) == 1 + 32 - 2
    upper = kept_under(key, row_of(EndedToolCall, key, idem_key=digest.hexdigest().upper(), step_id=None))
    assert len(upper) - len(long) == 66 - 33
    far = kept_under(key, row_of(EndedToolCall, key, idem_key=digest.hexdigest(), step_id="s" * 256))
    assert len(far) - len(long) > 256 + 31
    never = NEVER_MS.to_bytes(8, "big") + row_of(EndedToolCall, key, idem_key="k", step_id=None)[8:]
    assert len(kept_under(key, never)) == len(short) - 8


@given(st.sampled_from(KEYS) | st.binary(min_size=1, max_size=60), st.binary(max_size=80), st.integers(0, 120))
def test_any_bytes_under_any_key_come_back(key: bytes, stored: bytes, start: int) -> None:
    assert whole_key(compact_key(key)) == key
    for row in (stored, DUE + b"\xc3\x01" + stored, row_of(EndedToolCall, key)[:start] + stored):
        kept_under(key, row)


@given(st.sampled_from(CLASSES).flatmap(values), st.sampled_from(ROWS), st.integers(0, 1 << 63 - 1))
def test_any_row_comes_back(row: Any, key: bytes, due_ms: int) -> None:
    for record in (row, row._replace(tenant_id=TENANT, session_id=SESSION_ID)):
        kept = kept_under(key, due_ms.to_bytes(8, "big") + encode_record(record))
        kept_under(key, kept)  # a compact row is a row like any other


def test_no_cache_keeps_a_key_that_is_too_long_for_a_child() -> None:
    kept = shelves._compact_child_key.cache_info().currsize
    key = b"acme:" + bytes(1_000_000)
    assert compact_key(key) == key
    assert shelves._compact_child_key.cache_info().currsize == kept
