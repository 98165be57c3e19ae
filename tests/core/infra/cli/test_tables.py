"""Rows as JSON lines, and as tables that fit a terminal."""

import json
import re
from collections.abc import Callable

import pytest

from sessionary.infra.cli.commands.rejected import COLUMNS as REJECTED_COLUMNS
from sessionary.infra.cli.commands.sessions.lists import SESSION_COLUMNS
from sessionary.infra.cli.output import print_line, print_message, visible
from sessionary.infra.cli.tables import show_line, show_object, show_rows


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
    show_rows([{"[b]": "\\[red]z"}], as_json=False)
    out = capsys.readouterr().out
    assert "\\[red]z" in out, "a backslash makes no markup of it"
    assert "[b]" in out


# A title, a cleared line, a control sequence in one character, directions, ends of lines, hidden
# letters, half a pair.
OBEYED = (
    "\x1b]0;all is well\x07",
    "\x1b[2K\x1b[1A",
    "\x9b2K",
    "\u202egnp.exe",
    "\u2066\u200f\u061c",
    "\r\n\t\x7f\x00",
    "\u2028\u2029\x85",
    "\ufeff\u200b\U000e0041",
    "\ud800",
)


@pytest.mark.parametrize("text", OBEYED)
def test_no_terminal_obeys_a_text_of_an_event_whichever_column_has_it(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "4000")
    nested: dict[str, object] = {"n": text, text: [text, {text: text}]}
    ways: tuple[Callable[[], None], ...] = (
        lambda: show_rows([{text: text, "b": nested}], as_json=False),
        lambda: show_rows([{"a": text, "b": nested}], as_json=False, columns=["a", "b"]),
        lambda: show_rows([{"a": text, text: nested}], as_json=True),
        lambda: show_line({"a": text, "b": nested}, as_json=False, columns=["a", "b"]),
        lambda: show_line({"a": text, "b": nested}, as_json=True, columns=["a"]),
        lambda: show_object({text: text, "b": nested}, as_json=False),
        lambda: show_object({text: text, "b": nested}, as_json=True),
        lambda: print_line(visible(text)),
        lambda: print_message(visible(text)),
    )
    for show in ways:
        show()
        shown = capsys.readouterr()
        # Our own are bold, and a line that is overwritten.
        out = re.sub(r"\x1b\[[0-9;]*m|^\r\x1b\[K", "", shown.out + shown.err)
        assert out.strip()
        assert not set(text) & set(out.replace("\n", "")) - set(map(chr, range(32, 127)))


def test_what_is_escaped_is_json_of_the_same_text_and_words_of_all_languages_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in OBEYED:
        assert json.loads(f'"{visible(text)}"') == text
    words = "Größe, 日本語, שלום, नमस्ते\u200d, \u00a0\u3000, 👩\u200d🚀"
    assert visible(words) == words
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_rows([{"a": OBEYED[3], "b": words}], as_json=True)
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": OBEYED[3], "b": words}
    assert "\u202e" not in out


def test_lines_of_a_text_of_ours_stay_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_line("groups:\n\tx: \x1b[2K")
    print_message("\na\x9bb")
    assert capsys.readouterr() == ("groups:\n\tx: \\u001b[2K\n", "\na\\u009bb\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    print_line("\x1b]0;a file has it as it is")
    assert capsys.readouterr().out == "\x1b]0;a file has it as it is\n"


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
    "external_id": None,
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
