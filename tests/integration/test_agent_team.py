"""Agents of one session in several processes: what they see, and that no update is lost."""

import ast
import itertools
import json
import signal
from pathlib import Path
from threading import Thread

import pytest

from sessionary.producers import SessionClient
from sessionary.schemas.codec import Event
from sessionary.schemas.events import AgentTaskUpdated, StateUpdated
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.core.committed import PartitionSettings
from tests.integration.examples_rig import END_S, ExamplesRig, end_of, session_of
from tests.integration.pipeline_rig import started_pipeline
from tests.integration.processor_load import check_everything
from tests.support import Processes, read_events, wait_until

# One query for all that services, agents and the processor did, in one order.
_TRAIL = """
SELECT agent_id, service_id, event_type, place FROM
(
    SELECT source_offset AS place, 0 AS part, agent_id, service_id, event_type FROM {db}.history FINAL
    WHERE session_id = '%s' AND event_type NOT IN ('heartbeat', 'tick')
    UNION ALL
    SELECT source_offset, 1 + source_n, ifNull(agent_id, ''), ifNull(service_id, ''), event_type FROM {db}.audit FINAL
    WHERE session_id = '%s'
) ORDER BY place, part"""


@pytest.fixture
def rig(kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path) -> ExamplesRig:
    return ExamplesRig(started_pipeline(kafka, processes, clickhouse), tmp_path)


def check_trail(rig: ExamplesRig, session_id: str) -> None:
    """Assert that one query tells what all agents of the example did, in their order."""
    trail = rig.pipeline.sql(_TRAIL % (session_id, session_id))
    assert [agent_id for agent_id, _ in itertools.groupby(line[0] for line in trail)] == [
        "editor",
        "researcher_1",
        "analyzer_1",
        "writer_1",
        "editor",
    ]
    assert {line[1] for line in trail} == {"press", "research", "analysis", "writing"}
    assert sum(line[2] == "session_terminated" for line in trail) == 2  # the event, and its audit record


def test_three_agents_in_three_processes_leave_their_trail_in_clickhouse(rig: ExamplesRig, tmp_path: Path) -> None:
    rig.pipeline.start_sinks()
    output = rig.run_example("agent_team.agents")
    session_id, lines = session_of(output), output.splitlines()
    seen = {}
    for line in lines:
        if " sees " in line:
            agent_id, said = line.split(" sees ")
            visible, dependencies = said.split(" depends on ")
            seen[agent_id] = (ast.literal_eval(visible), ast.literal_eval(dependencies))
    papers, insights = "researcher_1_gather_papers", "analyzer_1_analyze_papers"
    assert seen == {
        "researcher_1": ([], []),
        "analyzer_1": ([papers], ["researcher_1"]),
        "writer_1": ([papers, insights], ["researcher_1", "analyzer_1"]),
    }
    assert lines[-3:-1] == [f"{papers}: p1, p2, p3", f"{insights}: insight1, insight2"]
    assert lines[-1] == "done: researcher_1, analyzer_1, writer_1 in version 4"
    assert end_of(rig.events(output)) == "completed"
    assert rig.rejections() == []
    rig.pipeline.wait_landed(END_S)
    of_session = f"WHERE session_id = '{session_id}'"
    check_trail(rig, session_id)
    agents = rig.pipeline.sql(
        "SELECT agent_id, role, service_id, completed_tasks, mapKeys(shared_context) FROM {db}.v_agents "
        f"{of_session} ORDER BY registered_at"
    )
    report = "writer_1_create_report"
    assert agents == [
        ["researcher_1", "researcher", "research", "['gather_papers']", f"['{papers}']"],
        ["analyzer_1", "analyzer", "analysis", "['analyze_papers']", f"['{papers}','{insights}']"],
        ["writer_1", "writer", "writing", "['create_report']", f"['{papers}','{insights}','{report}']"],
    ]
    tasks = rig.pipeline.sql(
        "SELECT agent_id, task, is_completed, from_snapshot, to_snapshot, result FROM {db}.v_agent_tasks "
        f"{of_session} ORDER BY source_offset"
    )
    assert [task[:3] for task in tasks] == [
        [agent_id, name, done]
        for agent_id, name in (
            ("researcher_1", "gather_papers"),
            ("analyzer_1", "analyze_papers"),
            ("writer_1", "create_report"),
        )
        for done in ("false", "true")
    ]
    assert [first[4] == second[3] for first, second in zip(tasks[::2], tasks[1::2], strict=True)] == [True] * 3
    assert [task[5] for task in tasks[1:4:2]] == ['["p1","p2","p3"]', '["insight1","insight2"]']
    handovers = rig.pipeline.sql(
        f"SELECT from_agent_id, to_agent_id, sync_type, from_snapshot FROM {{db}}.v_handovers {of_session} "
        "ORDER BY source_offset"
    )
    assert handovers == [
        ["researcher_1", "analyzer_1", "handoff", tasks[1][4]],
        ["analyzer_1", "writer_1", "handoff", tasks[3][4]],
    ]
    views = rig.pipeline.sql(
        f"SELECT agent_id, author_id FROM {{db}}.v_agent_views {of_session} ORDER BY agent_id, source_offset"
    )
    assert views == [
        ["analyzer_1", "researcher_1"],
        *(["writer_1", author] for author in ("researcher_1", "analyzer_1", "writer_1")),
    ]
    check_replay(rig, output, tmp_path)


def check_replay(rig: ExamplesRig, output: str, folder: Path) -> None:
    """Assert that a replay to the analyzer's end has the team as it was then (R-003-51)."""
    finished = [
        event for event in rig.events(output) if isinstance(event.payload, AgentTaskUpdated) and event.payload.completed
    ]
    done = finished[1]
    assert done.envelope.agent_id == "analyzer_1"
    settings = rig.pipeline.client_settings(folder, "replayer")
    with (
        SessionClient(tenant_id="acme", service_id="press", agent_id="editor", settings=settings) as client,
        client.replay(session_of(output), at=done.envelope.event_id) as replay,
    ):
        session = replay.past.attach(session_of(output))
        team = {agent.agent_id: agent for agent in session.agents.list()}
        seen = session.agents.get("writer_1").view().visible_context
    assert {name: (agent.role, agent.current_task, list(agent.completed_tasks)) for name, agent in team.items()} == {
        "researcher_1": ("researcher", None, ["gather_papers"]),
        "analyzer_1": ("analyzer", None, ["analyze_papers"]),
        "writer_1": ("writer", None, []),
    }
    papers, insights = ["p1", "p2", "p3"], ["insight1", "insight2"]
    assert seen == {"researcher_1_gather_papers": papers, "analyzer_1_analyze_papers": insights}


@pytest.mark.parametrize(("agents", "times"), [(3, 15), (4, 25)])
def test_agents_in_processes_of_their_own_lose_no_update_and_no_version_falls(
    rig: ExamplesRig, kafka: KafkaSettings, tmp_path: Path, agents: int, times: int
) -> None:
    names = [f"a{number}" for number in range(agents)]
    last_version = 1 + agents * times
    settings = rig.pipeline.client_settings(tmp_path, "owner").model_copy(update={"verdict_timeout_s": 120.0})
    with SessionClient(tenant_id="acme", service_id="counting", agent_id="owner", settings=settings) as client:
        session = client.session(user_id="u", state={})
        session.sync()
        reported: list[int] = []
        follower = client.follow(session)
        reading = Thread(target=lambda: reported.extend(view.version for view in follower))
        reading.start()
        children = [
            rig.start_program("tests.support.counting_agent", session.session_id, name, times, last_version)
            for name in names
        ]
        seen = []
        for child in children:
            output, _ = child.communicate(timeout=END_S)
            assert child.returncode == 0, output
            seen.append(json.loads(output))
        view = session.sync()
        assert session.state == dict.fromkeys(names, times)
        assert view.version == last_version
        assert [(each["version"], each["content"]) for each in seen] == [(last_version, session.state)] * agents
        wait_until(lambda: bool(reported) and reported[-1] == view.version, 60, "the last version to be reported")
        session.close()
        follower.close()
        reading.join(END_S)
    assert reported == sorted(reported)
    events = [event for event in read_events(kafka) if isinstance(event, Event)]
    sent = sum(isinstance(event.payload, StateUpdated) for event in events)
    rejected = sent - agents * times
    assert rig.rejections() == [("state_updated", "version_conflict")] * rejected
    # Each rejected one was reported, and made again. A client that hears of another agent looks
    # before its next update, so it may be reported without having sent one.
    assert 0 <= sum(each["late"] for each in seen) - rejected <= agents * (agents - 1)
    rig.pipeline.processor.signal(signal.SIGTERM)
    assert rig.pipeline.processor.wait(180)
    # The rows are the fold of the log, whatever the agents were reported.
    defaults = PartitionSettings(kafka.topics.events, kafka.partitions)
    check_everything(kafka, outage_ms=defaults.outage_ms, outage_grace_ms=defaults.outage_grace_ms)
