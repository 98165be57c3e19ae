"""Each page of a session takes its id in each form, and the text that was given as its id."""

import asyncio
import json
import time
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from sessionary.infra.local.ports import free_ports
from sessionary.schemas.ids import SessionKey, given_session_id, partition_of
from sessionary.stream_processors.core.partition import PartitionState
from tests.core.oracle_rig import DECODER, FIRST_POSITION, SETTINGS, OracleRig
from tests.core.stream_processors.api.api_server import FakeAssignment, running_server
from tests.support.event_factory import EventFactory
from tests.support.judges import JUDGE

PARTITIONS = 4
CANONICAL = "0b6e4f5a-93c1-4d8e-a7b2-5f0c9d1e2a3b"
FORMS = (CANONICAL, CANONICAL.upper(), CANONICAL.replace("-", ""), f"urn:uuid:{CANONICAL}")
TEXTS = ("thread-42", "a/b:c?d#e f%g", "Grüße")


class Owner:
    """Owns one partition; what a session's page asks of it."""

    def __init__(self, partition: int) -> None:
        self.partition, self.is_readable, self.committed_s = partition, True, time.monotonic()
        self.accesses: list[Any] = []
        self.recent_verdicts = SimpleNamespace(find=lambda *_: None)
        self.state = PartitionState(partition, SETTINGS, DECODER, JUDGE)
        self.state.load_position(FIRST_POSITION._replace(next_offset=100))

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        return offset < self.state.position.next_offset

    async def wait_until_merged(self, timeout_s: float) -> bool:
        return True


@pytest.fixture
def owners() -> list[Owner]:
    """The owners of four partitions with a session of each id."""
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    owners = [Owner(n) for n in range(PARTITIONS)]
    for text in (CANONICAL, *TEXTS):
        given = given_session_id("acme", text)
        key = SessionKey("acme", given.session_id)
        row = rig.row_of(agent)._replace(tenant_id="acme", session_id=key.session_id, user_id="u1")
        row = row._replace(external_id=given.external_id)
        owners[partition_of(key.encoded(), PARTITIONS)].state.load(key.encoded(), row)
    for owner in owners:
        owner.state.finish_loading()
    return owners


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_sessions_pages_take_each_form_of_its_id(tmp_path: Path, owners: list[Owner], place: str) -> None:
    ports = free_ports(2)
    urls = dict.fromkeys(range(PARTITIONS), f"http://127.0.0.1:{ports[place == 'elsewhere']}")
    idle, full = FakeAssignment(), FakeAssignment()
    full.owners = dict(enumerate(owners))
    first, second = (full, idle) if place == "here" else (idle, full)

    async def story() -> None:
        async with (
            running_server(tmp_path / "w1", first, urls, "w1", ports[0]) as server,
            running_server(tmp_path / "w2", second, urls, "w2", ports[1]),
        ):
            for given in (*FORMS, *TEXTS):
                answer = await server.ask(f"/v1/sessions/{quote(given, safe='')}".encode())
                assert answer.status == 200, (given, answer)
                found = given_session_id("acme", given)
                assert (answer.body["session_id"], answer.body["external_id"]) == found
                assert answer.body["user_id"] == "u1"
            wrong = await server.ask(f"/v1/sessions/{quote('a' * 257)}".encode())
            assert (wrong.status, wrong.body["reason"]) == (400, "invalid_value")
            control = await server.ask(b"/v1/sessions/a%0Ab")
            assert (control.status, control.body["reason"]) == (400, "invalid_value")
            unknown = await server.ask(b"/v1/sessions/thread-43")
            assert (unknown.status, unknown.body["reason"]) == (404, "unknown_session")

    asyncio.run(story())


def test_the_list_and_the_poll_take_a_text_too(tmp_path: Path, owners: list[Owner]) -> None:
    (port,) = free_ports(1)
    decomposed = unicodedata.normalize("NFD", "Grüße")
    urls = dict.fromkeys(range(PARTITIONS), f"http://127.0.0.1:{port}")
    full = FakeAssignment()
    full.owners = dict(enumerate(owners))

    async def story() -> None:
        async with running_server(tmp_path, full, urls, "w1", port) as server:
            listed = await server.ask(f"/v1/sessions?external_id={quote(decomposed)}".encode())
            assert [row["external_id"] for row in listed.body["sessions"]] == ["Grüße"]
            none = await server.ask(b"/v1/sessions?external_id=thread-43")
            assert none.body["sessions"] == []
            every = await server.ask(b"/v1/sessions")
            assert {row["external_id"] for row in every.body["sessions"]} == {None, *TEXTS}
            asked = {"sessions": [{"session_id": "thread-42", "state": ""}]}
            body = json.dumps(asked).encode()
            head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
            polled = await server.send(
                b"POST /v1/sessions/poll HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer token\r\n" + head + b"\r\n" + body
            )
            assert polled.status == 200, polled
            (changed,) = polled.body["sessions"]
            assert changed["session_id"] == given_session_id("acme", "thread-42").session_id

    asyncio.run(story())
