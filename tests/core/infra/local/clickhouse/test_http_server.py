"""Requests that a web page of another site may have sent, and those of load balancers."""

import http.client
import threading
from typing import cast

import pytest

from sessionary.infra.local.clickhouse.engine import Engine, StatementRequest, StatementResult
from sessionary.infra.local.clickhouse.http_server import ClickHouseServer, page_refusal


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "127.0.0.1:8123"},
        {"host": "localhost:9999"},
        {"host": "LOCALHOST"},
        {"host": "[::1]:8123"},
        {"host": "127.0.0.1:8123", "origin": "http://127.0.0.1:8123"},
        {"host": "127.0.0.1:8123", "sec-fetch-site": "none"},
        {"host": "127.0.0.1:8123", "sec-fetch-site": "same-origin"},
    ],
)
def test_programs_and_the_endpoint_s_own_address_are_served(headers: dict[str, str]) -> None:
    assert page_refusal(headers, 8123) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8123"},
        {"host": "127.0.0.1.evil.example:8123"},
        {"host": "127.0.0.1@evil.example"},
        {"host": ""},
        {"host": "[::1"},
        {"host": "127.0.0.1:8123", "origin": "https://evil.example"},
        {"host": "127.0.0.1:8123", "origin": "null"},
        {"host": "127.0.0.1:8123", "origin": "http://127.0.0.1:3000"},
        {"host": "127.0.0.1:8123", "sec-fetch-site": "cross-site"},
        {"host": "127.0.0.1:8123", "sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
    ],
)
def test_pages_and_foreign_host_names_are_refused(headers: dict[str, str]) -> None:
    refusal = page_refusal(headers, 8123)
    assert refusal is not None
    assert ("http://127.0.0.1:8123" in refusal) != ("from a program, with its password" in refusal)


class _OneRow:
    """An engine that answers each statement with one row."""

    def run_statement(self, _request: StatementRequest) -> StatementResult:
        return StatementResult(b"1\n", "TabSeparated")


def test_head_is_answered_as_get_is_without_the_body() -> None:
    with ClickHouseServer(cast(Engine, _OneRow()), 0, None) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)

        def ask(verb: str, path: str) -> tuple[int, str | None, bytes]:
            connection.request(verb, path)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Length"], answer.read()

        try:
            for path, status in (("/ping", 200), ("/", 200), ("/?query=SELECT+1", 200), ("/?query=DROP+TABLE+t", 400)):
                got = ask("GET", path)
                assert got[0] == status, path
                assert len(got[2]) == int(got[1] or 0) > 0
                assert ask("HEAD", path) == (*got[:2], b""), path
        finally:
            connection.close()
            server.shutdown()
            thread.join()
