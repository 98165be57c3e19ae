"""`sessionary session at` and `diff`: their points, their order of sources, and their errors."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from sessionary.infra.cli.app import run as run_command
from sessionary.infra.cli.commands.sessions import past
from sessionary.infra.cli.commands.sessions.past import list_differences
from sessionary.infra.cli.errors import NotFound
from sessionary.schemas.errors import Invalid, SessionaryError, Unavailable
from sessionary.schemas.http.kept_connections import HttpResponse, Request
from sessionary.stream_processors.errors import PointUnknown, StateExpired

SESSION = "0c1d7c2e-5a2b-4d0e-9a53-0f6d8f2b7a11"
DOCUMENT: dict[str, Any] = {
    "session_id": SESSION,
    "tenant_id": "acme",
    "point": {"offset": 7},
    "source": "row",
    "position": {"partition": 0, "offset": 7, "clock_ms": 9},
    "check": {"verdict": "equal", "equal": 2, "offset": 7},
    "lost": [],
    "state": "Active",
    "row_hash": "a:b",
    "row": {"state": "Active", "version": 2, "snapshot": {"snapshot_id": "s"}},
    "children": [{"kind": "MessageState", "turn": 1, "content": "hello"}],
}


class Api:
    """A processor that answers what a test says, and the paths that it was asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.held: tuple[int, dict[str, Any]] = (404, {"detail": "not held"})
        self.folded: tuple[int, dict[str, Any]] = (200, {**DOCUMENT, "source": "log"})

    def send(self, request: Request, timeout_s: float) -> HttpResponse:
        self.paths.append(request.path)
        status, document = self.held if "fold=false" in request.path else self.folded
        return HttpResponse(status, "", {}, json.dumps(document).encode())

    def close_idle(self) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(past, "ControlServers", lambda *_: made)
    monkeypatch.setattr(past, "find_session", lambda *_: {"tenant_id": "acme", "session_id": SESSION})
    monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", "none:1")  # no folder of a local stack is looked for
    monkeypatch.setenv("SESSIONARY_CONTROL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SESSIONARY_API_TOKENS", '{"token": "acme"}')
    return made


def rows_of(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | Exception) -> None:
    """Let ClickHouse answer so."""

    def fold(_past: object, points: Sequence[object]) -> list[dict[str, Any]]:
        if isinstance(answer, Exception):
            raise answer
        return [answer for _ in points]

    monkeypatch.setattr(past._Past, "_fold_rows", fold)


def test_what_the_processor_holds_is_asked_for_first(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    api.held = (200, DOCUMENT)
    assert run_command(["session", "at", SESSION, "--offset", "7", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == DOCUMENT
    assert api.paths == [f"/v1/sessions/{SESSION}/at?offset=7&fold=false"]


def test_then_clickhouse_and_then_the_log(
    api: Api, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-003-74: the layers are tried in this order, and the served one is in the answer."""
    rows_of(monkeypatch, {**DOCUMENT, "source": "clickhouse"})
    assert run_command(["session", "at", SESSION, "--event", "e1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["source"] == "clickhouse"
    assert len(api.paths) == 1
    rows_of(monkeypatch, NotFound("expired there"))
    assert run_command(["session", "at", SESSION, "--event", "e1", "--json"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["source"] == "log"
    assert "not from ClickHouse: expired there" in printed.err
    assert api.paths[-1] == f"/v1/sessions/{SESSION}/at?event=e1&fold=true"


@pytest.mark.parametrize(("held", "folded"), [(404, 2), (200, 0)])
def test_a_difference_is_of_one_fold(
    api: Api, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, held: int, folded: int
) -> None:
    asked: list[Sequence[object]] = []

    def fold(_past: object, points: Sequence[object]) -> list[dict[str, Any]]:
        asked.append(points)
        versions = [{**DOCUMENT["row"], "version": number} for number, _ in enumerate(points)]
        return [{**DOCUMENT, "row": row} for row in versions]

    monkeypatch.setattr(past._Past, "_fold_rows", fold)
    api.held = (held, DOCUMENT)
    assert run_command(["session", "diff", SESSION, "offset:7", "event:e1", "--json"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["field"] for line in found] == (["session.version"] if folded else [])
    assert asked == ([[("offset", 7), ("event", "e1")]] if folded else [])
    assert len(api.paths) == 2


@pytest.mark.parametrize(
    ("first", "status", "is_said"),
    [
        (PointUnknown("session s has no event e1"), 404, False),
        (StateExpired("expired on 2026-01-01: the state is of personal data"), 410, False),
        (NotFound("expired: ClickHouse keeps heartbeats for 30 days"), 410, False),
        (PointUnknown("session s has no event e1"), 503, True),
        (Unavailable("ClickHouse does not answer", 1.0), 404, True),
    ],
)
def test_what_no_source_has_is_said_once(
    api: Api,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    first: SessionaryError,
    status: int,
    is_said: bool,
) -> None:
    rows_of(monkeypatch, first)
    api.folded = (status, {"detail": "the log has none"})
    assert run_command(["session", "at", SESSION, "--event", "e1", "--json"]) == (4 if status != 503 else 3)
    said = [text for text in capfd.readouterr().err.splitlines() if text]
    assert len(said) == 1 + is_said, said
    assert "the log has none" in said[-1]


def test_a_broken_chain_in_clickhouse_is_a_check_that_failed(
    api: Api, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise Invalid("broken_chain", "snapshot b has an ancestor a that is not there")

    monkeypatch.setattr("sessionary.infra.past_rows.PastRows.states_at", broken)
    monkeypatch.setenv("SESSIONARY_SIGNING_KEYS", '{"k1": "a key of at least thirty-two bytes"}')
    monkeypatch.delenv("SESSIONARY_CONTROL_URL")
    assert run_command(["session", "at", SESSION, "--snapshot", "b", "--json"]) == 1
    said = "snapshot b has an ancestor a that is not there: rows are missing, and sessionary integrity check finds"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["at", SESSION, "--time"], ["diff", SESSION, "offset:7"]])
def test_a_time_beyond_every_record_is_asked_for_as_it_was_given(api: Api, arguments: list[str]) -> None:
    api.held = (200, DOCUMENT)
    text = "2200-01-01T00:00:00.123"
    given = text if arguments[0] == "at" else f"time:{text}"
    assert run_command(["session", *arguments, given, "--json"]) == 0
    assert api.paths[-1] == f"/v1/sessions/{SESSION}/at?time_ms=7258118400123&fold=false"


@pytest.mark.parametrize(("status", "code"), [(404, 4), (410, 4), (403, 2), (500, 1), (503, 3), (400, 5)])
def test_the_processor_s_refusal_is_one_line_and_a_code(
    api: Api, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    rows_of(monkeypatch, NotFound("nothing there"))
    api.folded = (status, {"detail": "expired on 2026-01-01"})
    assert run_command(["session", "at", SESSION, "--time", "2026-01-01", "--json"]) == code
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "expired on 2026-01-01" in printed.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["at", SESSION], "no option: give one point, by --offset, --time, --snapshot or --event"),
        (["at", SESSION, "--offset", "1", "--event", "e"], "--offset 1 and --event e: give one point, by --offset,"),
        (["at", SESSION, "--time", "yesterday"], "--time yesterday: give 90s, 15m, 2h or 7d ago, or"),
        (["at", SESSION, "--time", "1900-01-01"], "--time 1900-01-01: no session began before 1970; give 90s, 15m"),
        (["diff", SESSION, "time:1969-12-31", "offset:2"], "time: 1969-12-31: no session began before 1970; give"),
        (["at", SESSION, "--event", ""], "--event is empty: give the id of an event"),
        (["diff", SESSION, "offset:1", "moment:2"], "'moment:2' is no point: give offset:NUMBER, time:TIME,"),
        (["diff", SESSION, "offset:x", "offset:2"], "offset: x: give a whole number of 0 or more"),
        (["diff", SESSION, "event:", "offset:2"], "event: is empty: give the id of an event"),
    ],
)
def test_a_bad_point_is_refused_before_any_question(
    api: Api, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.setattr(past, "find_session", lambda *_: pytest.fail("ClickHouse is asked"))
    assert run_command(["session", *arguments, "--json"]) == 5
    assert text in capfd.readouterr().err
    assert api.paths == []


def test_a_difference_is_a_field_with_both_values() -> None:
    later = {
        **DOCUMENT,
        "row": {"state": "Paused", "version": 2, "snapshot": {"snapshot_id": "t"}},
        "children": [*DOCUMENT["children"], {"kind": "MessageState", "turn": 2, "content": "again"}],
    }
    found = {line["field"]: (line["before"], line["after"]) for line in list_differences(DOCUMENT, later)}
    assert found == {
        "session.state": ("Active", "Paused"),
        "session.snapshot.snapshot_id": ("s", "t"),
        "MessageState[2].kind": (None, "MessageState"),
        "MessageState[2].turn": (None, 2),
        "MessageState[2].content": (None, "again"),
    }
    assert list(list_differences(DOCUMENT, DOCUMENT)) == []


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("RunState", ["run_id"]),
        ("FinishedRun", ["run_id"]),
        ("StepState", ["run_id", "name"]),
        ("TimedStep", ["run_id", "name"]),
        ("ToolCallState", ["run_id", "idem_key"]),
        ("EndedToolCall", ["run_id", "idem_key"]),
        ("ArtifactState", ["run_id", "artifact_id"]),
        ("MessageState", ["turn"]),
        ("AgentState", ["agent_id"]),
        ("CheckpointState", ["run_id", "operation"]),
    ],
)
def test_rows_that_differ_in_a_part_of_their_key_are_both_in_a_difference(kind: str, keys: list[str]) -> None:
    for key in keys:
        children = [{"kind": kind, **dict.fromkeys(keys, "x"), key: value} for value in ("one", "two")]
        found = list_differences(DOCUMENT, {**DOCUMENT, "children": [*DOCUMENT["children"], *children]})
        assert [line["after"] for line in found if line["field"].endswith(f".{key}")] == ["one", "two"]
