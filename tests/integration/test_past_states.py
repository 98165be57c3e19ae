"""States at a point: what a processor held before `kill -9` is what is told after it.

From each source: the row, the log in Kafka, and ClickHouse.
"""

import json
import signal
import time
import urllib.error
from contextlib import ExitStack, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurements.past import insert_session
from benchmarks.workload.long_session import LongSession
from sessionary.infra.cli.app import run as run_command
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.past_rows import PastRows
from sessionary.producers import SessionClient, tool
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.core.past import Point
from sessionary.stream_processors.errors import PointUnknown
from tests.core.past_rig import PastRig
from tests.core.store_rig import SETTINGS
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig, started_pipeline
from tests.integration.sink_rig import settings_for, sink_in_thread
from tests.support.event_factory import EventFactory
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

SAME = ("row", "row_hash", "children", "position", "state")


def held_now(pipeline: PipelineRig, session_id: str) -> dict[str, Any]:
    """Return the state at the last folded record, as the owner's row has it now."""
    found: list[dict[str, Any]] = []

    def is_told_by_row() -> bool:
        # A tick may come between the two questions: then the log would tell it.
        offset = pipeline.ask(session_id)["position"]["next_offset"] - 1
        try:
            found.append(pipeline.ask(f"{session_id}/at?offset={offset}&fold=false"))
        except urllib.error.HTTPError:
            return False
        return bool(found[-1]["source"] == "row")

    wait_until(is_told_by_row, 120, "the row to tell the state")
    return found[-1]


def work(pipeline: PipelineRig, client: SessionClient, n: int) -> tuple[str, list[dict[str, Any]]]:
    """Work in a session; return its id and the states that its owner held on the way."""
    held: list[dict[str, Any]] = []
    with client.create(user_id="ann", state={"n": n}, snapshots=True).start() as session:
        for step in range(2):
            session.message("user", f"step {step} of {n}")
            search(n)
            session.update_state({"n": n, "step": step})
            session.sync()
            held.append(held_now(pipeline, session.session_id))
        session.pause("a break")
        session.sync()
        held.append(held_now(pipeline, session.session_id))
        session.resume()
        session.sync()
        return session.session_id, held


@tool(effect="read")
def search(number: int) -> list[str]:
    return [f"found {number}"]


def command(*arguments: str) -> list[dict[str, Any]]:
    out = TextIOWrapper(BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(out):
        assert run_command(["session", *arguments, "--json"]) == 0
    out.seek(0)
    return [json.loads(line) for line in out.read().splitlines()]


@pytest.mark.parametrize("sessions", [2, 100])
def test_after_kill_9_every_source_tells_the_states_that_the_processor_held(
    kafka: KafkaSettings,
    tables: ClickHouseSettings,
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sessions: int,
) -> None:
    """R-003-12, R-003-56, R-003-74: the sources are tried in order, and the answer names one."""
    pipeline = started_pipeline(kafka, processes, tables)
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="billing-1", settings=settings) as client:
        worked = dict(work(pipeline, client, n) for n in range(sessions))
        pipeline.processor.signal(signal.SIGKILL)
        pipeline.start_processor(instance="w2")
        for session_id, held in worked.items():
            for state in held:
                told = pipeline.ask(f"{session_id}/at?offset={state['position']['offset']}")
                assert told["source"] == "log"
                assert {name: told[name] for name in SAME} == {name: state[name] for name in SAME}
                assert told["check"]["verdict"] == "equal"
                assert told["check"]["equal"] >= 2
        session_id, held = next(iter(worked.items()))
        paused = held[-1]["row"]["snapshot"]["snapshot_id"]
        assert pipeline.ask(f"{session_id}/at?snapshot={paused}")["row"]["state"] == "Paused"

    with ExitStack() as sinks:
        for kind in ("audit", "history"):
            sinks.enter_context(sink_in_thread(kind, settings_for(kafka, tables)))
        pipeline.wait_landed(kinds=("audit", "history"))
    variables = environment(kafka, tables, api_tokens=json.dumps({TOKEN: TENANT}))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for session_id, held in worked.items():
        for state in held:
            (told,) = command("at", session_id, "--offset", str(state["position"]["offset"]))
            assert told["source"] == "clickhouse"
            assert {name: told[name] for name in SAME} == {name: state[name] for name in SAME}
            assert told["check"]["verdict"] == "equal"
    points = [f"offset:{state['position']['offset']}" for state in held[:2]]
    changed = {line["field"]: (line["before"], line["after"]) for line in command("diff", session_id, *points)}
    n = sessions - 1
    assert changed["session.state_json"] == (f'{{"n":{n},"step":0}}', f'{{"n":{n},"step":1}}')
    assert changed["session.version"] == (2, 3)
    assert changed["MessageState[2].content"] == (None, f"step 1 of {n}")
    chain = command("snapshots", session_id)
    ids = [line["snapshot_id"] for line in chain]
    assert [line["side"] for line in chain] == ["", *["before", "succeeded"] * 2, "", ""]
    assert [line["parent_snapshot_id"] for line in chain] == ["", *ids[:-1]]
    assert [line["snapshot"]["snapshot_id"] for line in chain] == ids
    assert "delta" in {line["encoding"] for line in chain}
    assert {line["snapshot"]["encoding"] for line in chain} == {"full"}
    steps = [json.loads(line["snapshot"]["state_json"]).get("step") for line in chain]
    assert steps == [None, None, None, 0, 0, 1, 1]
    paused_there = held[-1]["row"]["snapshot"]
    assert {**chain[5]["snapshot"], "body": None} == paused_there
    monkeypatch.setenv("SESSIONARY_CONTROL_URL", pipeline.control_url)
    (told,) = command("at", session_id, "--offset", str(held[0]["position"]["offset"]))
    assert told["source"] == "memory"


def test_a_state_from_clickhouse_knows_what_was_no_event_under_the_session_s_key(tables: ClickHouseSettings) -> None:
    """Such a record has no session in its row, and its rejection is in the session's."""
    rig, agent = PastRig(), EventFactory("s")
    rig.at = int(time.time() * 1_000) - 3_600_000
    rig.start(agent)
    assert rig.append(agent.key.encoded(), b"junk").startswith("rejected")
    assert rig.send(agent, "state_updated") == "applied"
    assert rig.send(agent, "session_paused") == "applied"
    insert_session(tables, LongSession(agent.key, rig.log, rig.trail, rig.fold.position), "junk")
    rows = PastRows(ClickHouseClient(tables), SETTINGS)
    for offset in range(rig.offset):
        point = Point("offset", offset)
        (found,), _ = rows.states_at(agent.key, [point])
        assert (found.row, found.check) == (rig.past(agent, point).row, rig.past(agent, point).check)
    assert found.check.equal == 3
    for beyond in (rig.offset, 2**64 + 1):  # the second one is beyond what ClickHouse can count, too
        with pytest.raises(PointUnknown, match=f"up to offset {rig.offset - 1}, not offset {beyond}"):
            rows.states_at(agent.key, [Point("offset", beyond)])
    with pytest.raises(PointUnknown, match=r"is folded up to time .*, not time 2200-01-01T00:00:00\.000Z"):
        rows.states_at(agent.key, [Point("time", 7_258_118_400_000)])
