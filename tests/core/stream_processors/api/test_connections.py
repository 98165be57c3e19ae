"""Slow connections to the control API, and too many."""

import asyncio
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from aiohttp.web import Response

from tests.core.stream_processors.api.api_server import Server, running_server

_LIMITS = "sessionary.stream_processors.api.connections"
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
