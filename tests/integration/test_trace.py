"""A session told as a trace, what it accessed, and its line of descent, in the real engine."""

import contextlib
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.sessions.lookup import fetch_line
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.producers import Rejected, Retry, Session, SessionClient, current_session, tool
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_run_views import Runs
from tests.integration.test_view_ranges import rows_read
from tests.support.aged_rows import AgedRows
from tests.support.memory_rows import insert_memory
from tests.support.pipelines import run_sql, set_environment

_LINE = "session_id, root_session_id, depth"

RECORDS = 1_247


class RateLimited(Exception):
    status_code = 429


@tool(effect="read")
def query_sales(quarter: str) -> list[int]:
    return list(range(RECORDS))


def make_forecast_tool(failures: int) -> Callable[[int], str]:
    left = [RateLimited("Rate limit exceeded")] * failures

    @tool(effect="read", retry=Retry(base_ms=400, jitter=0))
    def forecast(rows: int) -> str:
        if left:
            raise left.pop()
        return "up"

    return forecast


@pytest.fixture
def memory() -> InMemoryTransport:
    return InMemoryTransport(partitions=1)


@pytest.fixture
def client(memory: InMemoryTransport) -> SessionClient:
    return memory_client(memory=memory)[0]


def test_a_trace_prints_the_seven_steps_with_arguments_counts_and_error_code(
    tables: ClickHouseSettings,
    memory: InMemoryTransport,
    client: SessionClient,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """R-003-17, of a session that was driven by the client's own tools and retries."""
    forecast = make_forecast_tool(1)
    with client, client.session(user_id="u1") as session:
        session.message("user", "Analyse the sales of 2026-Q3 and forecast the next quarter")
        rows = query_sales("2026-Q3")
        assert forecast(len(rows)) == "up"
    insert_memory(tables, memory)
    set_environment(monkeypatch, tables)
    assert run(["session", "timeline", session.session_id, "--trace", "--json"]) == 0
    steps = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(step["step"], step["what"], step["name"], step["tries"]) for step in steps] == [
        (1, "user query", "user", None),
        (2, "tool call", "query_sales", 1),
        (3, "result", "query_sales", 1),
        (4, "tool call", "forecast", 1),
        (5, "error", "forecast", 1),
        (6, "retry", "forecast", 2),
        (7, "success", "forecast", 2),
    ]
    texts = [step["text"] for step in steps]
    assert texts[0] == "Analyse the sales of 2026-Q3 and forecast the next quarter"
    assert texts[1] == '{"quarter":"2026-Q3"}'
    assert texts[2].startswith("1,247 records: [0,1,2,")
    assert texts[3:] == [
        '{"rows":1247}',
        "Rate limit exceeded (429), retryable",
        'try 2: retry 1 of 5, after exponential back-off of 0.4 s; {"rows":1247}',
        '"up"',
    ]
    assert (steps[2]["records"], steps[4]["error_code"]) == (RECORDS, "http_429")


READERS = """
SELECT DISTINCT session_id FROM v_resource_accesses
WHERE uri = '{uri}' AND operation = 'read' AND access_time BETWEEN '{t1}' AND '{t2}'
ORDER BY session_id
"""


def test_which_sessions_read_a_resource_between_two_times_is_one_query(
    tables: ClickHouseSettings, memory: InMemoryTransport, tmp_path: Path
) -> None:
    """R-003-30; and R-003-23: accesses of the client's own artifacts need no code of the caller."""
    client = memory_client(memory=memory, artifacts=tmp_path)[0]
    ids: list[str] = []

    @tool(effect="read")
    def read_sales() -> str:
        session = current_session()
        assert session is not None
        session.access("file:///sales.csv")
        return "sales"

    with client:
        for number in range(4):
            with client.session(user_id="u1") as session:
                ids.append(session.session_id)
                if number == 0:
                    session.access("file:///sales.csv", "write")
                else:
                    read_sales()
            memory.advance(60)
        library = client.artifacts
        assert library is not None
        with client.session(user_id="u1") as session:
            ids.append(session.session_id)
            saved = library.save(session, "a text", "markdown")
            library.load(saved.reference)
        library.load(saved.reference)
    insert_memory(tables, memory)
    rows = AgedRows(tables)
    times = rows.fetch_values(
        "SELECT toString(access_time) FROM v_resource_accesses WHERE uri = 'file:///sales.csv' ORDER BY access_time"
    )
    assert len(times) == 4
    asked = READERS.format(uri="file:///sales.csv", t1=times[0][0], t2=times[2][0])
    assert rows.fetch_values(asked) == [(each,) for each in sorted(ids[1:3])]
    found = "SELECT session_id, operation, tool_name FROM v_resource_accesses WHERE uri = '{}' ORDER BY access_time"
    assert rows.fetch_values(found.format("file:///sales.csv")) == [
        (ids[0], "write", None),
        *((each, "read", "read_sales") for each in ids[1:4]),
    ]
    assert rows.fetch_values(found.format(saved.uri)) == [(ids[4], "write", None), (ids[4], "read", None)]
    assert memory.rejections() == []


def test_a_rejected_access_that_is_delivered_again_is_none(tables: ClickHouseSettings) -> None:
    runs = Runs(tables)
    for uri in ("file:///theirs.csv", "file:///own.csv"):
        runs.send(SessionActivity("read", "", uri=uri), run=None)
    runs.reject(0, "stale_epoch")
    runs.deliver(*runs.sent)
    found = "SELECT uri, source_offset FROM v_resource_accesses"
    assert AgedRows(tables).fetch_values(found) == [("file:///own.csv", 1)]


def test_the_last_tool_and_its_result_are_seen(tables: ClickHouseSettings, memory: InMemoryTransport) -> None:
    """R-003-55, in the row and in ClickHouse."""
    client = memory_client(memory=memory)[0]
    forecast = make_forecast_tool(9)
    with client, client.session(user_id="u1") as session:
        assert (memory.find_row(session).last_tool, memory.find_row(session).last_result) == (None, None)
        query_sales("2026-Q3")
        row = memory.find_row(session)
        assert row.last_tool == "query_sales"
        assert row.last_result == f"{list(range(RECORDS))}".replace(" ", "")[:256]
        with pytest.raises(RateLimited):
            forecast(1)
        row = memory.find_row(session)
    insert_memory(tables, memory)
    last = ("forecast", "failed: http_429: Rate limit exceeded")
    assert (row.last_tool, row.last_result) == last
    assert AgedRows(tables).fetch_values("SELECT last_tool, last_result FROM v_sessions") == [last]


def test_the_line_of_descent_of_sessions_is_a_view_and_is_shown(
    tables: ClickHouseSettings,
    memory: InMemoryTransport,
    client: SessionClient,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """R-003-01: three sessions of a user, each with the former one's context; and odd parents."""
    gone, first_of_two, second_of_two = (str(uuid.uuid4()) for _ in range(3))
    line: list[Session] = []
    with client:
        for number in range(3):
            source = line[-1] if line else None
            with client.session(user_id="u1", from_session=source) as session:
                session.update_state({**session.state, f"note-{number}": True})
            line.append(session)
            memory.advance(1)
        assert session.state == {f"note-{number}": True for number in range(3)}
        orphan = client.create(user_id="u1", parent=gone)
        client.create(user_id="u1", session_id=first_of_two, parent=second_of_two)
        client.create(user_id="u1", session_id=second_of_two, parent=first_of_two)
    insert_memory(tables, memory)
    ids = [session.session_id for session in line]
    snapshots = [memory.view_session(session).snapshot_id for session in line]
    columns = "session_id, parent_session_id, snapshot_id, root_session_id, depth"
    assert sorted(AgedRows(tables).fetch_values(f"SELECT {columns} FROM v_lineage")) == sorted(
        [
            (ids[0], None, None, ids[0], 0),
            (ids[1], ids[0], snapshots[0], ids[0], 1),
            (ids[2], ids[1], snapshots[1], ids[0], 2),
            (orphan.session_id, gone, None, orphan.session_id, 0),
            (first_of_two, second_of_two, None, None, None),
            (second_of_two, first_of_two, None, None, None),
        ]
    )
    set_environment(monkeypatch, tables)
    for session_id, wanted in ((ids[2], [*zip(ids, [None, *snapshots[:2]], strict=True)]), (first_of_two, [])):
        assert run(["session", "show", session_id, "--json"]) == 0
        shown = json.loads(capfd.readouterr().out)
        assert [(row["session_id"], row["snapshot_id"]) for row in shown["lineage"]] == wanted


def test_a_line_of_very_many_sessions_leaves_the_others_their_lines(
    tables: ClickHouseSettings,
    memory: InMemoryTransport,
    client: SessionClient,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """ClickHouse refuses a recursion of more than 1,000 steps: root and depth end before it."""
    ids: list[str] = []
    with client:
        for _ in range(1_010):
            last = client.create(user_id="u1", parent=ids[-1] if ids else None)
            ids.append(last.session_id)
        first = client.create(user_id="u1")
        second = client.create(user_id="u1", parent=first.session_id)
    insert_memory(tables, memory)
    found = {row[0]: row[1:] for row in AgedRows(tables).fetch_values(f"SELECT {_LINE} FROM v_lineage")}
    assert found[second.session_id] == (first.session_id, 1)
    assert [found[session_id] for session_id in ids] == [
        (ids[0], depth) if depth < 1_000 else (None, None) for depth in range(1_010)
    ]
    set_environment(monkeypatch, tables)
    lines = {second: [(first.session_id, 0), (second.session_id, 1)], last: [(each, None) for each in ids[-100:]]}
    for session, line in lines.items():
        assert run(["session", "show", session.session_id, "--json"]) == 0
        shown = json.loads(capfd.readouterr().out)["lineage"]
        assert [(row["session_id"], row["depth"]) for row in shown] == line


class CountingClient(ClickHouseClient):
    """Notes how many rows each query reads."""

    def __init__(self, settings: ClickHouseSettings) -> None:
        super().__init__(settings)
        self.reads: list[int] = []

    def fetch_rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]:
        text = re.sub(r"\bFROM (history|rejected)\b", rf"FROM {self.database}.\1", sql)
        for name, value in parameters.items():
            text = text.replace(f"{{{name}:String}}", f"'{value}'")
        self.reads.append(rows_read(self._settings, text))
        return super().fetch_rows(sql, **parameters)


def test_a_line_of_descent_reads_each_of_its_sessions_once_and_no_others_rejections(
    tables: ClickHouseSettings, memory: InMemoryTransport, client: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first creation that was rejected says nothing of the session's parent."""
    first_id = str(uuid.uuid4())
    with client:
        with monkeypatch.context() as patched, contextlib.suppress(Rejected):
            patched.setattr("sessionary.producers.session.polled.canonical_json", lambda state: "[1]")
            client.create(user_id="u1", session_id=first_id, parent=str(uuid.uuid4()))
        first = client.create(user_id="u1", session_id=first_id)
        second = client.create(user_id="u1", parent=first_id)
        last = client.create(user_id="u1", parent=second.session_id)
    assert [(each.event_type, each.reason) for each in memory.rejections()] == [("session_created", "invalid_value")]
    insert_memory(tables, memory)
    run_sql(
        tables,
        f"INSERT INTO {tables.clickhouse_database}.rejected (reason, source_topic, source_partition, source_offset, "
        "appended_at, retain_until, personal_expires) SELECT 'late', 'events', 0, 1000 + number, now64(6), "
        "now64(6) + INTERVAL 9 DAY, now() + INTERVAL 9 DAY FROM numbers(200000)",
    )
    source = CountingClient(tables)
    line = fetch_line(source, "acme", last.session_id)
    ids = [first.session_id, second.session_id, last.session_id]
    assert [(row["session_id"], row["parent_session_id"]) for row in line] == [*zip(ids, [None, *ids], strict=False)]
    assert len(source.reads) == 3
    assert max(source.reads) < 50_000, source.reads
