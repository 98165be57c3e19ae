"""Several agents share a session: each sees the others' writes, and stale writes are refused."""

from pathlib import Path

import pytest

from sessionary.producers import SessionClient, SessionLost
from sessionary.schemas.codec import Event
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig
from tests.support.processes import Processes
from tests.support.reading import read_events, read_records


def test_three_steps_of_a_workflow_share_a_shopping_list(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()

    def agent(name: str) -> SessionClient:
        settings = pipeline.client_settings(tmp_path, name)
        return SessionClient(tenant_id=TENANT, service_id="shop", agent_id=name, settings=settings)

    with agent("planner") as first, agent("reader") as second, agent("buyer") as third:
        planned = first.create(user_id="u", state={"shopping_list": []}).start()
        assert planned.update_state({"shopping_list": ["milk", "bread"]}) == 2
        assert planned.sync().version == 2

        read = second.attach(planned.session_id)
        view = read.sync()
        assert (read.state, view.version) == (planned.state, 2)

        bought = third.attach(planned.session_id)
        assert bought.update_state({"shopping_list": []}) == 3
        assert bought.sync().version == 3
        assert read.sync().version == 3
        assert read.state == {"shopping_list": []}

        # The planner did not sync: its update is based on an old version and is refused, in the
        # middle of its phases. After a sync the planner continues from there.
        planned.update_state({"shopping_list": ["eggs"]})
        view = planned.sync()
        assert (view.version, view.verdict and view.verdict.reason) == (3, "version_conflict")
        assert read.sync().version == 3
        assert planned.update_state({"shopping_list": ["eggs"]}) == 4
        planned.close()
        planned.sync()
        assert (read.sync().state, read.sync().version) == ("Terminated", 4)

        with pytest.raises(SessionLost):
            second.attach("0b0e7f0a-0000-4000-8000-000000000000")

    refused = [r for r in read_records(kafka, kafka.topics.audit) if isinstance(r, AuditRecord) and r.kind == "refusal"]
    assert [(r.reason_code, r.agent_id) for r in refused] == [("version_conflict", "planner")]
    events = [event.envelope for event in read_events(kafka) if isinstance(event, Event)]
    assert {envelope.agent_id for envelope in events if envelope.event_type != "heartbeat"} == {"planner", "buyer"}


def test_an_update_is_one_event_and_the_processor_applies_it(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path, "agent")
    with SessionClient(tenant_id=TENANT, service_id="shop", agent_id="a", settings=settings) as client:
        session = client.session(user_id="u", state={"n": 0}, data_classes=("personal",))
        session.update_state({"n": 1})
        view = session.sync()
        assert (view.version, view.data_classes) == (2, ("personal",))
        session.update_state({"n": 2})
        assert session.sync().version == 3
    updates = [
        event.payload.updating_at is not None
        for event in read_events(kafka)
        if isinstance(event, Event) and isinstance(event.payload, StateUpdated)
    ]
    assert updates == [True, True]
    types = [event.envelope.event_type for event in read_events(kafka) if isinstance(event, Event)]
    assert types.count("session_phase_changed") == 2, "those of the start alone"
    assert read_records(kafka, kafka.topics.rejected) == []
