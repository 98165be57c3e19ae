"""The control API over HTTP: every error is a problem document, also for what is not HTTP."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp.web import Response

from sessionary.schemas.ids import new_session_id
from sessionary.stream_processors.api.tokens import TokenStore
from tests.core.stream_processors.api.api_server import ApiResponse, Server, running_server

PATH = f"/v1/sessions/{new_session_id()}".encode()
MUTANTS = 400


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
    "a line break in the id": ({"path": PATH + b"%0d%0aX: y"}, 400, "bad_request"),
    "an escaped line break in the id": ({"path": PATH + b"%0d%0aX:%20y"}, 400, "invalid_value"),
    "a long id": ({"path": b"/v1/sessions/" + b"a" * 7_000}, 400, "invalid_value"),
    "a path that is too long": ({"path": b"/v1/sessions/" + b"a" * 70_000}, 400, "bad_request"),
    "a word as offset": ({"path": PATH + b"?after=x"}, 400, "invalid_value"),
    "an offset that is not UTF-8": ({"path": PATH + b"?after=%ff:1"}, 400, "invalid_value"),
    "an Arabic number": ({"path": PATH + b"?wait_ms=%d9%a3"}, 400, "invalid_value"),
    "a wait that is too long": ({"path": PATH + b"?wait_ms=1000000000"}, 400, "invalid_value"),
    "a header that is too long": ({"more": b"X: " + b"a" * 70_000 + b"\r\n"}, 400, "bad_request"),
    "a length that is a word": ({"more": b"Content-Length: x\r\n"}, 400, "bad_request"),
    "no partition's owner": ({}, 503, "not_ready"),
    "partitions for a reader": ({"path": b"/v1/partitions"}, 403, "forbidden"),
    "partitions without a token": ({"path": b"/v1/partitions", "auth": None}, 401, "unauthorized"),
    "a retry for a reader": ({"path": b"/v1/partitions/0/retry", "method": b"POST"}, 403, "forbidden"),
    "a retry by another method": ({"path": b"/v1/partitions/0/retry"}, 405, "method_not_allowed"),
    "a retry of a word": (
        {"path": b"/v1/partitions/x/retry", "method": b"POST", "auth": b"Bearer op"},
        400,
        "invalid_value",
    ),
    "a retry of a partition that is not there": (
        {"path": b"/v1/partitions/4/retry", "method": b"POST", "auth": b"Bearer op"},
        404,
        "unknown_partition",
    ),
}


def test_each_malformed_request_is_answered_with_a_problem_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with running_server(tmp_path) as server:
            for name, (request, status, reason) in CASES.items():
                answer = await server.ask(**{"path": PATH} | request)
                assert answer.is_problem, (name, answer)
                assert (answer.status, answer.body["reason"]) == (status, reason), (name, answer)
            assert (await server.ask(PATH, method=b"POST")).headers["allow"] == "GET,HEAD"
            assert (await server.ask(b"/healthz", None)).status == 200
            assert (await server.ask(b"/metrics", None)).headers["content-type"].startswith("text/plain")

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_head_is_answered_as_get_is_without_the_body(tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server(tmp_path) as server:
            for path, auth in ((b"/healthz", None), (b"/readyz", None), (b"/openapi.json", None), (PATH, b"Bearer op")):
                got, head = await server.ask(path, auth), await server.ask(path, auth, b"HEAD")
                assert (head.status, head.body) == (got.status, b""), path
                assert head.headers["content-type"] == got.headers["content-type"], path

    asyncio.run(story())


def test_no_mutated_request_fails_and_each_rejection_is_a_problem_document(
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
                answer = await server.send(raw)
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

    async def story() -> ApiResponse:
        async with running_server(tmp_path) as server:
            return await server.ask(PATH)

    answer = asyncio.run(story())
    assert (answer.status, answer.is_problem, answer.body["reason"]) == (500, True, "internal_server_error")
    assert "fire" not in answer.body["detail"]
    assert "the disk is on fire" in caplog.text


_LIMITS = "sessionary.stream_processors.api.pages"
_HEAD = b"POST /v1/rules HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer op\r\nContent-Length: 100\r\n\r\n"


def _port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


async def _connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", _port(server))


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, each: bytes) -> bytes:
    """Send `each` now and then; return what came until the server closed."""
    answer = asyncio.create_task(reader.read())
    deadline = time.monotonic() + 60
    try:
        while not answer.done() and time.monotonic() < deadline:
            await asyncio.wait([answer], timeout=0.05)
            if not writer.is_closing():
                writer.write(each)
        assert answer.done(), "the connection is still open"
        return answer.result()
    except ConnectionResetError:
        return b""
    finally:
        answer.cancel()
        writer.close()


@pytest.mark.parametrize(
    ("first", "each"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\n", b"X: y\r\n"),
        (_HEAD, b" "),
        (_HEAD.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked"), b"1\r\na\r\n"),
    ],
    ids=["silent", "headers", "body", "chunks"],
)
def test_a_request_that_comes_too_slowly_ends(first: bytes, each: bytes, tmp_path: Path) -> None:
    async def check() -> None:
        async with running_server(tmp_path) as server:
            with patch(f"{_LIMITS}.HEADERS_S", 0.3), patch(f"{_LIMITS}.BODY_S", 0.3):
                reader, writer = await _connect(server)
                writer.write(first)
                answer = await _drip(reader, writer, each)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")
            assert (await server.ask(b"/healthz")).status == 200

    asyncio.run(check())


def test_slow_headers_of_a_further_request_end_too(tmp_path: Path) -> None:
    async def check() -> None:
        async with running_server(tmp_path) as server:
            reader, writer = await _connect(server)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert head.startswith(b"HTTP/1.1 200 ")
            with patch(f"{_LIMITS}.HEADERS_S", 0.3):
                answer = await _drip(reader, writer, b"G")
            assert b"HTTP/1.1 408 " in answer or answer.endswith(b"}")

    asyncio.run(check())


def test_a_page_that_takes_long_is_not_cut_off(tmp_path: Path) -> None:
    async def answer_late(*_: object) -> Response:
        await asyncio.sleep(2.5)
        return Response(text="late")

    async def check() -> None:
        page = "sessionary.stream_processors.api.sessions.ControlApi.readyz"
        with patch(f"{_LIMITS}.HEADERS_S", 2.0), patch(f"{_LIMITS}.BODY_S", 2.0), patch(page, answer_late):
            async with running_server(tmp_path) as server:
                assert (await server.ask(b"/readyz")).body == b"late"

    asyncio.run(check())


def test_many_slow_connections_leave_room_for_the_probe(tmp_path: Path) -> None:
    async def check() -> None:
        with patch(f"{_LIMITS}.CONNECTIONS_MAX", 20), patch(f"{_LIMITS}.HEADERS_S", 3_600.0):
            async with running_server(tmp_path) as server:
                opened = [await _connect(server) for _ in range(60)]
                for _, writer in opened:
                    writer.write(b"GET / HTTP/1.1\r\n")
                assert (await server.ask(b"/healthz")).status == 200
                # The 40 oldest ones, and one for the probe, were closed.
                ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
                await asyncio.wait(ended[:40], timeout=60)
                assert all(task.done() for task in ended[:40])
                assert sum(task.done() for task in ended) <= 41
                for task, (_, writer) in zip(ended, opened, strict=True):
                    task.cancel()
                    writer.close()
                await asyncio.gather(*ended, return_exceptions=True)

    asyncio.run(check())
