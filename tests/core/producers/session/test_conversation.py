"""The verbs of a conversation: turns are sent and read, large ones by a library of artifacts."""

import asyncio
import json
from pathlib import Path

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, SessionClient, SessionLost, SettingsError, tool
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.limits import MESSAGE_CHARACTERS_MAX

LARGE = "ä" * (MESSAGE_CHARACTERS_MAX + 1)


def turns_of(messages: object) -> list[tuple[int, str, str | None, str | None]]:
    return [(each.turn, each.role, each.content, each.name) for each in messages]  # type: ignore[attr-defined]


def test_turns_are_read_in_order_whoever_sent_them() -> None:
    client, memory = memory_client()
    other = SessionClient(tenant_id="acme", service_id="forecasts", agent_id="a2", ports=memory_ports(memory))
    with client, other, client.session(user_id="u") as session:
        session.message("user", "Forecast May")
        session.conversation.add_result("revenue", {"may": 7})
        other.attach(session.session_id).message("assistant", "7, and growing", name="forecaster")
        assert turns_of(session.conversation.read()) == [
            (1, "user", "Forecast May", None),
            (2, "tool", '{"may":7}', "revenue"),
            (3, "assistant", "7, and growing", "forecaster"),
        ]
        assert [message.agent_id for message in session.conversation.read(last=2)][1:] == ["a2"]
        assert turns_of(other.conversation(session.session_id, last=1)) == turns_of(session.conversation.read(last=1))
        assert turns_of(client.conversation(session, last=2)) == turns_of(session.conversation.read(last=2))


def test_the_context_stays_bounded_over_many_turns_and_calls() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        for n in range(1, 231):
            session.message("user" if n % 2 else "assistant", f"turn {n}")
            if n in (1, 20, 199, 200, 201, 230):
                read = session.conversation.read(last=20)
                assert [message.content for message in read] == [f"turn {m}" for m in range(max(n - 19, 1), n + 1)]
        assert [message.turn for message in session.conversation.read(last=200)] == list(range(31, 231))
        assert len(session.conversation.read()) == 20
        assert count_rows(memory) == 200


def test_two_hundred_tool_calls_leave_a_context_that_is_bounded_and_needs_no_body(tmp_path: Path) -> None:
    """What a model would be given: the last turns, with summaries in place of large results."""
    memory = InMemoryTransport()
    client = SessionClient(
        tenant_id="acme", service_id="s", agent_id="a", ports=memory_ports(memory), artifacts=tmp_path
    )
    given: list[int] = []
    with client, client.session(user_id="u") as session:

        @tool(key=lambda n: f"page-{n}", effect="read")
        def read_page(n: int) -> str:
            return f"page {n}: " + "x" * 20_000

        with session.run("report"):
            for n in range(200):
                session.conversation.add_result("read_page", read_page(n))
                context = session.conversation.read(last=20, load_artifacts=False)
                given.append(sum(len(turn.content or "") for turn in context))
        for stored in tmp_path.rglob("*"):
            if stored.is_file():
                stored.unlink()
        assert len(session.conversation.read(last=20, load_artifacts=False)) == 20
    assert max(given) == given[-1] < 20 * 512
    assert len(set(given[100:])) == 1


def count_rows(memory: InMemoryTransport) -> int:
    """Return how many turns have a row, in all partitions."""
    states = memory.core.judge._states
    return sum(type(row).__name__ == "MessageState" for state in states for row in state.rows.values())


@pytest.mark.parametrize("last", [-1, 201])
def test_a_number_of_turns_out_of_bounds_is_rejected(last: int) -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        for ask in (session.conversation.read, lambda last: client.conversation(session.session_id, last)):
            with pytest.raises(Invalid, match="0 to 200"):
                ask(last)


def test_a_large_turn_needs_a_library_and_is_an_artifact_then(tmp_path: Path) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(Invalid, match=r"16,385 characters.*SESSIONARY_ARTIFACTS_URL"):
            session.message("user", LARGE)
        session.message("user", LARGE[1:])
        keeping = SessionClient(
            tenant_id="acme", service_id="s2", agent_id="a2", ports=memory_ports(memory), artifacts=tmp_path
        )
        with keeping:
            shared = keeping.attach(session.session_id)
            shared.conversation.add_result("search", LARGE)
            stored, large = shared.conversation.read()
            assert (stored.content, stored.artifact_id) == (LARGE[1:], None)
            assert (large.content, large.name) == (LARGE, "search")
            (artifact,) = shared.records.artifacts()
            assert (artifact.artifact_id, artifact.artifact_type, artifact.state) == (
                *(large.artifact_id, "message", "complete"),
            )
            assert artifact.size_bytes == len(LARGE.encode())
            (reference,) = shared.conversation.read(last=1, load_artifacts=False)
            summary = f"16,385 characters: {LARGE[:200]}"
            reported = {"artifact_ref": f"artifact:message:{artifact.sha256}", "summary": summary}
            assert json.loads(reference.content or "") == reported
        with pytest.raises(SettingsError, match="turn 2"):
            session.conversation.read()
        assert [each.turn for each in session.conversation.read(load_artifacts=False)] == [1, 2]
    assert memory.rejections() == []


def test_a_text_that_only_looks_like_a_reference_stays_as_it_is(tmp_path: Path) -> None:
    client, _ = memory_client()
    text = f'{{"artifact_ref":"artifact:message:{"0" * 64}","summary":""}}'
    with client, client.session(user_id="u") as session:
        session.message("user", text)
        assert session.conversation.read()[0].content == text


def test_what_is_no_text_is_refused_and_nothing_is_sent() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        before = len(memory.events())
        with pytest.raises(Invalid, match="content is of type dict"):
            session.message("user", {"text": "Hi"})  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="result"):
            session.conversation.add_result("look", {"at": object()})
        assert len(memory.events()) == before


def test_the_conversation_of_an_unknown_session_is_lost() -> None:
    client, _ = memory_client()
    with client, pytest.raises(SessionLost):
        client.conversation(new_session_id())


def test_content_conversation_and_execution_are_read_apart() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u", state={"items": []}) as session:
        session.message("user", "Go")
        with session.run("report", run_id="r", input={"month": 5}) as run:
            run.step("plan", lambda: 1)
            (at_work,) = session.records.execution().runs
            assert (at_work.run.run_id, at_work.run.state, at_work.run.input_json) == ("r", "running", None)
            assert [(step.name, step.state, step.output_json) for step in at_work.steps] == [
                ("plan", "succeeded", None)
            ]
        assert session.records.execution() == ([], [])
        assert session.sync().state_json == '{"items":[]}'
        assert [message.content for message in session.conversation.read()] == ["Go"]


def test_an_async_session_has_the_same_verbs(tmp_path: Path) -> None:
    asyncio.run(use_async_verbs(tmp_path))


async def use_async_verbs(folder: Path) -> None:
    client, _ = memory_client(artifacts=folder)
    async with AsyncSessionClient.wrap(client) as aclient, aclient.session(user_id="u") as session:
        await session.message("user", LARGE)
        await session.conversation.add_result("look", [1])
        read = await session.conversation.read()
        assert turns_of(read) == [(1, "user", LARGE, None), (2, "tool", "[1]", "look")]
        assert await aclient.conversation(session, last=1) == read[1:]
        assert await aclient.conversation(session.session_id) == read
        assert len(await session.records.artifacts()) == 1
        assert (await session.records.execution()).runs == []
        await session.records.verify()
