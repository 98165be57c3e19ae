"""Events by hand whose state is no JSON object: refused at the call, and by the judge."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from sessionary.producers import AsyncSessionClient, Invalid
from sessionary.producers.ports import Json
from sessionary.producers.session.view import WITH_STATE, full_snapshot
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    PAYLOADS,
    Payload,
    SessionCreated,
    SessionPaused,
    SessionRolledBack,
    SessionTerminated,
    SnapshotCreated,
    StateUpdated,
    TxnCommitted,
)
from sessionary.schemas.limits import STATE_LEVELS_MAX
from sessionary.schemas.types import Limits

SNAPSHOT = full_snapshot("[1]", 1, None)
NO_STATES = ["[1]", "3", "null", '"x"', "{x}", "", '{"a":NaN}']
OF_NO_STATE: list[Payload] = [
    *(StateUpdated(1, 2, text) for text in NO_STATES),
    TxnCommitted("t", 1, 2, "[1]"),
    SessionRolledBack("snap_000000000001", 1, 2, state_json="[1]"),
    SessionCreated(Limits(), SNAPSHOT),
    SnapshotCreated(SNAPSHOT),
    SessionPaused("manual", snapshot=SNAPSHOT),
    SessionTerminated("closed", snapshot=SNAPSHOT),
]


@pytest.mark.parametrize("payload", OF_NO_STATE, ids=lambda each: type(each).__name__)
def test_an_event_whose_state_is_no_json_object_is_refused_at_the_call(payload: Payload) -> None:
    client, memory = memory_client()
    session = client.session(user_id="u", state={"n": 1})
    sent = len(memory.events())
    with pytest.raises(Invalid, match=r"is not a JSON object, such as \{\}"):
        session.emit(payload)

    async def emit() -> None:
        other = await AsyncSessionClient.wrap(client).attach(session.session_id)
        await other.emit(payload)

    with pytest.raises(Invalid, match=r"is not a JSON object, such as \{\}"):
        asyncio.run(emit())
    assert len(memory.events()) == sent
    assert session.update_state({"n": 2}) == 2


def test_each_event_that_carries_a_state_is_looked_at() -> None:
    carrying = {kind for kind in PAYLOADS.values() if {"state_json", "snapshot"} & set(kind._fields)}
    assert carrying == WITH_STATE == {type(payload) for payload in OF_NO_STATE}


@pytest.fixture
def deep_python() -> Iterator[None]:
    """Let Python go deeper than it does by itself, as some programs do."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(usual)


@pytest.mark.usefixtures("deep_python")
@pytest.mark.parametrize("innermost", [{}, []], ids=["object", "list"])
def test_a_state_that_is_nested_too_deep_is_refused_at_the_call(innermost: Json) -> None:
    client, memory = memory_client()
    session = client.session(user_id="u")
    deepest = innermost
    for _ in range(STATE_LEVELS_MAX - 1):
        deepest = {"a": deepest}
    assert isinstance(deepest, dict)
    refused = f"state is nested more than {STATE_LEVELS_MAX} levels deep"
    with pytest.raises(Invalid, match=refused):
        session.update_state({"a": deepest})
    with pytest.raises(Invalid, match=refused):
        client.session(user_id="u", state={"a": deepest})
    with pytest.raises(Invalid, match=refused), session.transaction() as pending:
        pending["a"] = deepest
    assert session.update_state(deepest) == 2
    assert list(memory.rejections()) == []


@pytest.mark.parametrize("text", NO_STATES)
@pytest.mark.parametrize("in_snapshot", [False, True])
def test_another_producers_state_that_is_no_json_object_harms_no_session(text: str, in_snapshot: bool) -> None:
    """Its bytes are rejected and kept; each client goes on."""
    client, memory = memory_client()
    session = client.session(user_id="u", state={"n": 1})
    head = session.core.view.snapshot_id
    payload = SnapshotCreated(full_snapshot(text, 1, head)) if in_snapshot else StateUpdated(1, 2, text)
    session.core.send_event(payload)  # as a producer that checks nothing
    (judged,) = memory.rejections()
    assert (judged.reason, judged.event.payload) == ("invalid_value", payload)
    other = client.attach(session.session_id)
    assert (other.state, other.version) == ({"n": 1}, 1)
    assert other.update_state({"n": 2}) == 2
    other.snapshot()
    assert len(memory.rejections()) == 1
