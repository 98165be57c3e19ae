"""Agents of one session, by clients in memory: tasks, views, hand-overs, and no lost update."""

import asyncio
from pathlib import Path
from threading import Thread

import pytest

from sessionary.producers import (
    Agent,
    AsyncSessionClient,
    Invalid,
    Rejected,
    Session,
    SessionClient,
    SettingsError,
    TaskDone,
    Unavailable,
    VersionConflict,
)
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import ContextSynced
from sessionary.schemas.limits import RESULT_CHARACTERS_MAX

PAPERS, INSIGHTS, REPORT = ["p1", "p2", "p3"], ["insight1", "insight2"], {"pages": 3}
ROLES = {"researcher_1": "researcher", "analyzer_1": "analyzer", "writer_1": "writer"}


def client_of(memory: InMemoryTransport, service: str, artifacts: Path | None = None) -> SessionClient:
    ports = memory_ports(memory)
    return SessionClient(
        tenant_id="acme", service_id=service, agent_id=f"{service}-1", ports=ports, artifacts=artifacts
    )


def three_agents(session: Session) -> list[Agent]:
    return [session.agents.get(agent_id, role) for agent_id, role in ROLES.items()]


def test_each_role_sees_what_it_may_and_depends_on_whom_it_must() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        researcher, analyzer, writer = three_agents(session)
        other = session.agents.get("critic_1", "critic")
        for agent, task, result in (
            (researcher, "gather_papers", PAPERS),
            (analyzer, "analyze_papers", INSIGHTS),
            (writer, "create_report", REPORT),
        ):
            agent.begin(task)
            agent.finish(result)
        papers = {"researcher_1_gather_papers": PAPERS}
        everything = {**papers, "analyzer_1_analyze_papers": INSIGHTS, "writer_1_create_report": REPORT}
        seen = {agent.agent_id: agent.view() for agent in (researcher, analyzer, writer, other)}
        assert {name: view.visible_context for name, view in seen.items()} == {
            "researcher_1": {},
            "analyzer_1": papers,
            "writer_1": everything,
            "critic_1": everything,
        }
        assert {name: view.dependencies for name, view in seen.items()} == {
            "researcher_1": [],
            "analyzer_1": ["researcher_1"],
            "writer_1": ["researcher_1", "analyzer_1", "critic_1"],
            "critic_1": [],
        }
        assert seen["writer_1"].authors == {name: name.rsplit("_", 2)[0] for name in everything}


def test_dependencies_name_each_agent_of_a_role() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        roles = {"r1": "researcher", "r2": "researcher", "a1": "analyzer", "w1": "writer"}
        found = {name: session.agents.get(name, role) for name, role in roles.items()}
        assert {name: [*agent.view().dependencies] for name, agent in found.items()} == {
            "r1": [],
            "r2": [],
            "a1": ["r1", "r2"],
            "w1": ["r1", "r2", "a1"],
        }


def test_sessions_of_one_process_share_nothing_also_if_their_agents_have_one_id() -> None:
    """Trap 13."""
    client, memory = memory_client()
    with client, client.session(user_id="u", state={"n": 1}) as one, client.session(user_id="u", state={"n": 2}) as two:
        agents = [session.agents.get("w", "writer") for session in (one, two)]
        agents[0].finish("of the first", task="write")
        one.update_state({"n": 10})
        one.message("user", "hello")
        one.snapshot()
        assert [agent.view().visible_context for agent in agents] == [{"w_write": "of the first"}, {}]
        views = [session.sync() for session in (one, two)]
        assert [(view.version, view.state_json) for view in views] == [(2, '{"n":10}'), (1, '{"n":2}')]
        assert [view.snapshot_state_json for view in views] == ['{"n":10}', '{"n":2}']
        assert [len(session.conversation.read()) for session in (one, two)] == [1, 0]
        agents[1].finish("of the second", task="write")  # each task is done once in each session
    assert memory.rejections() == []


def test_the_authors_role_decides_and_not_the_name_of_the_key() -> None:
    """C-19, trap 13."""
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        session.agents.get("researcher_fan", "writer").finish("prose", task="researcher_notes")
        session.agents.get("plain", "researcher").finish("facts", task="writer_notes")
        assert session.agents.get("a", "analyzer").view().visible_context == {"plain_writer_notes": "facts"}


def test_an_agents_record_tells_its_tasks_and_what_was_shared_by_its_snapshot() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        researcher, analyzer, _ = three_agents(session)
        begun = researcher.view().agent_state
        assert (begun.agent_id, begun.role, begun.service_id) == (
            "researcher_1",
            "researcher",
            session.core.emitter.service_id,
        )
        assert (begun.current_task, begun.completed_tasks, begun.shared_context) == (None, [], {})
        assert (begun.snapshot_id, begun.handover) == (researcher.snapshot_id, None)
        memory.advance(10)
        first = researcher.begin("plan")
        second = researcher.begin("gather_papers")
        assert len({begun.snapshot_id, first, second}) == 3
        researcher.finish(PAPERS)
        done = researcher.view().agent_state
        assert (done.current_task, done.completed_tasks) == (None, ["plan", "gather_papers"])
        assert done.shared_context == {"researcher_1_gather_papers": '["p1","p2","p3"]'}
        assert done.timestamp_ms > begun.timestamp_ms
        assert analyzer.view().agent_state.shared_context == {}  # its snapshot was made before
        late = session.agents.get("late_1", "writer").view().agent_state
        assert late.shared_context == done.shared_context
        assert [record.agent_id for record in session.agents.list()] == [*ROLES, "late_1"]
        assert [record.shared_context for record in session.agents.list()] == [None] * 4


def test_each_task_is_done_once() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        agent = session.agents.get("w", "writer")
        agent.begin("write")
        agent.finish("first")
        again = session.agents.get("w")
        with pytest.raises(TaskDone) as raised:
            again.finish("second", task="write")
        assert (raised.value.agent_id, raised.value.task) == ("w", "write")
        with pytest.raises(TaskDone):
            agent.begin("write")
        assert again.view().visible_context == {"w_write": "first"}
        with pytest.raises(Invalid, match="agent w has no current task"):
            again.finish("third")


def test_a_later_object_of_an_agent_goes_on_with_its_task() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        session.agents.get("w", "writer").begin("write")
        again = session.agents.get("w")
        again.begin("write")
        again.share("draft")
        assert again.view().visible_context == {"w_write": "draft"}
        session.agents.get("w").finish("final")
        assert again.view().visible_context == {"w_write": "final"}
        assert again.view().agent_state.completed_tasks == ["write"]


def test_one_process_at_a_time_changes_an_agents_tasks() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        one = session.agents.get("w", "writer")
        other = session.agents.get("w")
        one.begin("write")
        with pytest.raises(Rejected, match="broken_chain"):
            other.begin("read")
        other.begin("read")  # it knows the newest snapshot now
        assert other.view().agent_state.completed_tasks == ["write"]


def test_a_hand_over_links_the_givers_snapshot_to_the_taker() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        researcher, analyzer, _ = three_agents(session)
        researcher.finish(PAPERS, task="gather_papers")
        researcher.handoff(analyzer, context={"note": "all of them"})
        handover = analyzer.view().agent_state.handover
        assert handover is not None
        assert handover[:3] == ("researcher_1", researcher.snapshot_id, "handoff")
        session.agents.handoff(to="writer_1", from_agent="analyzer_1", sync_type="review")
        handover = session.agents.get("writer_1").view().agent_state.handover
        assert handover is not None
        assert handover[:3] == ("analyzer_1", analyzer.snapshot_id, "review")
        with pytest.raises(Rejected, match="unknown_agent"):
            researcher.handoff("critic_1")
    shared = [event.payload.shared_json for event in memory.events() if isinstance(event.payload, ContextSynced)]
    assert shared == ['{"note":"all of them"}', None, None]


def test_the_service_of_an_agent_is_a_member_once_the_owner_registers_it() -> None:
    memory = InMemoryTransport()
    owner, guest = client_of(memory, "owner"), client_of(memory, "guest")
    with owner, guest, owner.session(user_id="u") as session:
        joined = guest.attach(session.session_id)
        with pytest.raises(Rejected, match="not_member"):
            joined.agents.get("g", "writer")
        with pytest.raises(Invalid, match="agent g is not registered"):
            joined.agents.get("g")
        assert session.agents.get("g", "writer", service_id="guest").service_id == "guest"
        agent = joined.agents.get("g")
        agent.finish("done", task="write")
        joined.update_state({"by": "guest"})
        assert session.sync().version == 2
        assert session.state == {"by": "guest"}
        with pytest.raises(Invalid, match="agent g is registered as writer of guest"):
            joined.agents.get("g", "researcher")


def test_an_update_that_another_agent_overtook_raises_what_it_has_to_follow() -> None:
    memory = InMemoryTransport()
    one, two = client_of(memory, "s"), client_of(memory, "s")
    with one, two, one.session(user_id="u") as session:
        session.agents.get("r", "researcher")
        session.agents.get("w", "writer")
        other = two.attach(session.session_id)
        other.agents.get("w")
        assert session.update_state({"n": 1}) == 2
        with pytest.raises(VersionConflict) as raised:
            other.update_state({"m": 1})
        assert (raised.value.version, raised.value.state) == (2, {"n": 1})
        assert (other.version, other.state) == (2, {"n": 1})
        assert other.update_state({**raised.value.state, "m": 1}) == 3
        with pytest.raises(VersionConflict):
            session.update_state({"n": 2})
        assert session.update_state({**session.state, "n": 2}) == 4
        assert other.sync().state_json == '{"m":1,"n":2}'


def test_threads_of_several_agents_lose_no_update() -> None:
    memory = InMemoryTransport()
    clients = [client_of(memory, "s") for _ in range(3)]
    first = clients[0].session(user_id="u")
    sessions = [first, *(client.attach(first.session_id) for client in clients[1:])]
    for n, session in enumerate(sessions):
        session.agents.get(f"a{n}", "writer")

    def count(session: Session, name: str) -> None:
        for _ in range(20):
            while True:
                try:
                    session.update_state({**session.state, name: session.state.get(name, 0) + 1})
                    break
                except VersionConflict:
                    continue

    threads = [Thread(target=count, args=(session, f"n{n}")) for n, session in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    view = first.sync()
    assert (view.version, first.state) == (61, {"n0": 20, "n1": 20, "n2": 20})
    first.close()
    for client in clients:
        client.close(5.0)


def test_an_update_whose_verdict_did_not_come_is_settled_before_the_next_one() -> None:
    memory = InMemoryTransport()
    one, two = client_of(memory, "s"), client_of(memory, "s")
    with one, two, one.session(user_id="u") as session:
        session.agents.get("r", "researcher")
        other = two.attach(session.session_id)
        other.agents.get("r")
        assert other.update_state({"m": 1}) == 2
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            session.update_state({"n": 1})  # rejected, as it is based on version 1
        memory.silence_control(silent=False)
        with pytest.raises(VersionConflict) as raised:
            session.update_state({"n": 2})  # else it would pass as version 3, and lose the other's
        assert (raised.value.version, raised.value.state) == (2, {"m": 1})
        assert session.update_state({**session.state, "n": 2}) == 3
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            session.update_state({"m": 1, "n": 3})
        memory.silence_control(silent=False)
        assert session.update_state({"m": 1, "n": 4}) == 5  # the one before was applied
        session.sync()
        assert session.state == {"m": 1, "n": 4}


def test_a_client_that_was_there_before_the_agents_learns_of_them_by_a_poll() -> None:
    memory = InMemoryTransport()
    one, two = client_of(memory, "s"), client_of(memory, "s")
    with one, two, one.session(user_id="u") as session:
        other = two.attach(session.session_id)
        other.agents.get("r", "researcher")
        assert other.update_state({"m": 1}) == 2
        session.update_state({"n": 1})  # it does not know: the rejection is reported afterwards
        two_agents = other.agents.get("w", "writer")
        assert two_agents.agent_id == "w"
        one.core.watch.poll_now()
        with pytest.raises(VersionConflict) as raised:
            session.update_state({"n": 2})
        assert (raised.value.version, raised.value.state) == (2, {"m": 1})
        assert session.update_state({**session.state, "n": 2}) == 3


def test_without_agents_an_update_does_not_wait_for_its_verdict() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        memory.silence_control(silent=True)
        assert session.update_state({"n": 1}) == 2
        memory.silence_control(silent=False)
        session.agents.get("w", "writer")
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            session.update_state({"n": 2})
        memory.silence_control(silent=False)


def test_a_large_result_is_an_artifact(tmp_path: Path) -> None:
    memory = InMemoryTransport()
    large = {"text": "x" * RESULT_CHARACTERS_MAX}
    with client_of(memory, "s", artifacts=tmp_path) as client, client.session(user_id="u") as session:
        session.agents.get("r", "researcher").finish(large, task="read")
        writer = session.agents.get("w", "writer")
        assert writer.view().visible_context == {"r_read": large}
        kept = writer.view(load_artifacts=False).visible_context["r_read"]
        assert kept["artifact_ref"].startswith("artifact:agent_result:")
        session_id = session.session_id
        session.lifecycle.detach()
        with client_of(memory, "s") as other:
            poor = other.attach(session_id)
            with pytest.raises(SettingsError):
                poor.agents.get("w").view()
            with pytest.raises(Invalid, match="16,384"):
                poor.agents.get("w").finish(large, task="write")


def test_the_verbs_for_asyncio_do_the_same() -> None:
    memory = InMemoryTransport()

    async def play() -> None:
        client = AsyncSessionClient(tenant_id="acme", service_id="s", agent_id="a", ports=memory_ports(memory))
        async with client, client.session(user_id="u") as session:
            researcher = await session.agents.get("researcher_1", "researcher")
            analyzer = await session.agents.get("analyzer_1", "analyzer")
            await researcher.begin("gather_papers")
            await researcher.share(["p1"])
            await researcher.finish(PAPERS)
            await researcher.handoff(analyzer)
            await session.agents.handoff(to="researcher_1", from_agent=analyzer)
            view = await analyzer.view()
            assert view.visible_context == {"researcher_1_gather_papers": PAPERS}
            assert (analyzer.agent_id, analyzer.role, analyzer.service_id) == ("analyzer_1", "analyzer", "s")
            assert view.agent_state.snapshot_id == analyzer.snapshot_id
            assert [record.agent_id for record in await session.agents.list()] == ["researcher_1", "analyzer_1"]
            assert await session.update_state({"n": 1}) == 2

    asyncio.run(play())
