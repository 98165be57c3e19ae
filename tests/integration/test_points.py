"""A kill -9 inside a list and a plan, and transactions of several processes, down to ClickHouse."""

import json
import subprocess
from pathlib import Path

import pytest

from sessionary.producers import SessionClient
from sessionary.schemas.codec import Event
from sessionary.schemas.events import TxnCommitted
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.examples_rig import END_S, ExamplesRig
from tests.integration.pipeline_rig import started_pipeline
from tests.support import Processes, read_events
from tests.support.item_agent import ITEMS


@pytest.fixture
def rig(kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path) -> ExamplesRig:
    rig = ExamplesRig(started_pipeline(kafka, processes, clickhouse), tmp_path)
    rig.pipeline.start_sinks()
    return rig


def kill_once_it_says(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """Kill a program by SIGKILL once it has printed a line; return its lines so far."""
    lines: list[str] = []
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.strip())
                if lines[-1] == text:
                    break
        finally:
            process.kill()
    assert lines[-1:] == [text]
    return lines


def test_a_list_that_is_killed_at_item_eight_goes_on_after_item_five(rig: ExamplesRig) -> None:
    """R-003-40, R-003-52, R-003-53, R-003-62, R-003-85, by a real kill -9, in another process."""
    session_id = new_session_id()
    done = kill_once_it_says(rig.start_program("tests.support.item_agent", session_id, 8), "item-8")
    *again, last = rig.run_program("tests.support.item_agent", session_id, 0).splitlines()
    assert done == ITEMS[:8]
    assert again == ITEMS[5:]  # 6 to 8 are done again, 1 to 5 never
    whole = [f"analysis of {item}" for item in ITEMS]
    place = {"processed_count": 12, "partial_results": whole, "last_item_id": "item-12"}
    assert json.loads(last) == {"result": whole, "place": place}
    assert rig.rejections() == []
    rig.pipeline.wait_landed(END_S)
    of_run = f"WHERE session_id = '{session_id}'"
    saved = rig.pipeline.sql(f"SELECT processed_count, last_item_id FROM {{db}}.v_checkpoints {of_run} ORDER BY number")
    assert saved == [["5", "item-5"], ["10", "item-10"], ["12", "item-12"]]
    assert rig.pipeline.sql(f"SELECT checkpoints FROM {{db}}.v_run_progress {of_run}") == [["3"]]
    columns = (
        "checkpoints, checkpoint_id = (SELECT checkpoint_id FROM {db}.v_checkpoints WHERE number = 1), lost_events"
    )
    # Nothing of the three items was reported between the checkpoint and the kill.
    assert rig.pipeline.sql(f"SELECT {columns} FROM {{db}}.v_interruptions {of_run}") == [["1", "1", "0"]]


@pytest.mark.parametrize(("processes_", "threads", "times"), [(4, 1, 5), (4, 25, 1)])
def test_transactions_of_several_processes_lose_nothing(
    rig: ExamplesRig, kafka: KafkaSettings, tmp_path: Path, processes_: int, threads: int, times: int
) -> None:
    """R-003-58 to R-003-61: the final version counts the accepted updates; one more is killed."""
    settings = rig.pipeline.client_settings(tmp_path, "owner").model_copy(update={"verdict_timeout_s": 120.0})
    with SessionClient(tenant_id="acme", service_id="counting", agent_id="owner", settings=settings) as client:
        session = client.create(user_id="u", state={}).start()
        session.sync()
        module = "tests.support.transaction_agent"
        kill_once_it_says(rig.start_program(module, session.session_id, "dead", 1, 0), "open")
        children = [
            rig.start_program(module, session.session_id, f"a{number}", threads, times) for number in range(processes_)
        ]
        for child in children:
            output, _ = child.communicate(timeout=END_S)
            assert child.returncode == 0, output
        accepted = processes_ * threads * times
        view = session.sync()
        assert view.version == 1 + accepted
        names = [f"a{process}-{thread}" for process in range(processes_) for thread in range(threads)]
        assert session.state == dict.fromkeys(names, times)
        rig.pipeline.wait_landed(END_S)
        of_session = f"WHERE session_id = '{session.session_id}'"
        statuses = f"SELECT status, count() FROM {{db}}.v_transactions {of_session} GROUP BY status ORDER BY status"
        counts = dict(rig.pipeline.sql(statuses))
        assert (counts["committed"], counts["pending"]) == (f"{accepted}", "1")  # the dead writer's
        pending = f"SELECT agent_id, committed_at, started_at > 0 FROM {{db}}.v_transactions {of_session}"
        assert rig.pipeline.sql(f"{pending} AND status = 'pending'") == [["dead", "\\N", "1"]]
        session.close()
    rig.pipeline.wait_landed(END_S)
    ended = f"SELECT status, reason_code, rolled_back_at >= started_at FROM {{db}}.v_transactions {of_session}"
    assert rig.pipeline.sql(f"{ended} AND agent_id = 'dead'") == [["rolled_back", "session_ended", "1"]]
    events = [event for event in read_events(kafka) if isinstance(event, Event)]
    sent = sum(isinstance(event.payload, TxnCommitted) for event in events)
    assert rig.rejections() == [("txn_committed", "version_conflict")] * (sent - accepted)


def test_a_plan_outlives_kill_9_and_is_made_anew_only_where_it_failed(rig: ExamplesRig) -> None:
    """R-004-52, by a real kill -9: three processes, and a plan that fails in the second one."""
    session_id = new_session_id()
    module = "tests.support.planning_agent"
    first = kill_once_it_says(rig.start_program(module, session_id, "collect", "first"), "does collect")
    second = kill_once_it_says(rig.start_program(module, session_id, "look up", "again"), "does look up")
    *third, result = rig.run_program(module, session_id, "-", "again").splitlines()
    assert first == ["asked for a plan without None", "does collect"]
    assert second == ["does collect", "does search", "asked for a plan without search", "does look up"]
    assert third == ["does look up", "does write"]  # it asks for no plan
    assert json.loads(result) == ["done collect", "done look up", "done write"]
    assert rig.rejections() == []
    rig.pipeline.wait_landed(END_S)
    of_run = f"WHERE session_id = '{session_id}' AND run_id = 'r'"
    plans = (
        "SELECT event_type, JSONExtractString(payload_json, 'plan_json'), JSONExtractString(payload_json, 'reason') "
        f"FROM {{db}}.v_run_events {of_run} AND event_type LIKE 'plan_%' ORDER BY source_offset"
    )
    later = '["collect","look up","write"]'
    assert rig.pipeline.sql(plans) == [
        ["plan_recorded", '["collect","search","write"]', ""],
        ["plan_replaced", later, "LookupError: the tool search is gone"],
    ]
    assert rig.pipeline.sql(f"SELECT plan, status FROM {{db}}.v_runs {of_run}") == [[later, "completed"]]
