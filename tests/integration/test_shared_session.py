"""Several agents share a session: each sees the others' writes, and stale writes are refused."""

from pathlib import Path

import pytest

from sessionary.producers import SessionClient, SessionLost
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.records import AuditRecord, Position
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig
from tests.support.processes import Processes
from tests.support.reading import read_events, read_records, read_topic
from tests.support.waiting import wait_until

DECODER = Decoder()
POSITION_KEY = b"\x00position"


def wait_judged(kafka: KafkaSettings, agent_id: str, events: int) -> None:
    """Wait until the processor has committed this many events of an agent."""

    def is_committed() -> bool:
        decoded = ((stored, DECODER.decode_event(stored.value)) for stored in read_topic(kafka, kafka.topics.events))
        sent = [stored for stored, event in decoded if isinstance(event, Event) and event.envelope.agent_id == agent_id]
        positions = {
            stored.partition: DECODER.decode_record(stored.value)
            for stored in read_topic(kafka, kafka.topics.changelog)
            if stored.key == POSITION_KEY
        }
        ends = {n: position.next_offset for n, position in positions.items() if isinstance(position, Position)}
        return len(sent) >= events and all(stored.offset < ends.get(stored.partition, 0) for stored in sent)

    wait_until(is_committed, 30, f"{events} events of {agent_id} to be judged", pause_s=0.2)


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
        wait_judged(kafka, "planner", 7)

        read = second.attach(planned.session_id)
        view = read.sync()
        assert (read.state, view.version) == (planned.state, 2)

        bought = third.attach(planned.session_id)
        assert bought.update_state({"shopping_list": []}) == 3
        wait_judged(kafka, "buyer", 3)
        assert read.sync().version == 3
        assert read.state == {"shopping_list": []}

        # The planner did not sync: its update is based on an old version and is refused, in the
        # middle of its phases. After a sync the planner continues from there.
        planned.update_state({"shopping_list": ["eggs"]})
        wait_judged(kafka, "planner", 10)
        assert read.sync().version == 3
        assert planned.sync().version == 3
        assert planned.update_state({"shopping_list": ["eggs"]}) == 4
        planned.close()
        wait_judged(kafka, "planner", 12)
        assert (read.sync().state, read.sync().version) == ("Terminated", 4)

        with pytest.raises(SessionLost):
            second.attach("0b0e7f0a-0000-4000-8000-000000000000")

    refused = [r for r in read_records(kafka, kafka.topics.audit) if isinstance(r, AuditRecord) and r.kind == "refusal"]
    assert [(r.reason_code, r.agent_id) for r in refused] == [("version_conflict", "planner")]
    events = [event.envelope for event in read_events(kafka) if isinstance(event, Event)]
    assert {envelope.agent_id for envelope in events} == {"planner", "buyer"}
