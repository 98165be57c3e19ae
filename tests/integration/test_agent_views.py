"""What analysts see of the agents of a session: tasks, hand-overs, and what each role sees."""

from typing import Any

import pytest

from sessionary.schemas.events import AgentRegistered, AgentTaskUpdated, ContextSynced
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_run_views import Runs
from tests.support.sink_records import session_id

_ROLES = {"researcher_1": "researcher", "analyzer_1": "analyzer", "writer_1": "writer", "critic_1": "critic"}
_RESULTS = {"researcher_1": '["p1"]', "analyzer_1": '["insight1"]', "writer_1": '"report"'}


@pytest.fixture
def runs(tables: ClickHouseSettings) -> Runs:
    return Runs(tables)


def task(agent_id: str, name: str | None, *, completed: bool = False, **fields: Any) -> AgentTaskUpdated:
    return AgentTaskUpdated(name, completed, agent_id=agent_id, **fields)


def register_all(runs: Runs) -> None:
    runs.send(*(AgentRegistered(role, agent_id) for agent_id, role in _ROLES.items()), run=None)


def test_an_agent_is_one_row_with_its_tasks_once_it_is_registered(runs: Runs) -> None:
    columns = "agent_id, role, service_id, current_task, completed_tasks, shared_context"
    runs.send(AgentRegistered("writer", "w", "guests"), AgentRegistered("researcher"), run=None)
    (reader, *_), writer = runs.ask(f"SELECT {columns} FROM v_agents ORDER BY agent_id")
    assert writer == ("w", "writer", "guests", None, [], {})
    assert reader != "w"  # the sender itself
    runs.send(
        task("w", "plan", to_snapshot_id="s1"),
        task("w", "draft", to_snapshot_id="s2"),
        task("w", "side", completed=True, to_snapshot_id="s3", result_json="1"),
        task("w", "draft", to_snapshot_id="s4", result_json="2"),
        AgentRegistered("writer", "w", "guests"),  # said again
        run=None,
    )
    changed = runs.ask("SELECT max(time) FROM v_agent_tasks")[0]
    (row,) = runs.ask(f"SELECT {columns}, snapshot_id, time FROM v_agents WHERE agent_id = 'w'")
    shared = {"w_side": "1", "w_draft": "2"}
    assert row == ("w", "writer", "guests", "draft", ["plan", "side"], shared, "s4", *changed)
    runs.send(AgentRegistered("critic", "late"), run=None)
    made = runs.ask("SELECT max(time) FROM v_agent_events")[0]
    (row,) = runs.ask(f"SELECT {columns}, time FROM v_agents WHERE agent_id = 'late'")
    assert row == ("late", "critic", "billing", None, [], shared, *made)


def test_each_change_tells_from_which_snapshot_to_which_it_led(runs: Runs) -> None:
    runs.send(AgentRegistered("writer", "w"), run=None)
    runs.send(task("w", "plan", to_snapshot_id="s1"), task("w", "draft", to_snapshot_id="s2"), run=None)
    runs.send(task("w", "draft", completed=True, from_snapshot_id="s2", result_json='"x"'), run=None)
    found = runs.ask(
        "SELECT task, is_completed, from_snapshot, to_snapshot, shared_key, result FROM v_agent_tasks "
        "ORDER BY source_offset"
    )
    (first,) = {
        row[0] for row in runs.ask("SELECT to_snapshot FROM v_agent_events WHERE event_type = 'agent_registered'")
    }
    assert [(*row[:2], *row[4:]) for row in found] == [
        ("plan", False, None, None),
        ("draft", False, None, None),
        ("draft", True, "w_draft", '"x"'),
    ]
    assert [row[2:4] for row in found[:2]] == [(first, "s1"), ("s1", "s2")]
    assert found[2][2] == "s2"
    (agent,) = runs.ask("SELECT current_task, completed_tasks, shared_context, snapshot_id FROM v_agents")
    assert agent == (None, ["plan", "draft"], {"w_draft": '"x"'}, found[2][3])


def test_each_role_sees_what_the_api_shows_it(runs: Runs) -> None:
    """R-003-44: `critic_1` has a role that the schema does not list."""
    register_all(runs)
    for agent_id, result in _RESULTS.items():
        runs.send(task(agent_id, "work", completed=True, result_json=result), run=None)
    seen = runs.ask(
        "SELECT agent_id, author_id, author_role, result FROM v_agent_views ORDER BY agent_id, source_offset"
    )
    everything = [(author, _ROLES[author], result) for author, result in _RESULTS.items()]
    assert seen == [
        ("analyzer_1", *everything[0]),
        *(("critic_1", *each) for each in everything),
        *(("writer_1", *each) for each in everything),
    ]


def test_the_authors_role_decides_and_not_the_name_of_the_key(runs: Runs) -> None:
    """C-19."""
    register_all(runs)
    runs.send(
        task("writer_1", "researcher_notes", completed=True, shared_key="researcher_1", result_json="1"), run=None
    )
    runs.send(task("researcher_1", "writer_notes", completed=True, result_json="2"), run=None)
    seen = runs.ask("SELECT author_id, shared_key FROM v_agent_views WHERE agent_id = 'analyzer_1'")
    assert seen == [("researcher_1", "researcher_1_writer_notes")]


def test_agents_of_one_id_in_other_sessions_and_tenants_are_others(runs: Runs) -> None:
    """C-22."""
    places = [("acme", session_id(1)), ("acme", session_id(2)), ("globex", session_id(1))]
    for number, (tenant_id, session) in enumerate(places):
        named = {"tenant_id": tenant_id, "session_id": session}
        runs.send(AgentRegistered("writer", "w"), AgentRegistered("critic", "c"), run=None, **named)
        runs.send(task("w", "write", completed=True, result_json=f"{number}"), run=None, **named)
    order = "ORDER BY tenant_id, session_id"
    agents = f"SELECT tenant_id, session_id, completed_tasks, shared_context FROM v_agents WHERE agent_id = 'w' {order}"
    assert runs.ask(agents) == [(*place, ["write"], {"w_write": f"{n}"}) for n, place in enumerate(places)]
    views = f"SELECT tenant_id, session_id, result FROM v_agent_views WHERE agent_id = 'c' {order}"
    assert runs.ask(views) == [(*place, f"{n}") for n, place in enumerate(places)]


def test_a_hand_over_has_the_givers_snapshot(runs: Runs) -> None:
    register_all(runs)
    runs.send(task("researcher_1", "read", completed=True, to_snapshot_id="s1"), run=None)
    runs.send(ContextSynced("researcher_1", "analyzer_1", "handoff", '{"n":1}', "s1"), run=None)
    runs.send(ContextSynced("researcher_1", "writer_1", "review"), run=None)
    columns = "from_agent_id, to_agent_id, sync_type, from_snapshot, context"
    assert runs.ask(f"SELECT {columns} FROM v_handovers ORDER BY source_offset") == [
        ("researcher_1", "analyzer_1", "handoff", "s1", '{"n":1}'),
        ("researcher_1", "writer_1", "review", "s1", None),
    ]


def test_what_is_rejected_counts_nowhere_and_a_repeated_delivery_once(runs: Runs) -> None:
    register_all(runs)
    done = runs.send(task("writer_1", "work", completed=True, result_json="1"), run=None)
    runs.deliver(runs.sent[done])
    again = runs.send(task("writer_1", "work", completed=True, result_json="2"), run=None)
    runs.deliver(runs.sent[again])  # a duplicate of what was rejected
    stranger = runs.send(AgentRegistered("writer", "stranger"), run=None)
    for offset in (again, stranger):
        runs.reject(offset, "task_done" if offset == again else "not_member")
    assert runs.ask("SELECT completed_tasks, shared_context FROM v_agents WHERE agent_id = 'writer_1'") == [
        (["work"], {"writer_1_work": "1"})
    ]
    assert runs.ask("SELECT count() FROM v_agents") == [(4,)]
    assert runs.ask("SELECT count() FROM v_agent_tasks") == [(1,)]
