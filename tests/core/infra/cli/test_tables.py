"""Rows as JSON lines, and as tables that fit a terminal."""

import json
import re

import pytest

from sessionary.infra.cli.commands.rejected import COLUMNS as REJECTED_COLUMNS
from sessionary.infra.cli.commands.sessions.lists import SESSION_COLUMNS
from sessionary.infra.cli.tables import show_object, show_rows


def test_rows_are_a_json_line_each_if_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"a": 1, "b": "x[red]"}, {"a": None, "b": "ü"}]
    show_rows(rows, as_json=False, columns=["a"])
    show_object(rows[0], as_json=False)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [*rows, rows[0]]


def test_rows_are_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_rows([{"name": "x[red]y", "hidden": 1}], as_json=False, columns=["name"])
    out = capsys.readouterr().out
    assert "x[red]y" in out, "what comes from events is text, never markup"
    assert "hidden" not in out


def test_a_narrow_terminal_cuts_ids_and_leaves_columns_out_but_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"session_id": "2e2cf084-624e-57af-a99c-db928353888f", "at": "2026-11-21T04:18:13.707001Z"}
    row |= {
        "event_type": "session_phase_changed",
        "reason": "Agent timeout after 3s: nothing was heard",
        "last": "x" * 9,
    }
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    show_rows([row], as_json=False, columns=list(row))
    shown = capsys.readouterr()
    out = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    assert out.splitlines()[1].startswith("2e2cf084-624e  11-21 04:18:13  session_phase_changed  Agent timeout")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "last" in shown.err
    assert "last" not in out
    monkeypatch.setenv("COLUMNS", "160")
    show_rows([row], as_json=False, columns=list(row))
    shown = capsys.readouterr()
    assert all(value in shown.out for name, value in row.items() if name != "at")
    assert shown.err == ""


SESSION = {
    "session_id": "2e2cf084-624e-57af-a99c-db928353888f",
    "tenant_id": "acme-corp",
    "state": "Terminated",
    "service_id": "billing-service",
    "last_at": "2026-11-21T04:18:13.707001Z",
    "events": 12_345,
    "rejections": 17,
    "reason": "Agent timeout after 60s: nothing was heard of it",
    "duration_s": 3_600.125,
    "version": 12,
    "transitions": 9,
}
REJECTION = {
    "log_position": "11:1234567",
    "time": "2026-11-21T04:18:13.707001Z",
    "reason": "illegal_transition",
    "session_id": "2e2cf084-624e-57af-a99c-db928353888f",
    "event_type": "session_phase_changed",
    "tenant_id": "acme-corp",
    "security": False,
    "detail": "session_resumed is not legal in state Active",
}


@pytest.mark.parametrize(
    ("row", "columns", "reported"),
    [(SESSION, SESSION_COLUMNS, "reason"), (REJECTION, REJECTED_COLUMNS, "detail")],
    ids=["sessions", "rejected list"],
)
def test_eighty_columns_have_room_for_why(
    row: dict[str, object],
    columns: tuple[str, ...],
    reported: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(columns) == set(row)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    show_rows([row], as_json=False, columns=columns)
    shown = capsys.readouterr()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.out).splitlines()
    assert reported in lines[0].split()
    log_position = lines[0].index(reported)
    following = re.search(r"\S", lines[0][log_position + len(reported) :])
    end = 80 if following is None else log_position + len(reported) + following.start()
    folded = " ".join(line[log_position:end].strip() for line in lines[1:])
    assert folded.strip() == row[reported]
    assert all(len(line) <= 80 for line in lines)
