"""The control API over HTTP: every error is a problem document, also for what is not HTTP."""

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientSession

from sessionary.infra.local.ports import free_port
from sessionary.schemas.ids import new_session_id
from sessionary.stream_processors.access import parse_tokens
from sessionary.stream_processors.api.pages import serve_pages
from sessionary.stream_processors.api.sessions import ControlApi
from sessionary.stream_processors.api.token_store import TokenStore
from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings

SESSION_ID = new_session_id()
PATH = f"/v1/sessions/{SESSION_ID}".encode()
MUTANTS = 400


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: Any

    @property
    def is_problem(self) -> bool:
        """Whether it is a problem document whose parts agree."""
        if self.headers.get("content-type") != "application/problem+json" or not isinstance(self.body, dict):
            return False
        reason = self.body["reason"]
        return bool(self.body["status"] == self.status and self.body["type"] == f"urn:sessionary:problems/{reason}")


class FakeAssignment:
    """Owns nothing."""

    def __init__(self) -> None:
        self.owners: dict[int, Any] = {}
        self.is_ready = True


class FakeGroup:
    """Knows no other worker."""

    def owner_urls(self) -> Mapping[int, str]:
        return {}

    def heartbeat_s(self) -> float:
        return time.monotonic()

    def http_client(self) -> ClientSession:
        raise AssertionError("there is no other worker")


class Server:
    """The control API on Faust's web server; nothing of Kafka runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, raw: bytes) -> Answer:
        """Send a request as it is, read one answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(raw)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            first, *lines = head.decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            length = 0 if raw.startswith(b"HEAD ") else int(headers["content-length"])
            body = await asyncio.wait_for(reader.readexactly(length), 20)
        finally:
            writer.close()
        is_json = "json" in headers["content-type"]
        return Answer(int(first.split()[1]), headers, json.loads(body) if is_json and body else body)

    async def get(
        self, path: bytes = PATH, auth: bytes | None = b"Bearer token", method: bytes = b"GET", more: bytes = b""
    ) -> Answer:
        header = b"" if auth is None else b"Authorization: " + auth + b"\r\n"
        return await self.ask(
            method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + more + b"\r\n"
        )


@asynccontextmanager
async def running_server(folder: Path) -> AsyncIterator[Server]:
    settings = ProcessorSettings(
        api_tokens=parse_tokens({"token": "acme", "op": {"principal": "on-call", "roles": ["operator"]}}),
        api_port=free_port(),
    )
    assignment: Any = FakeAssignment()
    metrics = Metrics()
    web: Any = make_faust_app(settings, str(folder)).web
    serve_pages(
        web, ControlApi(settings, TokenStore(settings, metrics), assignment, metrics, FakeGroup(), lambda: True)
    )
    web.init_server()
    await web.start_server()
    try:
        yield Server(settings.api_port)
    finally:
        await web.stop_server()


CASES: Mapping[str, tuple[dict[str, Any], int, str]] = {
    "no token": ({"auth": None}, 401, "unauthorized"),
    "another token": ({"auth": b"Bearer other"}, 401, "unauthorized"),
    "a token that is not UTF-8": ({"auth": b"Bearer \xff\xfe"}, 401, "unauthorized"),
    "a token that is UTF-8": ({"auth": "Bearer schlüssel".encode()}, 401, "unauthorized"),
    "another scheme": ({"auth": b"Basic token"}, 401, "unauthorized"),
    "no token in the scheme": ({"auth": b"Bearer "}, 401, "unauthorized"),
    "a token without the role": ({"auth": b"Bearer op"}, 403, "forbidden"),
    "another method": ({"method": b"POST"}, 405, "method_not_allowed"),
    "an unknown method": ({"method": b"BREW"}, 400, "bad_request"),
    "an unknown path": ({"path": b"/v2/sessions"}, 404, "not_found"),
    "a zero byte as id": ({"path": b"/v1/sessions/%00"}, 400, "invalid_value"),
    "an id that is not UTF-8": ({"path": b"/v1/sessions/%ff%fe"}, 400, "invalid_value"),
    "a line break in the id": ({"path": PATH + b"%0d%0aX: y"}, 400, "bad_request"),
    "an escaped line break in the id": ({"path": PATH + b"%0d%0aX:%20y"}, 400, "invalid_value"),
    "a slash in the id": ({"path": b"/v1/sessions/a%2fb"}, 400, "invalid_value"),
    "a long id": ({"path": b"/v1/sessions/" + b"a" * 7_000}, 400, "invalid_value"),
    "a path that is too long": ({"path": b"/v1/sessions/" + b"a" * 70_000}, 400, "bad_request"),
    "a word as offset": ({"path": PATH + b"?after=x"}, 400, "invalid_value"),
    "an offset that is not UTF-8": ({"path": PATH + b"?after=%ff:1"}, 400, "invalid_value"),
    "an Arabic number": ({"path": PATH + b"?wait_ms=%d9%a3"}, 400, "invalid_value"),
    "a wait that is too long": ({"path": PATH + b"?wait_ms=1000000000"}, 400, "invalid_value"),
    "a header that is too long": ({"more": b"X: " + b"a" * 70_000 + b"\r\n"}, 400, "bad_request"),
    "a length that is a word": ({"more": b"Content-Length: x\r\n"}, 400, "bad_request"),
    "no partition's owner": ({}, 503, "not_ready"),
}


def test_each_malformed_request_is_answered_with_a_problem_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with running_server(tmp_path) as server:
            for name, (request, status, reason) in CASES.items():
                answer = await server.get(**request)
                assert answer.is_problem, (name, answer)
                assert (answer.status, answer.body["reason"]) == (status, reason), (name, answer)
            assert (await server.get(method=b"POST")).headers["allow"] == "GET,HEAD"
            assert (await server.get(b"/healthz", None)).status == 200
            assert (await server.get(b"/metrics", None)).headers["content-type"].startswith("text/plain")

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_no_mutated_request_fails_and_each_refusal_is_a_problem_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(3)
    whole = b"GET " + PATH + b"?after=0:1&wait_ms=5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    whole += b"Authorization: Bearer token\r\n\r\n"
    seen: Counter[int] = Counter()

    def mutate() -> bytes:
        raw = bytearray(whole)
        # Half of the mutants have their faults in the token only: others are often no HTTP at all.
        first = whole.index(b"Bearer") if chance.random() < 0.5 else 0
        for _ in range(chance.randrange(1, 5)):
            raw[chance.randrange(first, len(raw) - 4)] = chance.randrange(256)
        return bytes(raw)

    async def story() -> None:
        async with running_server(tmp_path) as server:
            for raw in (mutate() for _ in range(MUTANTS)):
                answer = await server.ask(raw)
                seen[answer.status] += 1
                assert answer.status in {200, 400, 401, 403, 404, 405, 503}, (raw, answer)
                assert answer.status == 200 or answer.is_problem or raw.startswith(b"HEAD"), (raw, answer)

    asyncio.run(story())
    assert seen[401] > MUTANTS / 10
    assert seen[400] > MUTANTS / 10
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_page_that_fails_is_a_problem_document_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: TokenStore, authorization: str | None, role: str) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(TokenStore, "require_role", fail)

    async def story() -> Answer:
        async with running_server(tmp_path) as server:
            return await server.get()

    answer = asyncio.run(story())
    assert (answer.status, answer.is_problem, answer.body["reason"]) == (500, True, "internal_server_error")
    assert "fire" not in answer.body["detail"]
    assert "the disk is on fire" in caplog.text
