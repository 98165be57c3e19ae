"""`sessionary demo`: what it ends with. `load` refuses a broken file and a stack without tokens."""

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands import demo
from sessionary.infra.demo import demo_run, migration, replay
from sessionary.infra.demo.migration import RIGHT, MigrationReport
from sessionary.infra.demo.replay import ReplayReport
from sessionary.infra.demo.report import Report
from tests.support.command_lines import parse_command


def suggested(text: str) -> list[list[str]]:
    """Return the commands that a text suggests, without the remarks behind them."""
    lines = (line.strip().split("  ")[0] for line in text.format(command="CMD", **_PLACES).splitlines())
    return [shlex.split(line)[1:] for line in lines if line.startswith("CMD ")]


_ID = "183108ed-8784-4091-97dd-1ac993fda554"
_PLACES = {
    "page": "http://localhost:1/v1/sessions/s/runs/r",
    "run_id": "r",
    "session_id": _ID,
    "fork_id": _ID,
    "snapshot_id": "snap_0123456789ab",
    "folder": "stack",
    "with_stack": "if it runs",
}


@pytest.mark.parametrize(
    "text",
    [demo.NEXT, demo.NEXT_WORKFLOW, demo.NEXT_MIGRATION, demo.NEXT_REPLAY],
    ids=["demo", "workflow", "migration", "replay"],
)
def test_each_command_that_the_demo_suggests_can_be_read(text: str) -> None:
    commands = suggested(text)
    assert len(commands) >= 2
    for name, *arguments in commands:
        if [name, *arguments[:1]] != ["session", "list"]:  # within a sentence
            parse_command([name, *(_ID if word == "ID" else word for word in arguments)])


def test_the_demo_suggests_three_commands_that_belong_together() -> None:
    (up, load, timeline, sessions) = suggested(demo.NEXT)
    assert (up, load, sessions[:2]) == (["up"], ["demo", "load"], ["session", "list"])
    assert timeline == ["session", "timeline", "ID", "--html", "story.html"]


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_page_is_opened_and_its_place_is_said(
    *, has_browser: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def open_url(url: str) -> bool:
        opened.append(url)
        return has_browser

    monkeypatch.setattr("webbrowser.open", open_url)
    page = tmp_path / "the story.html"
    demo.open_story(page)
    assert opened == [page.as_uri()]
    said = capsys.readouterr().err
    assert f"{page}" in said
    assert ("no browser was found" in said) != has_browser


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kill-at", "search_kb"], "--kill-at goes with --workflow"),
        (["--migration", "--kill-at", "search_kb"], "--migration takes no --kill-at"),
        (["--migration", "--seed", "3"], "--migration takes no --seed"),
        (["--workflow", "--sessions", "60"], "--workflow takes no --sessions"),
        (["--replay", "--speed", "2"], "--replay takes no --speed"),
    ],
)
def test_an_option_that_a_demo_does_not_know_is_refused_by_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", *words]) == 5
    assert capfd.readouterr() == ("", f"sessionary: {said}\n")


def test_two_demos_at_once_are_refused_by_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--migration", "--workflow"]) == 5
    out, err = capfd.readouterr()
    assert (out, err) == ("", "sessionary: --workflow and --migration are demos of their own: give one of them\n")


@pytest.mark.parametrize(("stale", "code"), [(0, 0), (1, 1)])
def test_a_stale_event_that_was_accepted_fails_the_demo(
    stale: int, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = {**RIGHT, "session_id": _ID, "stale_events_accepted": stale}
    report = MigrationReport([], [], [], [], [], [], [], figures)
    stack = SimpleNamespace(environ={}, data=tmp_path)
    monkeypatch.setattr(demo, "_demo_stack", lambda *_: nullcontext(stack))
    monkeypatch.setattr(migration, "play_migration", lambda *_: report)
    assert run(["demo", "--migration", "--json"]) == code
    out, err = capfd.readouterr()
    assert json.loads(out)["stale_events_accepted"] == stale
    assert ("sessionary: stale_events_accepted: 1\n" in err) == bool(code)


@pytest.mark.parametrize(("executed", "code"), [(0, 0), (1, 1)])
def test_a_replay_that_executed_a_call_fails_the_demo_by_a_sentence(
    executed: int, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = {name: {"1": _ID} for name in ("sessions", "forks", "snapshots")}
    report = ReplayReport([{"step": "strict replay", "executed": executed}], [], [], figures)
    stack = SimpleNamespace(environ={}, data=tmp_path)
    monkeypatch.setattr(demo, "_demo_stack", lambda *_: nullcontext(stack))
    monkeypatch.setattr(replay, "play_replay", lambda *_: report)
    monkeypatch.setattr(replay, "right_counts", lambda: {"executed of strict replay": 0})
    assert run(["demo", "--replay", "--json"]) == code
    out, err = capfd.readouterr()
    assert json.loads(out)["replays"] == report.replays
    assert ("sessionary: executed of strict replay: 1 instead of 0\n" in err) == bool(code)


_FIGURES = {"sessions": 1, "missing": 0, "doubled": 0, "false_timeouts": 0, "unexpected": 0}


def load_with(report: Report, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, object]:
    """Run `load` against a stack that reports this; return what the demo run was given."""
    given: dict[str, object] = {}

    def run_demo(*_: object, **options: object) -> Report:
        given.update(options)
        return report

    monkeypatch.setattr(demo_run, "run_demo", run_demo)
    monkeypatch.setattr("sessionary.infra.environment.stack_environment", lambda _: {})
    assert run(["demo", "load", *words]) == 0
    return given


def test_load_shortens_the_pauses_between_starts_to_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    report = Report({**_FIGURES, "unacknowledged_transitions": 0}, [])
    assert load_with(report, monkeypatch)["gap_s_max"] == 12.0
    assert load_with(report, monkeypatch, "--gap", "3")["gap_s_max"] == 3.0


@pytest.mark.parametrize("unacknowledged", [0, 4])
def test_transitions_without_an_acknowledgement_are_explained(
    unacknowledged: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    load_with(Report({**_FIGURES, "unacknowledged_transitions": unacknowledged}, []), monkeypatch)
    shown = capsys.readouterr()
    assert "unacknowledged transitions" in shown.out
    assert ("reports the last one's acknowledgement: some stay unknown" in shown.err) == bool(unacknowledged)


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.ndjson"
    path.write_text("nonsense\n")
    assert run(["demo", "load", str(path)]) == 5
    assert "line 1" in capfd.readouterr().err


def test_a_stack_without_tokens_is_a_matter_of_settings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.ndjson"
    path.write_text(json.dumps({"run": "a", "task": "a", "duration_s": 1, "start_offset_s": 0, "events": []}))
    assert run(["demo", "load", str(path)]) == 2
    assert "SESSIONARY_API_TOKENS" in capfd.readouterr().err
