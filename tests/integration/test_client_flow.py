"""A client's whole flow, from its start to the end of its session, judged by a real processor."""

import hashlib
import json
import uuid
from pathlib import Path

from sessionary.producers import Json, Limits, Session, SessionClient, tool
from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionPhaseChanged
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig
from tests.support.processes import Processes
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


def test_a_client_goes_from_its_start_by_calls_and_a_verification_to_its_end(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="shop", agent_id="shopper", settings=settings) as client:
        session, did = live(client, pipeline)
    assert did == ["configure", "connect", "items", "prices", "total", "verify"]
    assert (session.version, session.state) == (4, {"items": ["bread", "milk"], "prices": [3, 2], "total": 5})
    compare(session, pipeline, "Terminated")
    assert pipeline.ask(session.session_id)["limits"]["tool_ms"] == LIMITS.tool_ms

    events = [event for event in read_events(kafka) if isinstance(event, Event)]
    assert {event.envelope.session_id for event in events} == {session.session_id}
    steps = [
        event.payload.phase if isinstance(event.payload, SessionPhaseChanged) else event.envelope.event_type
        for event in events
    ]
    assert [step for step in steps if step in FLOW] == FLOW
    assert read_records(kafka, kafka.topics.rejected) == []
