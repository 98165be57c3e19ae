"""The pages by which people let sessions change their service."""

from pathlib import Path
from typing import Any

import pytest

from sessionary.schemas.events import SessionMigrationOffered, SessionTakenOver
from tests.core.stream_processors.api.api_server import Server
from tests.core.stream_processors.api.operators.test_session_events import Kafka, act, tell
from tests.support.event_factory import EventFactory

OFFER = {"to": "shipping", "ttl_ms": 30_000, "reason": "the host goes away"}
CLAIM = {"for": "shipping", "reason": "billing sends nonsense"}


def test_an_operator_offers_a_session_and_calls_it_off(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        offered = await act(server, kafka, "migrate", OFFER)
        assert (offered.status, offered.body["step"], offered.body["to"]) == (200, "offered", "shipping")
        again = await act(server, kafka, "migrate", OFFER)
        assert (again.status, again.body["reason"]) == (409, "migration_open")
        aborted = await act(server, kafka, "abort-migration")
        assert (aborted.status, aborted.body["step"]) == (200, "aborted")
        assert aborted.body["migration_id"] == offered.body["migration_id"]
        none_left = await act(server, kafka, "abort-migration")
        assert (none_left.status, none_left.body["reason"]) == (409, "unknown_migration")

    kafka = tell(tmp_path, story)
    event = kafka.sent[0]
    assert isinstance(event.payload, SessionMigrationOffered)
    assert (event.payload.as_operator, event.payload.reason, event.payload.ttl_ms) == (True, OFFER["reason"], 30_000)
    row = kafka.rig.row_of(kafka.agent)
    assert row.migration is not None
    assert (row.migration.step, row.migration.reason_code, row.state) == ("aborted", "called_off", "Active")


def test_a_request_with_the_same_key_offers_once(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        first, second = [await act(server, kafka, "migrate", OFFER, key="k1") for _ in range(2)]
        assert first.body == second.body

    assert len(tell(tmp_path, story).sent) == 1


def test_a_request_that_is_repeated_after_its_event_has_the_same_answer(tmp_path: Path) -> None:
    """The caller may not have had the first answer; the migration is over by its own event."""

    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, "migrate", OFFER)).status == 200
        first, second = [await act(server, kafka, "abort-migration", key="k2") for _ in range(2)]
        assert (first.status, first.body["step"]) == (200, "aborted")
        assert second.body == first.body

    assert len(tell(tmp_path, story).sent) == 2


@pytest.mark.parametrize(
    "body",
    [
        {"reason": "x"},
        {"to": "no name", "reason": "x"},
        {"to": 5, "reason": "x"},
        {"to": "shipping"},
        {"to": "shipping", "reason": "x", "ttl_ms": 999},
        {"to": "shipping", "reason": "x", "ttl_ms": "60"},
    ],
)
def test_what_cannot_be_offered_is_a_bad_request(tmp_path: Path, body: dict[str, Any]) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, "migrate", body)).status == 400

    assert tell(tmp_path, story).sent == []


def test_an_operator_claims_a_session_whose_owner_is_alive(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        claimed = await act(server, kafka, "claim", CLAIM, key="k1")
        assert (claimed.status, claimed.body["owner_service"], claimed.body["epoch"]) == (200, "shipping", 2)
        assert (claimed.body["state"], claimed.body["verdict"]["outcome"]) == ("Active", "applied")
        assert (await act(server, kafka, "claim", CLAIM, key="k1")).body == claimed.body

    kafka = tell(tmp_path, story)
    (event,) = kafka.sent
    assert event.payload == SessionTakenOver(CLAIM["reason"], as_operator=True)
    assert (event.envelope.service_id, event.envelope.actor) == ("shipping", "on-call")
    (line,) = kafka.rig.last_audits()
    assert (line.kind, line.actor, line.owner_service) == ("take_over", "on-call", "shipping")
    assert kafka.rig.send(kafka.agent, "message_appended", {"epoch": 1}) == "rejected stale_epoch"
    taker = EventFactory(service="shipping", producer="q")
    taker.epoch = 2
    assert kafka.rig.send(taker, "session_taken_over") == "applied"


def test_a_session_that_ended_is_not_claimed(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, "cancel")).status == 200
        rejected = await act(server, kafka, "claim", CLAIM)
        assert (rejected.status, rejected.body["reason"]) == (409, "illegal_transition")

    tell(tmp_path, story)


@pytest.mark.parametrize(
    "body", [{"for": "shipping"}, {"reason": "x"}, {"for": "no name", "reason": "x"}, {"for": ["a"], "reason": "x"}]
)
def test_a_claim_names_a_service_and_a_reason(tmp_path: Path, body: dict[str, Any]) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, "claim", body)).status == 400

    assert tell(tmp_path, story).sent == []


@pytest.mark.parametrize(("action", "body"), [("migrate", OFFER), ("abort-migration", OFFER), ("claim", CLAIM)])
def test_only_operators_may(tmp_path: Path, action: str, body: dict[str, Any]) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, action, body, auth=b"Bearer token")).status == 403
        assert (await act(server, kafka, action, body, auth=b"Bearer unknown")).status == 401

    assert tell(tmp_path, story).sent == []
