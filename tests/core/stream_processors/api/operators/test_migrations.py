"""The pages by which people let sessions migrate."""

from pathlib import Path
from typing import Any

import pytest

from sessionary.schemas.events import SessionMigrationOffered
from tests.core.stream_processors.api.api_server import Server
from tests.core.stream_processors.api.operators.test_people import Kafka, act, tell

OFFER = {"to": "shipping", "ttl_ms": 30_000, "reason": "the host goes away"}


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


@pytest.mark.parametrize("action", ["migrate", "abort-migration"])
def test_only_operators_may(tmp_path: Path, action: str) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, action, OFFER, auth=b"Bearer token")).status in (401, 403)

    assert tell(tmp_path, story).sent == []
