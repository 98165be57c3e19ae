"""Requests that a web page of another site may have sent."""

import pytest

from sessionary.infra.local.clickhouse.http_server import page_refusal


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
