"""People say what came of calls of unknown outcome, by `sessionary call`, with real servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.producers import Session, SessionClient, ToolCallUnresolved, tool
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig, brief_limits
from tests.support.metrics_page import metric_value
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import set_environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until


class Killed(BaseException):
    """Stands for SIGKILL in the middle of a call: nothing of it is reported."""


class Orders:
    """A service that cannot be asked; its first call is cut off after it took effect."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.send = tool(name="send", effect="write", deadline=0.5)(self._send)

    def _send(self, order: str) -> str:
        self.sent.append(order)
        raise Killed


class UnknownRig:
    """A processor, sinks, a client, and the commands of a person."""

    def __init__(
        self,
        kafka: KafkaSettings,
        clickhouse: ClickHouseSettings,
        processes: Processes,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        make_tables(clickhouse)
        self.pipeline = PipelineRig(kafka, clickhouse, processes)
        self.pipeline.start_processor()
        self.pipeline.start_sinks(("audit", "history", "rejected"))
        self._capfd = capfd
        control = {"control_url": self.pipeline.control_url, "api_tokens": json.dumps({TOKEN: TENANT})}
        set_environment(monkeypatch, kafka, clickhouse, **control)

    def leave_unknown(self, session: Session, orders: Orders) -> str:
        """Let a detached run make a call that is cut off; return its key once it is listed."""
        work = session.run("order", run_id="r", mode="detached")
        work.__enter__()
        with pytest.raises(Killed):
            orders.send("oak")
        work._leave_metadata()
        wait_until(lambda: bool(self.list_unknown()), 60, "the call to be listed", pause_s=0.5)
        (row,) = self.list_unknown()
        assert (row["session"], row["run"], row["tool"]) == (session.session_id, "r", "send")
        assert json.loads(row["args"]) == {"order": "oak"}
        with pytest.raises(ToolCallUnresolved), session.resume_run("r"):
            orders.send("oak")
        return f"{row['key']}"

    def count_unknown(self) -> float | None:
        """Return how many calls of unknown outcome the worker counts."""
        return metric_value(self.pipeline.api_port, 'sessionary_processor_tool_calls{state="unknown"}')

    def list_unknown(self) -> list[dict[str, Any]]:
        self._capfd.readouterr()
        assert run(["call", "unknown", "--json"]) == 0
        return [json.loads(line) for line in self._capfd.readouterr().out.splitlines()]

    def resolve(self, session: Session, key: str, outcome: str, *more: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code, and what the command prints."""
        self._capfd.readouterr()
        argv = [
            "call",
            "resolve",
            session.session_id[:13],
            key,
            "--outcome",
            outcome,
            "--by",
            "ann",
            "--json",
            *more,
        ]
        code = run(argv)
        said = self._capfd.readouterr()
        return code, json.loads(said.out) if said.out else {"error": said.err}


@pytest.fixture
def rig(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> UnknownRig:
    return UnknownRig(kafka, clickhouse, processes, monkeypatch, capfd)


def test_a_call_that_a_person_resolves_lets_its_run_go_on(rig: UnknownRig, tmp_path: Path) -> None:
    orders = Orders()
    settings = rig.pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        session = client.session(user_id="u")
        key = rig.leave_unknown(session, orders)
        wait_until(lambda: rig.count_unknown() == 1, 60, "the metric to tell the call")
        place = {"session": session.session_id, "run": "r", "key": key}
        reported = {**place, "outcome": "succeeded", "verdict": "applied"}
        assert rig.resolve(session, key, "succeeded", "--result", '"order 7"') == (0, reported)
        wait_until(lambda: rig.count_unknown() == 0, 60, "the metric to tell that none is left")
        with session.resume_run("r") as work:
            work.result = orders.send("oak")
        session.complete()
    assert orders.sent == ["oak"]
    found = "SELECT state, result, resolved_by FROM {db}.v_reserved_calls"
    wait_until(lambda: rig.pipeline.sql(found) == [["succeeded", '"order 7"', "ann"]], 60, "the outcome", pause_s=0.5)
    done = "SELECT status, result FROM {db}.v_runs"
    wait_until(lambda: rig.pipeline.sql(done) == [["completed", '"order 7"']], 60, "the run's end", pause_s=0.5)
    assert rig.list_unknown() == []
    assert rig.pipeline.sql("SELECT actor FROM {db}.v_run_events WHERE event_type = 'tool_call_resolved'") == [["ann"]]
    code, said = rig.resolve(session, key, "failed")
    assert code == 4, said  # there is no such call any more


def test_a_call_of_a_run_that_outlived_its_session_is_resolved_too(rig: UnknownRig, tmp_path: Path) -> None:
    orders = Orders()
    settings = rig.pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        session = client.session(user_id="u", limits=brief_limits(15_000))
        key = rig.leave_unknown(session, orders)
        session.lifecycle.detach()
        wait_until(lambda: rig.pipeline.ask(session.session_id)["state"] == "Terminated", 30, "the session to end")
        code, said = rig.resolve(session, key, "failed")
        assert (code, said.get("verdict")) == (0, "applied"), said
        page = rig.pipeline.ask(f"{session.session_id}/runs/r/tool-calls/{key}")
        assert (page["state"], page["error"]["code"]) == ("failed", "resolved_failed")
        run_page = rig.pipeline.ask(f"{session.session_id}/runs/r")
        assert (run_page["state"], run_page["unresolved_calls"]) == ("running", 0)
    assert orders.sent == ["oak"]
