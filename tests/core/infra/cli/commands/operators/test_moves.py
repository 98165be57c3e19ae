"""`sessionary session drain` and `move`: what is offered, how often, and what they wait for."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.settings import ClickHouseSettings
from tests.core.infra.fake_control_api import FakeControlApi, serve_fake_api

MODULE = "sessionary.infra.cli.commands.operators.moves"
SESSIONS = [f"183108ed-8784-4091-97dd-1ac993fda55{number}" for number in range(4)]
Ends = Callable[[int], dict[str, str]]


class Clock:
    """The time of the commands: it passes while they sleep."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.sleeps.append(pause_s)
        self.now_s += pause_s


class Stored(ClickHouseClient):
    """Sessions of a service, and by the number of looks the reason of each migration that ended."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(ClickHouseSettings())
        self.clock = clock
        self.ends: Ends = lambda looks: dict.fromkeys(SESSIONS, "migrated")
        self.asked: list[str] = []
        self.since_s: list[float] = []

    def fetch_rows(self, sql: str, **parameters: Any) -> list[Row]:
        self.asked.append(sql)
        if "FROM v_sessions" in sql:
            return [{"tenant_id": "acme", "session_id": session} for session in SESSIONS]
        if "FROM v_migrations" in sql:
            return [{"migration_id": parameters["migration"], "step": "completed", "silence_ms": 92}]
        assert parameters["to"] == "shipping"
        self.since_s.append(self.clock.now_s - parameters["age_s"])
        found = self.ends(len(self.since_s))
        return [
            {"migration_id": f"m-{name}", "step": "completed" if why == "migrated" else "aborted", "reason_code": why}
            for name, why in {**found, "of another command": "expired"}.items()
        ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(f"{MODULE}.time", made)
    return made


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Stored:
    found = Stored(clock)
    monkeypatch.setattr(f"{MODULE}.clickhouse_client", lambda _data: found)
    monkeypatch.setattr(f"{MODULE}.find_session", lambda *_: {"tenant_id": "acme", "session_id": SESSIONS[0]})
    return found


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlApi]:
    with serve_fake_api() as served:
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", served.url)
        monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "op")
        for session in SESSIONS:
            served.answers[path(session)] = 200, {"migration_id": f"m-{session}"}
        yield served


def path(session: str) -> str:
    return f"/v1/sessions/{session}/migrate?tenant=acme"


def drain(*options: str, code: int = 0) -> None:
    assert run(["session", "drain", "billing", "--to", "shipping", *options]) == code


def report_of(capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    out, err = capfd.readouterr()
    return json.loads(out), err.splitlines()


def test_a_drain_waits_for_its_own_migrations_and_asks_for_their_ends_alone(
    api: FakeControlApi, stored: Stored, capfd: pytest.CaptureFixture[str]
) -> None:
    stored.ends = lambda looks: dict.fromkeys(SESSIONS[:looks], "migrated")
    drain()
    report, reported = report_of(capfd)
    assert report == {"service": "billing", "to": "shipping", "sessions": 4, "moved": 4, "stayed": {}}
    assert len(stored.since_s) == len(SESSIONS)  # each look finds one more
    assert not any("v_migrations" in sql for sql in stored.asked)
    assert [line.split("s  ")[1] for line in reported] == ["offered 1 of 4 sessions", "ended 1 of 4 moves"]


def test_the_rate_is_a_bound_and_ends_are_looked_for_from_the_first_offer_on(
    api: FakeControlApi, stored: Stored, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}._CLOCKS_S", 0.0)
    first_s = clock.now_s
    drain("--rate", "0.1")
    assert sum(clock.sleeps) == pytest.approx(10 * len(SESSIONS))
    assert len(api.asked) == len(SESSIONS)
    assert max(stored.since_s) <= first_s


def test_why_sessions_stayed_is_reported_with_their_number(
    api: FakeControlApi, stored: Stored, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answer_problem(path(SESSIONS[0]), 409, "illegal_transition", "it is over")
    api.answer_problem(path(SESSIONS[1]), 404, "unknown_session", "there is no such session")
    stored.ends = lambda looks: {SESSIONS[2]: "target_silent", SESSIONS[3]: "migrated"}
    drain(code=1)
    report, reported = report_of(capfd)
    assert (report["moved"], report["sessions"]) == (1, 4)
    assert report["stayed"] == {"rejected: it is over": 1, "unknown session": 1, "target_silent": 1}
    assert reported[-1] == "sessionary: 3 of 4 sessions did not move to shipping"


def test_a_drain_does_not_wait_for_ever_for_an_end_that_is_not_stored(
    api: FakeControlApi, stored: Stored, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    stored.ends = lambda looks: dict.fromkeys(SESSIONS[1:], "migrated")
    first_s = clock.now_s
    drain("--ttl", "5", code=1)
    report, _ = report_of(capfd)
    assert report["stayed"] == {"no end is in ClickHouse yet": 1}
    assert 35 <= clock.now_s - first_s < 40


def test_one_session_is_shown_as_the_view_has_it_once_it_is_there(
    api: FakeControlApi, stored: Stored, capfd: pytest.CaptureFixture[str]
) -> None:
    stored.ends = lambda looks: {SESSIONS[0]: "migrated"} if looks == 3 else {}
    assert run(["session", "move", SESSIONS[0], "--to", "shipping", "--reason", "x", "--json"]) == 0
    shown, _ = report_of(capfd)
    assert (shown["migration_id"], shown["silence_ms"]) == (f"m-{SESSIONS[0]}", 92)
    assert ["v_migrations" in sql for sql in stored.asked] == [False, False, False, True]
