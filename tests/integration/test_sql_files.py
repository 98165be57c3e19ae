"""Files that `sessionary sql` writes are read whole: bytes are bytes, and no text is a formula."""

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.file_formats import guard_csv
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.clickhouse_rows import insert_records
from tests.support.pipelines import run_sql
from tests.support.sink_records import NOW_US, agent_event

TEXTS: Final = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "plain", 'a "quoted", text\n=1', "ü")
EVENTS: Final = [agent_event(MessageAppended("user", text), seq=n) for n, text in enumerate(TEXTS, 1)]
QUERY: Final = (
    "SELECT source_offset AS n, -n AS below, event_type, appended_at, toDate(appended_at) AS day, user_id, "
    "JSONExtractString(payload_json, 'content') AS content, value_bytes, key_bytes, headers, value_bytes AS renamed, "
    "map('a', 'b') AS pairs, nullIf(n, 0) AS maybe FROM history FINAL ORDER BY source_offset -- the end"
)


@pytest.fixture
def stack(tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch) -> ClickHouseSettings:
    """A database with events whose bytes are no UTF-8, for the command line."""
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    insert_records(tables, "history", EVENTS, NOW_US)
    return tables


def write(path: Path) -> Path:
    assert run(["sql", QUERY, "--output", str(path)]) == 0
    return path


def check_table(table: Any) -> None:
    """Check a table of pyarrow: types and values."""
    assert table.num_rows == len(EVENTS)
    types = {field.name: field.type for field in table.schema}
    assert [types[name] for name in ("value_bytes", "key_bytes", "renamed")] == [pa.binary()] * 3
    assert [types[name] for name in ("event_type", "content", "user_id")] == [pa.string()] * 3
    assert types["appended_at"] == pa.timestamp("ms", tz="UTC")
    assert types["day"] == pa.date32()
    assert types["pairs"] == pa.map_(pa.string(), pa.string()) or "string" in str(types["pairs"])
    assert table["value_bytes"].to_pylist() == table["renamed"].to_pylist() == EVENTS
    assert table["content"].to_pylist() == list(TEXTS)
    assert table["maybe"].to_pylist() == [None, *range(1, len(EVENTS))]
    frame = table.to_pandas()
    assert list(frame["value_bytes"]) == EVENTS
    assert str(frame["appended_at"].dtype) == "datetime64[ms, UTC]"


def test_parquet_and_arrow_have_bytes_texts_and_times_as_such(stack: ClickHouseSettings, tmp_path: Path) -> None:
    check_table(pyarrow.parquet.read_table(write(tmp_path / "rows.parquet")))
    check_table(pyarrow.feather.read_table(write(tmp_path / "rows.arrow")))
    assert list(pd.read_parquet(tmp_path / "rows.parquet")["value_bytes"]) == EVENTS
    assert list(pd.read_feather(tmp_path / "rows.arrow")["content"]) == list(TEXTS)


def test_all_of_each_table_can_be_written_and_read(stack: ClickHouseSettings, tmp_path: Path) -> None:
    for table in ("history", "rejected", "audit", "v_sessions", "v_activity", "v_tool_calls", "v_usage_by"):
        for ending in ("parquet", "arrow", "csv", "json"):
            path = tmp_path / f"{table}.{ending}"
            assert run(["sql", f"SELECT * FROM {table}", "--output", str(path)]) == 0
        frames = (pd.read_parquet(tmp_path / f"{table}.parquet"), pd.read_feather(tmp_path / f"{table}.arrow"))
        expected = int(run_sql(stack, f"SELECT count() FROM {stack.clickhouse_database}.{table}"))
        assert [len(frame) for frame in (*frames, pd.read_csv(tmp_path / f"{table}.csv"))] == [expected] * 3
        assert [*frames[0].columns] == [*frames[1].columns] == [*pd.read_csv(tmp_path / f"{table}.csv").columns]


def test_bytes_within_lists_and_maps_are_bytes_too(stack: ClickHouseSettings, tmp_path: Path) -> None:
    query = "SELECT [('name', unhex('ff'))] AS headers, map('k', unhex('fe')) AS pairs, [['ü']] AS texts"
    for name, read in (("n.parquet", pyarrow.parquet.read_table), ("n.arrow", pyarrow.feather.read_table)):
        assert run(["sql", query, "--output", str(tmp_path / name)]) == 0
        (row,) = read(tmp_path / name).to_pylist()
        assert list(row["headers"][0].values())[1] == b"\xff"
        assert [part for _, part in row["pairs"]] == [b"\xfe"]
        assert row["texts"] == [["ü"]]
    assert run(["sql", query, "--output", str(tmp_path / "n.json")]) == 0
    (line,) = (tmp_path / "n.json").read_text("utf-8").splitlines()
    assert json.loads(line)["pairs"] == {"k": "\ufffd"}


def test_csv_has_no_formula_and_its_bytes_are_base64(stack: ClickHouseSettings, tmp_path: Path) -> None:
    text = write(tmp_path / "rows.csv").read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    encoded = [base64.b64encode(value).decode() for value in EVENTS]
    assert [row["content"] for row in rows] == [f"'{text}" if n < 8 else text for n, text in enumerate(TEXTS)]
    assert [row["value_bytes"] for row in rows] == [row["renamed"] for row in rows] == encoded
    assert [row["below"] for row in rows] == ["0", *(f"-{n}" for n in range(1, len(rows)))], "a number is none"
    frame = pd.read_csv(tmp_path / "rows.csv", parse_dates=["appended_at"])
    assert len(frame) == len(EVENTS)
    assert str(frame["appended_at"].dtype).endswith("UTC]")


def test_json_lines_have_bytes_in_base64_in_a_file_and_in_a_pipe(
    stack: ClickHouseSettings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = write(tmp_path / "rows.json").read_text("utf-8").splitlines()
    assert run(["sql", QUERY]) == 0
    rows = [json.loads(line) for line in lines]
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == rows
    assert [base64.b64decode(row["value_bytes"]) for row in rows] == EVENTS
    assert [row["content"] for row in rows] == list(TEXTS)
    frame = pd.read_json(tmp_path / "rows.json", lines=True)
    assert list(frame["content"]) == list(TEXTS)


def test_what_is_no_select_is_written_too(
    stack: ClickHouseSettings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["sql", "SHOW TABLES", "--output", str(tmp_path / "t.parquet")]) == 0
    assert "history" in list(pd.read_parquet(tmp_path / "t.parquet")["name"])
    assert run(["sql", "SHOW TABLES LIKE 'history'", "--format", "csv"]) == 0
    assert capfd.readouterr().out == '"name"\n"history"\n'
    assert run(["sql", "SELECT value_bytes FROM history WHERE 0", "--output", str(tmp_path / "none.parquet")]) == 0
    assert pyarrow.parquet.read_table(tmp_path / "none.parquet").schema.types == [pa.binary()]


def test_texts_are_guarded_however_the_answer_is_cut() -> None:
    text = b'"a","=b"\n1,"x ""=""\n=c"\n-2,"=\xff"\n"+","a,\n""=d"\n'
    guarded = b'"a","\'=b"\n1,"x ""=""\n=c"\n-2,"\'=\xef\xbf\xbd"\n"\'+","a,\n""=d"\n'
    for size in range(1, len(text) + 1):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert b"".join(guard_csv(chunks)) == guarded, size
    assert b"".join(guard_csv([])) == b""
    assert not re.search(rb'(^|,)"[=+@-]', guarded, re.MULTILINE)
