"""Clients of one real processor: a whole flow, several agents of a session, several tenants.

They share its topics, so each looks at what its own sessions left.
"""

import hashlib
import json
import uuid
from pathlib import Path

import pytest

from sessionary.producers import Json, Limits, Session, SessionClient, SessionLost, tool
from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionPhaseChanged, StateUpdated
from sessionary.schemas.records import AuditRecord, RejectedEvent
from tests.integration.pipeline_rig import OTHER, OTHER_TOKEN, TENANT, PipelineRig
from tests.support.reading import read_events, read_records

LIMITS = Limits(tool_ms=120_000, override=True)
PRICES = {"bread": 3, "milk": 2}
A_CALL = ["tool_call_started", "tool_call_succeeded", "state_updated"]
FLOW = ["session_created", "validating", "connecting", "session_started", *A_CALL * 3, "session_terminated"]


@tool(effect="read", deadline=120)
def list_items() -> list[str]:
    return sorted(PRICES)


@tool(effect="read", deadline=120)
def find_prices(items: list[str]) -> list[int]:
    return [PRICES[item] for item in items]


@tool(effect="write", deadline=120)
def book_total(prices: list[int]) -> int:
    return sum(prices)


def live(client: SessionClient, pipeline: PipelineRig) -> tuple[Session, list[str]]:
    """Have a session from its start to its end; return it, and what its agent did."""
    did: list[str] = []

    def call(name: str, result: Json) -> Json:
        session.update_state({**session.state, name: result})
        did.append(name)
        return result

    created = client.create(user_id="ann", state={}, limits=LIMITS)
    assert uuid.UUID(created.session_id).variant == uuid.RFC_4122
    with created.start(validate=lambda: did.append("configure"), connect=lambda: did.append("connect")) as session:
        items = call("items", list_items())
        prices = call("prices", find_prices(items))
        call("total", book_total(prices))
        session.records.verify()
        compare(session, pipeline, "Active")
        did.append("verify")
    session.sync()
    return session, did


def compare(session: Session, pipeline: PipelineRig, state: str) -> None:
    """Compare version and hash of the content that the agent has with those of the table's row."""
    row = pipeline.ask(session.session_id)
    known = json.dumps(session.state, sort_keys=True, separators=(",", ":"))
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in (known, row["state_json"])]
    assert (row["state"], row["version"], hashes[1]) == (state, session.version, hashes[0])


def events_of(pipeline: PipelineRig, *session_ids: str) -> list[Event]:
    events = [event for event in read_events(pipeline.kafka) if isinstance(event, Event)]
    return [event for event in events if event.envelope.session_id in session_ids]


def audits_of(pipeline: PipelineRig, *session_ids: str) -> list[AuditRecord]:
    """Return the audit records of these sessions, and those of no session."""
    records = read_records(pipeline.kafka, pipeline.kafka.topics.audit)
    return [record for record in records if isinstance(record, AuditRecord) and record.session_id in (*session_ids, "")]


def rejected_of(pipeline: PipelineRig, session_id: str) -> list[RejectedEvent]:
    """Return what was rejected of a session, and of no session."""
    records = read_records(pipeline.kafka, pipeline.kafka.topics.rejected)
    return [
        record for record in records if isinstance(record, RejectedEvent) and record.session_id in (session_id, None)
    ]


def test_a_client_goes_from_its_start_by_calls_and_a_verification_to_its_end(
    pipeline: PipelineRig, tmp_path: Path
) -> None:
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="shop", agent_id="shopper", settings=settings) as client:
        session, did = live(client, pipeline)
    assert did == ["configure", "connect", "items", "prices", "total", "verify"]
    assert (session.version, session.state) == (4, {"items": ["bread", "milk"], "prices": [3, 2], "total": 5})
    compare(session, pipeline, "Terminated")
    assert pipeline.ask(session.session_id)["limits"]["tool_ms"] == LIMITS.tool_ms

    sent = [event for event in read_events(pipeline.kafka) if isinstance(event, Event)]
    events = [event for event in sent if event.envelope.producer_id == client.producer_id]
    assert {event.envelope.session_id for event in events} == {session.session_id}
    assert events == events_of(pipeline, session.session_id)
    steps = [
        event.payload.phase if isinstance(event.payload, SessionPhaseChanged) else event.envelope.event_type
        for event in events
    ]
    assert [step for step in steps if step in FLOW] == FLOW
    assert rejected_of(pipeline, session.session_id) == []


def test_three_steps_of_a_workflow_share_a_shopping_list(pipeline: PipelineRig, tmp_path: Path) -> None:
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

        # The planner did not sync: its update is based on an old version and is rejected, in the
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

    rejected = [record for record in audits_of(pipeline, planned.session_id) if record.kind == "rejection"]
    assert [(r.reason_code, r.agent_id) for r in rejected] == [("version_conflict", "planner")]
    sent = [event.envelope for event in events_of(pipeline, planned.session_id)]
    assert {envelope.agent_id for envelope in sent if envelope.event_type != "heartbeat"} == {"planner", "buyer"}


def test_an_update_is_one_event_and_the_processor_applies_it(pipeline: PipelineRig, tmp_path: Path) -> None:
    settings = pipeline.client_settings(tmp_path, "agent")
    with SessionClient(tenant_id=TENANT, service_id="shop", agent_id="a", settings=settings) as client:
        session = client.session(user_id="u", state={"n": 0}, data_classes=("personal",))
        session.update_state({"n": 1})
        view = session.sync()
        assert (view.version, view.data_classes) == (2, ("personal",))
        session.update_state({"n": 2})
        assert session.sync().version == 3
    events = events_of(pipeline, session.session_id)
    updates = [event.payload.updating_at is not None for event in events if isinstance(event.payload, StateUpdated)]
    assert updates == [True, True]
    types = [event.envelope.event_type for event in events]
    assert types.count("session_phase_changed") == 2, "those of the start alone"
    assert rejected_of(pipeline, session.session_id) == []


def test_two_tenants_of_one_producer_are_judged_apart(pipeline: PipelineRig, tmp_path: Path) -> None:
    settings = pipeline.client_settings(tmp_path, "agent")
    with SessionClient(tenant_id=TENANT, service_id="shop", agent_id="agent", settings=settings) as client:
        other = client.for_tenant(OTHER, api_token=OTHER_TOKEN)
        sessions = {TENANT: client.create(user_id="u").start(), OTHER: other.create(user_id="u").start()}
        for session in sessions.values():
            session.pause()
            session.resume()  # each tenant's own token tells its verdict
        with pytest.raises(SessionLost):
            client.attach(sessions[OTHER].session_id)
        with pytest.raises(SessionLost):
            other.attach(sessions[TENANT].session_id)
        other.close()  # of its own sessions it ends none, and it leaves the producer to the other
        third = client.create(user_id="u").start()
        for session in (sessions[TENANT], third):
            session.close()
        assert client.flush(120) == 0
        assert client.counters.rejected == 0
    ids = {tenant: session.session_id for tenant, session in sessions.items()}
    ours = (*ids.values(), third.session_id)
    sent = [event.envelope for event in events_of(pipeline, *ours)]
    assert {envelope.producer_id for envelope in sent} == {client.producer_id}
    assert {each.tenant_id for each in sent if each.session_id == ids[OTHER]} == {OTHER}
    audits = audits_of(pipeline, *ours)
    assert {(each.tenant_id, each.session_id) for each in audits} >= {*ids.items()}
    assert [each for each in audits if each.kind == "rejection"] == []
    assert "Terminated" not in {each.to_state for each in audits if each.tenant_id == OTHER}
