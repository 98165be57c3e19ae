"""Snapshots around tool calls: one chain, whatever happens to the calls and to their session."""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    EventRejected,
    Invalid,
    Limits,
    ProducerSettings,
    Session,
    tool,
)
from sessionary.producers.artifacts import ArtifactLibrary
from sessionary.producers.session.snapshots import SnapshotCache
from sessionary.producers.session.view import new_snapshot_ids
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import SessionActivity, SnapshotCreated, ToolCallStarted, ToolCallSucceeded
from sessionary.schemas.ids import content_hash
from sessionary.schemas.limits import ITEMS_MAX
from sessionary.schemas.snapshots import read_chain
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import AccessedResource, Snapshot, SnapshotMessage, ToolExecution

ID = re.compile("snap_[0-9a-f]{12}")
MESSAGE: Any = SnapshotMessage  # as programs without types call them
RESOURCE: Any = AccessedResource
SEARCH = ToolExecution("call-1", "search_papers", '{"query":"lag"}')
CALL: Any = SEARCH


@tool(effect="read")
def search_papers(query: str, max_results: int = 10) -> list[str]:
    if query == "broken":
        raise ValueError("no such index")
    return [f"{query} {number}" for number in range(max_results)]


def stored(memory: InMemoryTransport) -> list[Snapshot]:
    """Return the snapshots of all accepted events, as the events have them."""
    refused = {judged.event.envelope.event_id for judged in memory.rejections() if judged.event}
    found = [
        getattr(event.payload, "snapshot", None) for event in memory.events() if event.envelope.event_id not in refused
    ]
    return [each for each in found if each is not None]


def chain_of(memory: InMemoryTransport) -> Sequence[Snapshot]:
    """Return the whole snapshots from the first to the last, by their parents."""
    snapshots = stored(memory)
    return read_chain({each.snapshot_id: each for each in snapshots}, snapshots[-1].snapshot_id)


def sides(chain: Sequence[Snapshot]) -> list[str | None]:
    return [None if each.tool is None else each.tool.status or "before" for each in chain]


def test_n_calls_leave_2n_snapshots_that_alternate_in_one_chain() -> None:
    """R-003-24, R-003-25, R-003-26, C-14; each has a parent, also between calls."""
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=True) as session:
        for query in ("a", "b", "c"):
            search_papers(query)
        with pytest.raises(ValueError, match="no such index"):
            search_papers("broken")
    chain = chain_of(memory)
    n = 4
    assert len(chain) == 2 * n + 2
    assert sides(chain) == [None, *["before", "succeeded"] * 3, "before", "failed", None]
    assert [each.tool.tool_call_id for each in chain[1:8:2] if each.tool] == [
        each.tool.tool_call_id for each in chain[2:9:2] if each.tool
    ]
    assert (chain[0].parent_snapshot_id, chain[0].tool, chain[0].resources) == (None, None, ())
    assert all(ID.fullmatch(each.snapshot_id) for each in chain)
    assert memory.rejections() == []
    assert json.loads(chain[2].tool.data_json or "") == [f"a {number}" for number in range(10)]  # type: ignore[union-attr]
    assert json.loads(chain[8].tool.data_json or "")["code"] == "ValueError"  # type: ignore[union-attr]
    assert chain[2].tool.parameters_json == '{"max_results":10,"query":"a"}'  # type: ignore[union-attr]
    assert {each.conversation_id for each in chain} == {session.session_id}
    assert all(each.metadata == {"server_version": "1.0.0", "protocol_version": "2024-11-05"} for each in chain)


def test_without_the_parameter_no_snapshot_is_taken() -> None:
    """R-003-100, C-27: plain operations leave no snapshot."""
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        search_papers("a")
    assert not [event for event in memory.events() if isinstance(event.payload, SnapshotCreated)]
    assert [each.metadata for each in chain_of(memory)] == [{}, {}]


def test_a_run_or_a_tool_turns_them_on_and_off() -> None:
    def same(value: int) -> int:
        return value

    traced = tool(name="traced", effect="read", snapshots=True)(same)
    plain = tool(name="plain", effect="read", snapshots=False)(same)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        traced(1)
        search_papers("outside")
        with session.run("report", snapshots=True):
            search_papers("inside")
            plain(2)
    names = [each.tool.tool_name for each in chain_of(memory) if each.tool is not None]
    assert names == ["traced", "traced", "search_papers", "search_papers"]
    assert memory.rejections() == []


def test_the_id_of_the_snapshot_after_a_call_is_at_hand() -> None:
    """R-003-37: a tracked tool; a replay of the id that it leaves reproduces it."""
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=True) as session:
        results = search_papers("lag", 2)
        after = session.snapshot_id
        row = memory.find_row(session)
        assert results == ["lag 0", "lag 1"]
        assert row.snapshot.snapshot_id == after
        assert row.snapshot.tool is not None
        assert row.snapshot.tool.data_json == '["lag 0","lag 1"]'
    with client.replay(session, at=after) as replay, replay.session() as again:
        assert search_papers("lag", 2) == results
        again.update_state({"n": 1})
    assert (replay.is_reached, replay.difference, replay.counts.served) == (True, None, 1)


def test_each_event_of_a_tool_has_its_step_and_its_snapshots() -> None:
    """R-003-23: by the call's id, and without a word of the caller."""
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=True) as session:
        search_papers("a")
        with session.run("report") as run:
            run.step("look", search_papers, "b")
    calls: dict[str, list[tuple[str, bool]]] = {}
    taken: dict[str, list[str | None]] = {}
    for event in memory.events():
        payload, has_step = event.payload, event.envelope.step_id is not None
        if isinstance(payload, SnapshotCreated) and payload.snapshot.tool is not None:
            taken.setdefault(payload.snapshot.tool.tool_call_id, []).append(payload.snapshot.tool.status)
        elif isinstance(payload, ToolCallStarted | ToolCallSucceeded):
            calls.setdefault(payload.tool_call_id, []).append((event.envelope.event_type, has_step))
    kinds = ("tool_call_started", "tool_call_succeeded")
    assert list(calls.values()) == [[(kind, has_step) for kind in kinds] for has_step in (False, True)]
    assert taken == {call_id: [None, "succeeded"] for call_id in calls}


def test_a_time_out_in_a_call_and_a_resume_leave_one_chain() -> None:
    """R-003-27: the chain goes on, and the ids before are unchanged."""
    client, memory = memory_client()
    state: dict[str, Session] = {}

    @tool(effect="read")
    def slow(value: int) -> int:
        if value == 2:
            memory.silence(state["session"])
            memory.advance(100)
            memory.silence(state["session"], silent=False)
        return value

    with client, client.session(user_id="u", snapshots=True) as session:
        state["session"] = session
        slow(1)
        before = [each.snapshot_id for each in chain_of(memory)]
        slow(2)  # ends in Timeout: what is sent then is rejected
        assert memory.find_row(session).state == "Timeout"
        session.resume()
        slow(3)
    chain = chain_of(memory)
    assert [each.snapshot_id for each in chain][: len(before)] == before
    assert sides(chain) == [None, *["before", "succeeded"] * 3, None]
    assert [each.tool.parameters_json for each in chain if each.tool][::2] == [f'{{"value":{n}}}' for n in (1, 2, 3)]


def test_a_resumed_process_goes_on_with_the_chain() -> None:
    client, memory = memory_client()
    first = client.session(user_id="u", limits=Limits(grace_ms=3_600_000), snapshots=True)
    first.message("user", "hello", tokens=3)
    call = ToolExecution("call-1", "fetch", "{}")
    first.snapshot(tool_call=call)
    second = client.attach(first.session_id, take_over=True, snapshots=True)
    with second:
        search_papers("a")
    chain = chain_of(memory)
    assert sides(chain) == [None, "before", "before", "succeeded", None]
    assert [each.total_tokens for each in chain] == [None, 3, 3, 3, 3]
    assert chain[-1].messages == (SnapshotMessage("user", content_hash("hello"), 3),)


@pytest.mark.parametrize("context", [None, "system: be brief\nuser: hello\n"])
@pytest.mark.parametrize("has_call", [False, True])
def test_a_snapshot_by_hand_has_what_it_is_given(context: str | None, has_call: bool) -> None:
    """R-003-36: the four combinations of context and call."""
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        given: dict[str, Any] = {"tool_call": SEARCH, "result": ["a"]} if has_call else {}
        snapshot_id = session.snapshot(context=context, **given)
        row = memory.find_row(session)
    made = row.snapshot
    assert (made.snapshot_id, made.context) == (snapshot_id, context)
    done = SEARCH._replace(status="succeeded", data_json='["a"]')
    assert made.tool == (done if has_call else None)


def test_a_result_without_a_call_is_refused() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(Invalid, match="pass tool_call too"):
            session.snapshot(result=1)
        assert len(stored(memory)) == 1


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"messages": "hi"}, r"messages\[0\] is 'h': give a list of SnapshotMessage"),
        ({"messages": 5}, "messages is 5: give a list of SnapshotMessage"),
        ({"resources": ["file:///a"]}, r"resources\[0\] is 'file:///a': give a list of AccessedResource"),
        (
            {"messages": [MESSAGE("user", "a" * 64), MESSAGE(1, "b" * 64)]},
            r"messages\[1\].role is 1: give a text$",
        ),
        (
            {"messages": [MESSAGE("user", "a" * 64, "3")]},
            r"messages\[0\].tokens is '3': give a whole number or None$",
        ),
        (
            {"messages": [MESSAGE("user", "a" * 64, True)]},
            r"messages\[0\].tokens is True: give a whole number or None$",
        ),
        (
            {"resources": [RESOURCE("file:///a", 1.5, "read")]},
            r"resources\[0\].accessed_at is 1.5: give a whole number$",
        ),
        ({"tool_call": "search"}, "tool_call is 'search': give a ToolExecution"),
        (
            {"tool_call": CALL._replace(parameters_json={"query": "lag"})},
            "tool_call.parameters_json is {'query': 'lag'}: give a text$",
        ),
        ({"context": ["hello"]}, r"context is \['hello'\]: give a text or None$"),
        ({"total_tokens": 1.5}, "total_tokens is 1.5: give a whole number or None$"),
        ({"messages": [], "context": random.Random(1).randbytes(2_000_000).hex()}, "bytes"),
    ],
)
def test_a_snapshot_that_is_refused_leaves_the_chain_as_it_was(given: dict[str, Any], what: str) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=True) as session:
        session.message("user", "hello", tokens=3)
        session.access("file:///b")
        with pytest.raises(Invalid, match=what):
            session.snapshot(**given)
        session.snapshot()
        made = memory.find_row(session).snapshot
        assert [message.role for message in made.messages] == ["user"]
        assert [resource.uri for resource in made.resources] == ["file:///b"]
    assert memory.find_row(session).state == "Terminated"


def test_turn_messages_and_resources_are_in_it() -> None:
    client, memory = memory_client()
    read = AccessedResource("file:///a", 1_700_000_000_000_000, "read")
    with client, client.session(user_id="u", snapshots=True) as session, session.turn() as turn:
        session.message("user", "hello", tokens=3)
        session.message("assistant", "hi", tokens=2)
        session.snapshot(resources=[read])
        made = memory.find_row(session).snapshot
        assert made.turn == turn.number == 1
        assert made.total_tokens == 5
        assert made.messages == (
            SnapshotMessage("user", content_hash("hello"), 3),
            SnapshotMessage("assistant", content_hash("hi"), 2),
        )
        assert made.resources == (read,)


@pytest.mark.parametrize("tokens", [2.5, -1, "5", True, [1], 10**400, 10**15 + 1])
@pytest.mark.parametrize("snapshots", [True, False])
def test_a_message_with_tokens_that_are_no_count_is_refused(tokens: Any, snapshots: bool) -> None:
    """Else no later snapshot could be taken, and the session could not end."""
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=snapshots) as session:
        search_papers("lag", max_results=1)
        with pytest.raises(Invalid, match="tokens is"):
            session.message("user", "hello", tokens=tokens)
        search_papers("delay", max_results=1)
    assert memory.find_row(session).state == "Terminated"
    assert memory.find_row(session).snapshot.total_tokens is None
    assert "message_appended" not in {event.envelope.event_type for event in memory.events()}


def test_all_messages_that_are_given_are_in_it_or_it_is_refused() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        messages = [SnapshotMessage("user", f"{number}", 1) for number in range(ITEMS_MAX)]
        session.snapshot(messages=messages)
        made = memory.find_row(session).snapshot
        assert (made.messages, made.total_tokens) == (tuple(messages), ITEMS_MAX)
        with pytest.raises(Invalid, match=f"{ITEMS_MAX + 1}"):
            session.snapshot(messages=[*messages, messages[0]])
        assert memory.find_row(session).snapshot == made


def test_an_access_is_in_the_next_snapshot_and_in_no_other(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u", snapshots=True) as session:
        session.access("file:///a")
        search_papers("x")
        assert client.artifacts is not None
        artifact = client.artifacts.save(session, "report", "markdown")
        client.artifacts.load(artifact.reference)
        session.snapshot()
    accessed = [
        AccessedResource(event.payload.uri, event.envelope.occurred_at, event.payload.kind)
        for event in memory.events()
        if isinstance(event.payload, SessionActivity) and event.payload.uri
    ]
    assert [each.operation for each in accessed] == ["read", "read"]
    chain = chain_of(memory)
    assert sides(chain) == [None, "before", "succeeded", None, None]
    assert [each.resources for each in chain] == [(), (accessed[0],), (), (accessed[1],), ()]


def test_an_access_before_the_first_snapshot_needs_no_chain() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        session.access("file:///a", "write")
        assert session.core.view.chain is None
    assert memory.rejections() == []


def test_a_lone_surrogate_stops_no_snapshot_and_no_call() -> None:
    """File names that are no UTF-8 have such surrogates; the event and the snapshot have U+FFFD."""
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=True) as session:
        session.access("file:///\udcff")
        assert search_papers("lag", max_results=1) == ["lag 0"]
        session.message("user\udcff", "hello \udcff")
        session.snapshot()
        session.snapshot(
            context="seen \udcff",
            messages=[SnapshotMessage("tool\udcff", "h", 1)],
            tool_call=SEARCH._replace(tool_name="search\udcff"),
            resources=[AccessedResource("file:///\udcfe", 1, "read")],
        )
    assert memory.rejections() == []
    chain = chain_of(memory)
    assert sides(chain) == [None, "before", "succeeded", None, "before", None]
    assert [resource.uri for resource in (*chain[1].resources, *chain[4].resources)] == ["file:///\ufffd"] * 2
    assert chain[3].messages == (SnapshotMessage("user\ufffd", content_hash("hello \ufffd"), None),)
    made = chain[4]
    assert (made.context, made.messages) == ("seen \ufffd", (SnapshotMessage("tool\ufffd", "h", 1),))
    assert made.tool is not None
    assert made.tool.tool_name == "search\ufffd"


def test_the_asyncio_client_takes_the_same_snapshots() -> None:
    @tool(effect="read")
    async def search(query: str) -> str:
        return query

    async def work() -> InMemoryTransport:
        memory = InMemoryTransport()
        client = AsyncSessionClient(tenant_id="t", service_id="s", agent_id="a", ports=memory_ports(memory))
        async with client, client.session(user_id="u", snapshots=True) as session:
            await search("a")
            await session.snapshot(context="all")
        return memory

    assert sides(chain_of(asyncio.run(work()))) == [None, "before", "succeeded", None, None]


def test_ids_are_new_a_million_times() -> None:
    """R-003-32, C-18."""
    ids = list(islice(new_snapshot_ids(), 1_000_000))
    assert len(set(ids)) == 1_000_000
    assert all(map(ID.fullmatch, ids))


def test_an_id_that_the_session_has_is_refused_and_the_snapshot_taken_again() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", snapshots=True) as session:
        first = session.snapshot()
        search_papers("a")
        session.core.view.snapshot_ids = iter([first, *islice(new_snapshot_ids(), 20)])
        search_papers("b")
        session.sync()
        search_papers("c")
    assert "snapshot_exists" in {judged.reason for judged in memory.rejections()}
    assert sides(chain_of(memory)) == [None, None, *["before", "succeeded"] * 3, None]


def test_two_processes_of_a_session_adopt_each_others_head_after_a_refusal() -> None:
    """The refusal is told, and what was refused is taken again: no call of `sync` is needed."""
    client, memory = memory_client()
    told: list[EventRejected] = []
    other_client, _ = memory_client(agent_id="two", memory=memory, on_rejected=told.append)
    with client, other_client, client.session(user_id="u") as session:
        session.snapshot()
        other = other_client.attach(session.session_id)
        theirs = other.snapshot()
        ours = session.snapshot()  # follows no head
        memory.advance(30)  # a poll
        assert memory.find_row(session).snapshot.snapshot_id == theirs
        last = session.snapshot()
        assert memory.find_row(session).snapshot.snapshot_id == last
        lost = [other.snapshot(), other.snapshot()]
        memory.advance(30)
        assert [(each.event_type, each.reason) for each in told] == [("snapshot_created", "broken_chain")] * 2
        assert memory.find_row(session).snapshot.snapshot_id == last
        theirs_again = other.snapshot()
        assert memory.find_row(session).snapshot.snapshot_id == theirs_again
        memory.advance(30)
        session.sync()
    assert [judged.reason for judged in memory.rejections()] == ["broken_chain"] * 3
    ids = [each.snapshot_id for each in chain_of(memory)]
    assert len(ids) == 1 + 1 + 1 + 2 + 3 + 1, "each that was refused was taken again, once"
    assert not {ours, *lost} & set(ids)


def test_a_delta_is_small_and_each_tenth_snapshot_is_whole() -> None:
    client, memory = memory_client()
    state = {"number": 0, "text": [f"line {number} of a long text" for number in range(30_000)]}
    with client, client.session(user_id="u", state=state, snapshots=True) as session:
        session.snapshot()
        for number in range(1, 20):
            session.update_state({**state, "number": number})
            session.snapshot()
        assert memory.find_row(session).snapshot.state_json == session.core.view.state_json
    snapshots = stored(memory)
    assert snapshots[1].content_bytes > 800_000
    assert [each.encoding for each in snapshots] == ["full", *["delta"] * 9, "full", *["delta"] * 9, "full", "delta"]
    assert all(len(each.state_json) < 100 for each in snapshots if each.encoding == "delta")
    assert all(each.compression == "gzip" for each in snapshots if each.encoding == "full")
    assert len(chain_of(memory)) == 22


def test_a_result_of_5_mb_is_a_reference(tmp_path: Any) -> None:
    """R-003-66."""

    @tool(effect="read")
    def large() -> str:
        return "x" * 5_000_000

    client, memory = memory_client(artifacts=ArtifactLibrary(tmp_path))
    with client, client.session(user_id="u", snapshots=True):
        large()
    after = chain_of(memory)[2]
    assert after.tool is not None
    assert json.loads(after.tool.data_json or "")["artifact_ref"].startswith("artifact:tool_result:")
    assert max(len(record.value or b"") for record in memory.records()) < VALUE_BYTES_MAX


def test_the_last_snapshot_of_a_session_on_hold_stays_beyond_every_tier() -> None:
    """C-36: 39 days are longer than any short tier keeps a state."""
    client, memory = memory_client()
    days = 86_400
    session = client.session(user_id="u", state={"n": 1}, limits=Limits(hold_ms=40 * days * 1_000, override=True))
    head = session.pause()
    memory.silence(session)
    memory.advance(39 * days)
    memory.silence(session, silent=False)
    assert (memory.find_row(session).state, memory.find_row(session).snapshot.snapshot_id) == ("Paused", head)
    assert session.resume() == {"n": 1}
    client.close()


def test_the_cache_drops_its_older_half_and_loses_nothing() -> None:
    """R-003-77: the limit that was given counts, and half remains."""
    cache = SnapshotCache(1_000)
    for number in range(11):
        whole = Snapshot(f"snap_{number:012x}", None, 1, "{}", None, "", "full", "none", content_bytes=100)
        cache.keep(f"session-{number}", whole)
    assert len(cache) == 5
    assert cache.bytes_held == 500
    assert cache.find("session-5", f"snap_{5:012x}") is None
    assert cache.find("session-10", f"snap_{10:012x}") is not None


def test_a_session_whose_base_was_dropped_sends_a_whole_snapshot() -> None:
    """R-003-77: nothing that was dropped is lost."""
    client, memory = memory_client(settings=ProducerSettings(snapshot_cache_mb=1))
    large = {"text": "x" * 600_000}
    with client:
        sessions = [client.session(user_id="u", state=large, snapshots=True) for _ in range(3)]
        for session in reversed(sessions):
            session.update_state({**large, "done": True})
            session.snapshot()
            assert memory.find_row(session).snapshot.state_json == session.core.view.state_json
        assert [each.encoding for each in stored(memory)] == ["full"] * 3 + ["delta", "full", "full"]


def test_snapshots_are_kept_beside_the_cache_only_until_they_are_judged() -> None:
    """Else sixteen of each session were in memory, whatever the setting says."""
    client, memory = memory_client(settings=ProducerSettings(snapshot_cache_mb=1))
    with client, client.session(user_id="u", snapshots=True) as session:
        for number in range(20):
            session.update_state({"number": number})
            session.snapshot()
        chain = session.core.view.chain
        assert chain is not None
        assert len(chain.unjudged) == 16
        memory.advance(30)
        assert chain.unjudged == []
        first, _ = session.snapshot(), session.snapshot()
        session.core.view.snapshot_ids = iter([first, *islice(new_snapshot_ids(), 20)])
        refused = [session.snapshot(), session.snapshot()]  # of an id that exists, and one that follows it
        memory.advance(30)
        assert len(chain.unjudged) == 4, "two are still to be taken again"
        last = session.snapshot()
        assert memory.find_row(session).snapshot.snapshot_id == last
        memory.advance(30)
        assert chain.unjudged == []
    ids = [each.snapshot_id for each in chain_of(memory)]
    assert len(ids) == 1 + 20 + 2 + 2 + 1 + 1
    assert refused[1] not in ids
