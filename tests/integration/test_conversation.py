"""One session of two services: its turns and tool results, as its rows and ClickHouse have them."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from sessionary.producers import SessionClient, StateMismatch, tool
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.sink_kinds import SinkKind
from tests.integration.pipeline_rig import TENANT, PipelineRig, started_pipeline
from tests.integration.sink_rig import settings_for, sink_in_thread
from tests.support.processes import Processes
from tests.support.waiting import wait_until

SINKS: Sequence[SinkKind] = ("audit", "history", "rejected")
TURNS = [
    ("user", "What will May bring?", "billing"),
    ("tool", '{"april":7}', "billing"),
    ("assistant", "8, says the forecast", "forecasts"),
]


@tool(name="read_revenue", effect="read", key=lambda: "revenue")
def read_revenue() -> dict[str, int]:
    return {"april": 7}


@tool(name="forecast", effect="write", key=lambda: "forecast")
def forecast() -> int:
    return 8


class TwoServices:
    """A session of the service `billing`, in which `forecasts` works too."""

    def __init__(self, pipeline: PipelineRig, folder: Path) -> None:
        self._pipeline, self._folder = pipeline, folder
        self.first, self.second = self._client("billing"), self._client("forecasts")

    def _client(self, service: str) -> SessionClient:
        settings = self._pipeline.client_settings(self._folder, service)
        return SessionClient(tenant_id=TENANT, service_id=service, agent_id=f"{service}-1", settings=settings)

    def work(self) -> str:
        """Have three turns and two tool calls, the second of each by the other service."""
        with self.first.create(user_id="ann", state={"month": "april"}).start() as session:
            session.message("user", "What will May bring?")
            session.conversation.add_result("read_revenue", read_revenue())
            session.update_state({"month": "may"})
            session.records.verify()
            self._forecast(session.session_id)
            assert [(turn.role, turn.content, turn.service_id) for turn in session.conversation.read()] == TURNS
            self._mismatch(session.session_id)
            session.sync()
            session.lifecycle.detach()
            return session.session_id

    def _forecast(self, session_id: str) -> None:
        with self.second.attach(session_id) as shared:
            shared.message("assistant", f"{forecast()}, says the forecast")
            shared.sync()
            shared.lifecycle.detach()

    def _mismatch(self, session_id: str) -> None:
        """Another object of the session that has not heard of an update does not agree."""
        stale, newer = self.first.attach(session_id), self.first.attach(session_id)
        newer.update_state({"month": "june"})
        with pytest.raises(StateMismatch) as found:
            stale.records.verify()
        assert (found.value.known[0], found.value.committed[0]) == (2, 3)
        stale.sync()
        stale.records.verify()
        stale.lifecycle.detach()
        newer.lifecycle.detach()


def test_a_session_of_two_services_shows_all_turns_and_results_in_its_rows_and_in_clickhouse(
    kafka: KafkaSettings, tables: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = started_pipeline(kafka, processes, tables)
    services = TwoServices(pipeline, tmp_path)
    with services.first, services.second:
        session_id = services.work()
    reported = pipeline.ask(f"{session_id}/conversation?last=200")
    assert [(turn["role"], turn["content"], turn["service_id"]) for turn in reported["messages"]] == TURNS
    calls = {call["idem_key"]: call["state"] for call in pipeline.ask(f"{session_id}/execution")["tool_calls"]}
    assert calls == {"revenue": "succeeded", "forecast": "succeeded"}
    results = {key: pipeline.ask(f"{session_id}/tool-calls/{key}")["result_json"] for key in calls}
    assert results == {"revenue": '{"april":7}', "forecast": "8"}
    assert pipeline.ask(session_id)["state_json"] == '{"month":"june"}'

    where = f"FROM {{{{db}}}}.{{}} WHERE session_id = '{session_id}'"
    with ExitStack() as sinks:
        for kind in SINKS:
            sinks.enter_context(sink_in_thread(kind, settings_for(kafka, tables)))
        wait_until(
            lambda: pipeline.sql(f"SELECT count() {where.format('v_messages')}") == [["3"]],
            60,
            "all turns",
            pause_s=0.5,
        )
        pipeline.wait_landed()
    turns = pipeline.sql(f"SELECT turn, role, service_id {where.format('v_messages')} ORDER BY turn")
    assert turns == [[f"{n}", role, service] for n, (role, _, service) in enumerate(TURNS, 1)]
    found = pipeline.sql(f"SELECT tool_name, result, service_id {where.format('v_reserved_calls')} ORDER BY tool_name")
    assert found == [["forecast", "8", "forecasts"], ["read_revenue", '{"april":7}', "billing"]]
    assert pipeline.sql(f"SELECT services {where.format('v_sessions')}") == [["['billing','forecasts']"]]
