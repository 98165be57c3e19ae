"""ClickHouse's HTTP interface in front of the engine.

It serves what clickhouse-connect and curl need. Sessions are ignored: every request is independent.
Results are built in memory and sent uncompressed. Not served: multipart requests (external tables),
the native TCP protocol, users and access rights. One password protects the whole endpoint.
"""

from __future__ import annotations

import hmac
import json
import uuid
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Final
from urllib.parse import parse_qsl, urlsplit

from sessionary.infra.local.clickhouse.engine import Engine, StatementRequest, StatementResult
from sessionary.infra.local.clickhouse.sql import Statement, decompress_body, parse_statement
from sessionary.infra.local.errors import EngineError
from sessionary.infra.local.ports import LOOPBACK

# Detects requests that a web page of another site may have sent. Pure.
#
# Any page that a developer opens can send requests to 127.0.0.1. The browser shows this: by
# `Origin`, by `Sec-Fetch-Site`, or, if the page's host name was resolved to 127.0.0.1 (DNS
# rebinding), by `Host`. A driver or curl sends none of these, or a loopback address as the host.


_LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))


def page_refusal(headers: Mapping[str, str], port: int) -> str | None:
    """Return why a request is refused; None if it is none of another site's page.

    `headers` have lower-case names. `port` is for the advice in the text.
    """
    host = headers.get("host")
    if host is not None and _host_name(f"//{host}") not in _LOOPBACK:
        return (
            f"the request is for host {host[:100]!r}, which is not this machine's loopback address: "
            f"use http://127.0.0.1:{port}"
        )
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != (host or ""):
        return (
            f"a page of origin {origin[:100]!r} may not ask this ClickHouse: ask it from a program, with its password"
        )
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "a page of another site may not ask this ClickHouse: ask it from a program, with its password"
    return None


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


_BODY_BYTES_MAX = 256 * 1024 * 1024
_LINE_BYTES_MAX = 1024
# URL parameters of the transport. Every other one is a setting or a query parameter (param_*).
_TRANSPORT = frozenset(
    (
        "query",
        "database",
        "default_format",
        "user",
        "password",
        "session_id",
        "session_timeout",
        "session_check",
        "query_id",
        "compress",
        "decompress",
        "wait_end_of_query",
        "buffer_size",
        "quota_key",
        "role",
        "client_protocol_version",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "enable_http_compression",
        "http_response_buffer_size",
    )
)
# HTTP status by ClickHouse's error code, as ClickHouse maps them; every other code is 500.
_STATUS = {
    **dict.fromkeys((6, 26, 27, 33, 38, 41, 43, 53, 62, 72, 89, 117, 164, 271, 456, 457), 400),
    **dict.fromkeys((16, 46, 47, 50, 56, 60, 73, 81, 115), 404),
    **dict.fromkeys((497,), 403),
    **dict.fromkeys((516,), 401),
    **dict.fromkeys((209, 159), 408),
    **dict.fromkeys((307,), 413),
    **dict.fromkeys((48, 344), 501),
    **dict.fromkeys((210,), 503),
}


def _read_statement(query: bytes, body: bytes, *, whole: bool) -> Statement:
    """Parse the statement that begins in the URL and continues in the body.

    `whole`: the text is needed in one piece. Otherwise an insert's data is not joined to its head,
    because that would copy many megabytes three times.
    """
    if body and not whole and query[:6].upper() == b"INSERT":
        statement = parse_statement(query)
        insert = statement.insert
        if insert is not None and insert.format != "Values" and not insert.data:
            return replace(statement, insert=replace(insert, data=body))
    return parse_statement(b"\n".join(part for part in (query, body) if part))


class _BadRequest(Exception):
    """The request's framing is broken, so the connection must be closed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "sessionary-clickhouse"
    sys_version = ""
    wbufsize = -1
    # Without TCP_NODELAY a small query takes 48 ms instead of 2 ms.
    disable_nagle_algorithm = True
    server: ClickHouseServer

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: one line per request would fill the log."""

    def do_GET(self) -> None:
        """Answer probes and statements that change nothing."""
        if urlsplit(self.path).path in ("/ping", "/replicas_status"):
            self._send_reply(200, b"Ok.\n", {})
            return
        self._serve_request(may_change=False)

    def do_HEAD(self) -> None:
        """Answer as GET does, without the body: load balancers ask so."""
        self.do_GET()

    def do_POST(self) -> None:
        """Answer any statement."""
        self._serve_request(may_change=True)

    def parse_request(self) -> bool:
        """Answer 403 to a request that a page of another site may have sent; it may not ping."""
        if not super().parse_request():
            return False
        port = self.server.server_port
        refusal = page_refusal({name.lower(): value for name, value in self.headers.items()}, port)
        if refusal is not None:
            self.close_connection = True
            self._send_reply(403, f"{refusal}\n".encode(), {"Connection": "close"})
        return refusal is None

    def _serve_request(self, *, may_change: bool) -> None:
        url = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        query_id = url.get("query_id") or str(uuid.uuid4())
        try:
            body = self._read_body()
            self._check_password(url)
            answer = self._run_request(
                url, decompress_body(body, self.headers.get("Content-Encoding")), may_change=may_change
            )
        except _BadRequest as error:
            self.close_connection = True
            self._send_reply(400, f"{error}\n".encode(), {"Connection": "close"})
        except EngineError as error:
            headers = {"X-ClickHouse-Exception-Code": str(error.code), "X-ClickHouse-Query-Id": query_id}
            self._send_reply(_STATUS.get(error.code, 500), f"{error}\n".encode(), headers)
        else:
            self._send_answer(answer, query_id)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._read_chunks()
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _BODY_BYTES_MAX:
            raise _BadRequest(f"Content-Length {length[:20]} is not a number up to {_BODY_BYTES_MAX}")
        return self._read_exactly(int(length))

    def _read_exactly(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) != size:
            raise _BadRequest("the body is shorter than its Content-Length or chunk size")
        return data

    def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        left = _BODY_BYTES_MAX
        while True:
            head = self.rfile.readline(_LINE_BYTES_MAX).split(b";")[0].strip()
            try:
                size = int(head, 16)
            except ValueError:
                raise _BadRequest("a chunk has no size") from None
            left -= size
            if size < 0 or left < 0:
                raise _BadRequest(f"the body is larger than {_BODY_BYTES_MAX} bytes")
            if size == 0:
                while self.rfile.readline(_LINE_BYTES_MAX).strip():
                    pass  # trailers
                return b"".join(parts)
            parts.append(self._read_exactly(size))
            self.rfile.readline(_LINE_BYTES_MAX)

    def _check_password(self, url: dict[str, str]) -> None:
        wanted = self.server.password
        if wanted is None:
            return
        given = self._given_password() or url.get("password") or self.headers.get("X-ClickHouse-Key") or ""
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            text = "Code: 516. DB::Exception: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"
            raise EngineError(516, text)

    def _given_password(self) -> str | None:
        """Return the password of a Basic, or the token of a Bearer authorization."""
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return value.strip()
        if scheme.lower() != "basic":
            return None
        try:
            return b64decode(value).decode().partition(":")[2]
        except (Base64Error, UnicodeDecodeError):
            return None

    def _run_request(self, url: dict[str, str], body: bytes, *, may_change: bool) -> StatementResult:
        if self.headers.get_content_maintype() == "multipart":
            raise EngineError(48, "Code: 48. DB::Exception: Multipart requests are not served. (NOT_IMPLEMENTED)")
        query = url.get("query", "").encode()
        if not query and not body:
            return StatementResult(b"Ok.\n", "TabSeparated")
        params = {k.removeprefix("param_"): v for k, v in url.items() if k.startswith("param_")}
        statement = _read_statement(query, body, whole=bool(params))
        if not may_change and not statement.read_only:
            raise EngineError(164, "Code: 164. DB::Exception: Method GET implies readonly, use POST. (READONLY)")
        wanted = url.get("default_format") or self.headers.get("X-ClickHouse-Format")
        request = StatementRequest(
            statement=statement,
            database=url.get("database") or self.headers.get("X-ClickHouse-Database"),
            settings={k: v for k, v in url.items() if k not in _TRANSPORT and not k.startswith("param_")},
            params=params,
            format=statement.format or wanted or "TabSeparated",
        )
        return self.server.engine.run_statement(request)

    def _send_answer(self, answer: StatementResult, query_id: str) -> None:
        summary = {
            "read_rows": str(answer.read_rows),
            "read_bytes": str(answer.read_bytes),
            "written_rows": str(answer.written_rows),
            "written_bytes": str(answer.written_bytes),
        }
        headers = {
            "X-ClickHouse-Summary": json.dumps(summary),
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Format": answer.format,
            "X-ClickHouse-Timezone": "UTC",
        }
        self._send_reply(200, answer.body, headers)

    def _send_reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # The client disconnected; its statement has run all the same.
            self.close_connection = True


class ClickHouseServer(ThreadingHTTPServer):
    """The HTTP interface on a loopback port: bound on construction, served by `serve_forever`."""

    request_queue_size = 128
    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self, engine: Engine, port: int, password: str | None) -> None:
        """Bind the port. Raises `OSError` if it is in use."""
        self.engine = engine
        self.password = password
        super().__init__((LOOPBACK, port), _Handler)
