"""Replay by the client: modes, counts, keys, points; nothing is executed and nothing is sent."""

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, Session, SessionClient, SessionLost, tool, traced
from sessionary.producers.errors import ProducerError
from sessionary.producers.replay.answers import MissedCall, ReplayCounts
from sessionary.producers.replay.calls import call_key
from sessionary.producers.replay.errors import NotReplayable, PointNotFound, ReplayBlocked, ReplayMiss
from sessionary.producers.replay.replay import Replay
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import encode_event
from sessionary.schemas.events import (
    MessageAppended,
    SessionCreated,
    SnapshotCreated,
    StateUpdated,
    ToolCallSucceeded,
    UsageRecorded,
)

made = Counter[str]()


@tool(effect="read")
def search(query: str, limit: int = 3) -> dict[str, object]:
    made["search"] += 1
    return {"query": query, "n": made["search"], "limit": limit}


@tool(effect="write")
def pay(order: str) -> str:
    made["pay"] += 1
    return f"paid {order}"


@traced("llm", capture=True)
def ask_model(prompt: str) -> str:
    made["ask_model"] += 1
    return f"answer {made['ask_model']} to {prompt}"


def agent(session: Session) -> list[object]:
    with session.turn():
        session.message("user", "look")
        first = search("a")
        session.usage(model="m", tokens_in=7, tokens_out=3)
        second = search("a")
        answer = ask_model(f"{session.random()} {session.now().isoformat()}")
        session.message("assistant", answer)
    with session.run("order") as run:
        paid = run.step("pay", lambda: pay("o1"))
    session.update_state({"paid": paid})
    return [first, second, answer, paid]


@pytest.fixture(autouse=True)
def no_calls() -> None:
    made.clear()


def record_session() -> tuple[SessionClient, InMemoryTransport, str, list[object]]:
    client, memory = memory_client()
    with client.session(user_id="u1", state={"paid": None}) as session:
        outcome = agent(session)
    assert made == {"search": 2, "ask_model": 1, "pay": 1}
    made.clear()
    return client, memory, session.session_id, outcome


def replay_agent(replay: Replay) -> list[object]:
    with replay.session() as session:
        return agent(session)


def offset_of(memory: InMemoryTransport, session_id: str, kind: type, number: int = 1) -> int:
    found = [judged.offset for judged in memory.verdicts(session_id) if isinstance(judged.event.payload, kind)]
    return found[number - 1]


def test_an_unchanged_agent_gets_the_recorded_answers_and_executes_nothing() -> None:
    """R-003-28, R-003-75, R-003-86: hits are counted, and nothing is executed."""
    client, memory, session_id, outcome = record_session()
    sent, log = client.counters.sent, len(memory.records())
    with client.replay(session_id) as replay:
        assert replay_agent(replay) == outcome
    assert replay.counts == ReplayCounts(served=4, missed=0, blocked=0, executed=0)
    assert (replay.difference, replay.reproduces, replay.is_valid) == (None, True, False)
    assert f"{replay}".endswith("served 4, missed 0, blocked 0, executed 0; it reproduces the record")
    assert made == {}  # R-003-28: counters stay 0
    assert (client.counters.sent, len(memory.records())) == (sent, log)


def test_messages_tokens_and_turn_are_the_recorded_ones() -> None:
    """R-003-28: message list, token count and turn number equal the recorded ones."""
    client, memory, session_id, _ = record_session()
    with client.replay(session_id) as replay:
        replay_agent(replay)
        again = [(each.role, each.content) for each in replay.client.conversation(session_id)]
    recorded = [(each.role, each.content) for each in client.conversation(session_id)]
    assert again == recorded == [(each.role, each.content) for each in replay.record.context()]
    assert (len(again), replay.record.tokens, replay.record.turn) == (2, 10, 1)
    assert memory.find_row(session_id).exchanges == 1


def test_another_call_stops_a_strict_replay_with_what_was_expected_and_what_came() -> None:
    client, _, session_id, _ = record_session()
    with pytest.raises(ReplayMiss) as stopped, client.replay(session_id) as replay, replay.session() as session:
        search("b")
    assert 'expected search({"limit": 3, "query": "a"}) at offset' in f"{stopped.value}"
    assert stopped.value.came == 'search({"limit": 3, "query": "b"})'
    assert replay.counts == ReplayCounts(missed=1)
    assert (made, session.session_id) == ({}, session_id)


def test_a_miss_that_the_agent_hides_is_raised_at_the_end() -> None:
    client, _, session_id, _ = record_session()
    replay = client.replay(session_id)

    def hide() -> None:
        with replay, replay.session(), contextlib.suppress(ProducerError):
            search("b")

    with pytest.raises(ReplayMiss):
        hide()
    assert (made, replay.reproduces) == ({}, False)


def test_a_call_too_many_is_a_miss_although_two_equal_ones_were_served() -> None:
    """R-003-41: two calls of the same tool both survive, each with its own result."""
    client, _, session_id, outcome = record_session()
    replay = client.replay(session_id)

    def search_three_times() -> None:
        with replay, replay.session() as session, session.turn():
            assert [search("a"), search("a")] == outcome[:2]
            assert outcome[0] != outcome[1]
            search("a")

    with pytest.raises(ReplayMiss, match=r"expected llm ask_model"):
        search_three_times()
    assert replay.counts == ReplayCounts(served=2, missed=1)


def test_a_stub_gives_what_the_record_does_not_have() -> None:
    client, _, session_id, outcome = record_session()
    asked: list[MissedCall] = []

    def stub(call: MissedCall) -> object:
        asked.append(call)
        return {"n": 0}

    with client.replay(session_id, mode="stub", stub=stub) as replay, replay.session() as session, session.turn():
        assert (search("b"), search("a")) == ({"n": 0}, outcome[0])
    assert asked == [MissedCall("tool", "search", {"query": "b", "limit": 3})]
    assert replay.counts == ReplayCounts(served=1, missed=1)
    assert (made, replay.reproduces) == ({}, False)


def mended(replay: Replay) -> str:
    with replay.session() as session:
        with session.turn():
            session.message("user", "look")
            search("a")
            session.usage(model="m", tokens_in=7, tokens_out=3)
            search("b")
        with session.run("order") as run:
            run.step("pay", lambda: pay("o1"))
            run.step("pay more", lambda: pay("o2"))
    return session.session_id


def test_a_fork_goes_on_live_in_a_new_session_and_blocks_effects() -> None:
    """R-003-75, C-24: a miss with an effect is never executed on its own."""
    client, memory, session_id, _ = record_session()
    replay = client.replay(session_id, mode="fork", baseline=replay_agent)
    with pytest.raises(ReplayBlocked, match=r"allow=\['pay'\]"), replay:
        mended(replay)
    assert made == {"search": 1}
    assert replay.counts == ReplayCounts(served=2, missed=3, blocked=1, executed=2)  # a step, and two calls
    assert replay.is_valid
    fork_id = memory.events()[-1].envelope.session_id
    assert fork_id != session_id
    created = memory.events(fork_id)[0].payload
    assert isinstance(created, SessionCreated)
    assert created.parent_session_id == session_id
    used = [each.payload for each in memory.events(fork_id) if isinstance(each.payload, UsageRecorded)]
    assert [(each.tokens_in, each.tokens_out) for each in used] == [(0, 0)]  # counted once, in the parent
    assert memory.rejections() == []


def test_a_fork_makes_the_writes_that_it_is_allowed() -> None:
    client, memory, session_id, _ = record_session()
    with client.replay(session_id, mode="fork", allow=["pay"], baseline=replay_agent) as replay:
        fork_id = mended(replay)
    assert made == {"search": 1, "pay": 1}
    assert replay.counts == ReplayCounts(served=2, missed=3, blocked=0, executed=3)  # a step, and two calls
    assert memory.find_row(fork_id).parent_session_id == session_id
    assert client.counters.sent == len(memory.records())


def test_a_fork_at_a_point_is_answered_up_to_it_and_goes_on_live_from_the_same_state() -> None:
    client, memory, session_id, outcome = record_session()
    at = offset_of(memory, session_id, ToolCallSucceeded)
    with client.replay(session_id, at=at, mode="fork", allow=["pay"], baseline=replay_agent) as replay:
        again = replay_agent(replay)
    assert again[0] == outcome[0]
    assert made == {"search": 1, "ask_model": 1, "pay": 1}  # only what came after the point
    assert (replay.is_valid, replay.counts.served, replay.counts.blocked) == (True, 1, 0)


def test_a_fork_counts_only_if_the_unchanged_agent_reproduces_the_record() -> None:
    client, _, session_id, _ = record_session()
    with client.replay(session_id, mode="fork", allow=["pay"]) as replay:
        mended(replay)
    assert not replay.is_valid
    assert f"{replay}".endswith("the unchanged agent was not replayed first: pass it as baseline")
    made.clear()
    with client.replay(session_id, mode="fork", allow=["pay"], baseline=mended) as replay:
        assert made == {}  # the baseline executes nothing, whatever it does
        mended(replay)
    assert not replay.is_valid
    assert "it does not count, as the unchanged agent does not reproduce the record: the record has" in f"{replay}"


def test_a_difference_that_is_no_call_is_found_too() -> None:
    client, _, session_id, _ = record_session()
    with client.replay(session_id) as replay, replay.session() as session, session.turn():
        session.message("user", "listen")
    assert replay.difference is not None
    assert 'the record has message_appended {"role": "user", "content": "look"} at offset' in replay.difference
    assert 'instead it sent message_appended {"role": "user", "content": "listen"}' in replay.difference


@pytest.mark.parametrize(("kind", "messages"), [(ToolCallSucceeded, 1), (MessageAppended, 1), (StateUpdated, 2)])
def test_a_replay_to_a_point_stops_there_and_holds_the_state_of_then(kind: type, messages: int) -> None:
    client, memory, session_id, _ = record_session()
    offset = offset_of(memory, session_id, kind)
    with client.replay(session_id, at=offset) as replay:
        replay_agent(replay)
    assert replay.is_reached
    assert (replay.difference, made) == (None, {})
    assert replay.record.target == offset
    assert len(replay.past.conversation(session_id)) == len(replay.record.context()) == messages


def test_points_are_events_snapshots_and_offsets_and_an_unknown_one_is_an_error() -> None:
    """R-003-41: `Snapshot <id> not found`; no unknown point replays everything."""
    client, memory = memory_client()
    with client.session(user_id="u1", state={"n": 0}) as session:
        first = search("a")
        session.update_state({"n": 1})
        snapshot_id = session.snapshot()
        session.update_state({"n": 2})
    with client.replay(session, at=snapshot_id) as replay, replay.session() as again:
        assert search("a") == first
        again.update_state({"n": 1})
        again.snapshot()
        again.update_state({"n": 3})
    assert replay.is_reached
    assert replay.record.row.state_json == '{"n":1}'
    assert made == {"search": 1}
    event_id = memory.events(session.session_id)[-1].envelope.event_id
    with client.replay(session, at=event_id) as replay:
        assert replay.record.target == memory.verdicts(session.session_id)[-1].offset
    for point, text in (
        ("snap_0123456789ab", "Snapshot snap_0123456789ab not found"),
        ("0197", "Event 0197 not found"),
        (10_000, "Offset 10000 not found"),
        (-1, "Offset -1 not found"),
    ):
        with pytest.raises(PointNotFound, match=text), client.replay(session, at=point):
            pass


@pytest.mark.parametrize("damage", ["missing", "unknown parent", "cycle", "itself"])
def test_a_chain_that_is_broken_is_told_and_nothing_is_executed(damage: str) -> None:
    """R-003-42: of the log, as the judge rejects cycles and missing parents when they are sent."""
    client, memory = memory_client()

    def take_three(session: Session) -> list[str]:
        search("a")
        return [session.snapshot() for _ in range(3)]

    with client.session(user_id="u1", state={"n": 0}) as session:
        ids = take_three(session)
    made.clear()
    entries = memory.core.log.entries
    place, event = next((n, each) for n, each in enumerate(memory.events()) if ids[1] in f"{each.payload}")
    assert isinstance(event.payload, SnapshotCreated)
    parent = {"unknown parent": "snap_0123456789ab", "cycle": ids[2], "itself": ids[1]}.get(damage)
    if parent is None:
        del entries[place]
    else:
        damaged = event.payload.snapshot._replace(parent_snapshot_id=parent)
        entries[place] = entries[place]._replace(value=encode_event(event._replace(payload=SnapshotCreated(damaged))))
    sent = client.counters.sent
    for number, point in enumerate(ids):
        if number == 0:
            with client.replay(session, at=point) as replay, replay.session() as again:
                take_three(again)
            assert replay.reproduces  # up to there the chain is whole
            continue
        why = "it is no point of" if parent is None and number == 1 else r"was rejected at offset \d+ \(broken_chain: "
        with pytest.raises(PointNotFound, match=why), client.replay(session, at=point):
            pass
    with client.replay(session) as replay, replay.session() as again:
        take_three(again)
    left_out = [each.event_type for each in replay.record.rejected]
    assert left_out == ["snapshot_created"] * (1 if parent is None else 2)
    assert (made, client.counters.sent, replay.counts.executed) == ({}, sent, 0)


def test_another_tenants_session_and_an_unknown_one_are_not_known() -> None:
    client, memory, session_id, _ = record_session()
    other, _ = memory_client("umbrella", memory=memory)
    for reader, asked in ((other, session_id), (client, "no such session")):
        with pytest.raises(SessionLost, match="is not known"), reader.replay(asked):
            pass
    stranger, _ = memory_client(agent_id="another", memory=memory)
    with pytest.raises(NotReplayable, match="by a client with the names of the agent"), stranger.replay(session_id):
        pass


def test_a_record_that_is_newer_or_not_whole_is_not_replayed() -> None:
    client, memory, session_id, _ = record_session()
    entries = memory.core.log.entries
    entries.append(entries[-1]._replace(offset=10_000, value=b"\xc3\x01" + bytes(8) + b"new"))
    with pytest.raises(NotReplayable, match="upgrade the package"), client.replay(session_id):
        pass
    del entries[-1], entries[0]
    with pytest.raises(NotReplayable, match="its beginning is gone from the log"), client.replay(session_id):
        pass


def test_parameters_that_make_no_sense_together_are_refused() -> None:
    client, _ = memory_client()
    for wrong in ({"mode": "stub"}, {"allow": ["pay"]}, {"stub": print}):
        with pytest.raises(Invalid, match="is for mode="):
            client.replay("s", **wrong)
    with pytest.raises(Invalid, match="baseline is for mode="):
        client.replay("s", baseline=replay_agent)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("at", 1.5, "use an offset"),
        ("at", True, "use an offset"),
        ("at", "", "use an offset"),
        ("mode", "live", "use 'strict', 'stub' or 'fork'"),
        ("mode", ["fork"], "use 'strict', 'stub' or 'fork'"),
        ("stub", 1, "pass a function"),
        ("stub", 0, "pass a function"),
        ("allow", "pay", "pass a list of names"),
        ("allow", 1, "pass a list of names"),
        ("allow", [pay], "pass a list of names"),
        ("baseline", 1, "pass the unchanged agent"),
        ("timeout_s", 0, "pass a number of seconds above 0"),
        ("timeout_s", "5", "pass a number of seconds above 0"),
        ("timeout_s", float("nan"), "pass a number of seconds above 0"),
    ],
)
def test_a_parameter_of_a_wrong_type_is_refused_at_once(name: str, value: object, remedy: str) -> None:
    client, _ = memory_client()
    wrong: Any = {"mode": {"stub": "stub", "allow": "fork", "baseline": "fork"}.get(name, "strict"), name: value}
    for face in (client, AsyncSessionClient.wrap(client)):
        with pytest.raises(Invalid, match=f"{name} is .*{remedy}"):
            face.replay("s", **wrong)


def test_a_baseline_that_is_of_the_other_kind_of_client_is_refused() -> None:
    client, _, session_id, _ = record_session()

    async def asynchronous(replay: object) -> None:
        raise AssertionError(replay)

    with pytest.raises(Invalid, match="AsyncSessionClient"):
        client.replay(session_id, mode="fork", baseline=asynchronous).__enter__()

    async def enter() -> None:
        face: Any = AsyncSessionClient.wrap(client)
        with pytest.raises(Invalid, match="async def"):
            await face.replay(session_id, mode="fork", baseline=lambda _: None).__aenter__()

    asyncio.run(enter())


def test_the_key_of_a_call_is_the_same_in_another_process_and_for_reordered_parameters() -> None:
    """R-003-76."""
    key = call_key("search", {"query": "a", "limit": 3})
    assert key == call_key("search", {"limit": 3, "query": "a"})
    assert key != call_key("search", {"query": "a", "limit": 4})
    text = "from sessionary.producers.replay.calls import call_key\n"
    text += "print(call_key('search', {'limit': 3, 'query': 'a'}))"
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == key
