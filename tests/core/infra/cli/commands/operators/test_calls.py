"""`sessionary call unknown` of rows that need no server."""

import json
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.module_time import set_module_time

_UNKNOWN = "sessionary.infra.cli.commands.operators.calls"


class Unresolved(ClickHouseClient):
    """Calls of unknown outcome, the oldest first; remembers the filters."""

    def __init__(self, *keys: str) -> None:
        super().__init__(ClickHouseSettings())
        self.keys = [*keys]
        self.asked: list[dict[str, Any]] = []

    def fetch_rows(self, sql: str, **parameters: Any) -> list[Row]:
        self.asked.append(parameters)
        rows = [{"tenant_id": "acme", "session": "s", "run": "r", "key": key, "since": "t"} for key in self.keys]
        return rows[: parameters["limit"]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Unresolved:
    found = Unresolved("a", "b")
    monkeypatch.setattr(f"{_UNKNOWN}.clickhouse_client", lambda _data: found)
    return found


def keys_of(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["key"] for line in capfd.readouterr().out.splitlines()]


def test_calls_are_listed_by_user_and_time(calls: Unresolved, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["call", "unknown", "--user", "ann", "--since", "2026-03-01T12:00", "--limit", "1"]) == 0
    assert keys_of(capfd) == ["a"]
    (asked,) = calls.asked
    assert (asked["user"], asked["since"]) == ("ann", "2026-03-01 12:00:00.000000")


def test_calls_that_are_followed_are_reported_once(
    calls: Unresolved, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def become_unknown(_s: float) -> None:
        if len(calls.keys) == 4:
            raise KeyboardInterrupt
        calls.keys.append(f"{len(calls.keys)}")

    set_module_time(monkeypatch, "sessionary.infra.cli.commands.sessions.lookup", sleep=become_unknown)
    run(["call", "unknown", "--follow"])
    assert keys_of(capfd) == ["a", "b", "2", "3"]
