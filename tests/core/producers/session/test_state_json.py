"""A session's content as JSON, and its snapshots."""

import hashlib

from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    SessionCreated,
    SessionPaused,
    SessionResumed,
    SessionTerminated,
)


def test_snapshots_form_a_chain_and_hash_canonical_json() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", state={"b": 1, "a": "ö"}) as s:
        s.pause()
        s.resume()
    created, paused, ended = (
        event.payload.snapshot
        for event in memory.events()
        if isinstance(event.payload, SessionCreated | SessionPaused | SessionTerminated)
    )
    assert created is not None
    assert paused is not None
    assert ended is not None
    assert [created.parent_snapshot_id, paused.parent_snapshot_id, ended.parent_snapshot_id] == [
        None,
        created.snapshot_id,
        paused.snapshot_id,
    ]
    assert created.state_json == '{"a":"ö","b":1}'
    assert created.content_hash == hashlib.sha256(created.state_json.encode()).hexdigest()
    assert len(created.snapshot_id) == len("snap_") + 12
    resumed = next(event.payload for event in memory.events() if isinstance(event.payload, SessionResumed))
    assert resumed.snapshot_id == paused.snapshot_id
