"""`sessionary session timeline` of rows that need no server."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from tests.core.infra.story.story_rows import StoredRows, event_row, iso_time, outcome_row

_TIMELINE = "sessionary.infra.cli.commands.sessions.timeline"
_FOUND = {"tenant_id": "acme", "session_id": "s1", "user_id": None, "state": "Active", "opened_at": iso_time(0.0)}
_FOUND |= {"external_id": None}
_ARCHIVED = outcome_row(9, "transition", "session_archived", at_s=90.0, from_state="Terminated", to_state="Archived")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> StoredRows:
    """A session that began at 12:00:00 and was paused at 12:01:00."""
    rows = StoredRows(
        [event_row(1, "session_started", {}), event_row(5, "session_paused", {"kind": "manual"}, at_s=60.0)],
        [outcome_row(5, "transition", at_s=60.0, from_state="Active", to_state="Paused")],
        _FOUND,
    )
    monkeypatch.setattr(f"{_TIMELINE}.clickhouse_client", lambda _data: rows)
    return rows


def take_steps(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Take a step instead of each wait of a command that follows a session."""
    left = iter(steps)
    monkeypatch.setattr(f"{_TIMELINE}.time.sleep", lambda _s: next(left)())


def test_a_story_that_is_followed_begins_at_since(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    take_steps(monkeypatch, lambda: None, lambda: source.outcomes.append(_ARCHIVED), lambda: None)
    assert run(["session", "timeline", "abc", "--follow", "--since", "2026-03-01T12:01:30", "--json"]) == 0
    reported = [json.loads(line)["source_offset"] for line in capfd.readouterr().out.splitlines()]
    assert reported == [9], "nothing before the time is reported later"


def test_each_moment_that_is_followed_is_reported_once_and_waits_for_its_outcome(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    resumed = outcome_row(7, "transition", at_s=70.0, from_state="Paused", to_state="Active")

    take_steps(
        monkeypatch,
        lambda: source.events.append(event_row(7, "session_resumed", {}, at_s=70.0)),
        lambda: source.outcomes.append(resumed),
        lambda: source.outcomes.append(_ARCHIVED),
        lambda: None,
    )
    assert run(["session", "timeline", "abc", "--follow", "--json"]) == 0
    reported = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(moment["source_offset"], moment["to_state"]) for moment in reported] == [
        (1, None), (5, "Paused"), (7, "Active"), (9, "Archived"),
    ]  # fmt: skip


def test_a_program_that_follows_gets_each_line_before_the_next_wait(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    reported: list[list[int]] = []

    def read_lines() -> None:
        reported.append([json.loads(line)["source_offset"] for line in os.read(reading, 1 << 16).splitlines()])

    def archive() -> None:
        read_lines()
        source.outcomes.append(_ARCHIVED)

    take_steps(monkeypatch, archive, lambda: None)
    with os.fdopen(writing, "w") as pipe, monkeypatch.context() as replaced:
        replaced.setattr("sys.stdout", pipe)
        assert run(["session", "timeline", "abc", "--follow", "--json"]) == 0
        read_lines()
    os.close(reading)
    assert reported == [[1, 5], [9]]


def test_a_line_that_follows_names_the_time_zone(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{_TIMELINE}.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    take_steps(monkeypatch, lambda: source.outcomes.append(_ARCHIVED), lambda: None)
    assert run(["session", "timeline", "abc", "--follow"]) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("12:01:30.000 UTC  ")


def test_an_agents_name_makes_no_line_of_its_own(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{_TIMELINE}.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    forged = event_row(7, "session_resumed", {}, at_s=70.0) | {"agent_id": "a\n12:00:00.000 UTC  ops  approved"}
    take_steps(monkeypatch, lambda: source.events.append(forged), lambda: source.outcomes.append(_ARCHIVED), print)
    assert run(["session", "timeline", "abc", "--follow"]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "approved" in line]
    assert line.startswith("12:01:10.000 UTC  a\\u000a12:00:00.000 UTC  ops  approved  ")


def test_the_heading_says_when_the_session_began_and_not_its_first_moment(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{_TIMELINE}.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    assert run(["session", "timeline", "abc", "--since", "2026-03-01T12:00:30"]) == 0
    out, err = capfd.readouterr()
    assert "12:01:00" in out
    assert "began 2026-03-01 12:00:00" in err
    assert "acme: session s1\n" in err


def test_the_heading_shows_the_text_of_the_sessions_id(
    source: StoredRows, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{_TIMELINE}.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    source.found |= {"external_id": "thread-42"}
    assert run(["session", "timeline", "thread-42"]) == 0
    assert "acme: session s1 (thread-42)\n" in capfd.readouterr().err


def test_a_page_has_what_happened_since(
    source: StoredRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source.found |= {"service_id": "billing"}
    monkeypatch.setattr(f"{_TIMELINE}.stack_environment", lambda _data: {})
    monkeypatch.setattr(f"{_TIMELINE}.fetch_live_state", lambda *_: None)
    beats = [{"producer_id": "p1", "appended_at": iso_time(at_s)} for at_s in (20.0, 70.0)]
    monkeypatch.setattr(f"{_TIMELINE}.fetch_heartbeats", lambda *_: beats)
    monkeypatch.setattr(f"{_TIMELINE}.fetch_findings", lambda *_: [])
    monkeypatch.setattr(f"{_TIMELINE}.fetch_partition_findings", lambda *_: [])
    page = tmp_path / "story.html"
    assert run(["session", "timeline", "abc", "--html", f"{page}"]) == 0
    whole = page.read_text()
    assert run(["session", "timeline", "abc", "--html", f"{page}", "--since", "2026-03-01T12:00:30"]) == 0
    later = page.read_text()
    assert ("started" in whole, "started" in later, "paused" in later) == (True, False, True)
    assert "Only what happened since 2026-03-01 12:00:30" in later
    assert "Only what happened" not in whole
    assert whole.count('class="beat"') == 2 * later.count('class="beat"') > 0
    assert f"{page}" in capfd.readouterr().err


def test_a_page_is_not_followed(source: StoredRows, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "story.html"
    assert run(["session", "timeline", "abc", "--html", f"{page}", "--follow"]) == 5
    assert "leave --follow out" in capfd.readouterr().err
    assert not page.exists()
