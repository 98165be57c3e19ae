"""DuckDB and polars (MIT, 240 MB) read what `sessionary sql` writes, in their own environment."""

import json
import sys
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_sql_files import EVENTS, QUERY, TEXTS
from tests.packaging.wheel_rig import run_clean
from tests.support.clickhouse_rows import insert_records
from tests.support.sink_records import NOW_US

_READERS = ("duckdb==2.0.1", "polars==2.1.0")
_READ = """
import json, sys
import duckdb, polars

found = {}
for ending in ("parquet", "csv", "json"):
    rows = duckdb.sql(f"SELECT value_bytes, content FROM read_{ending}('rows.{ending}')").fetchall()
    found[f"duckdb {ending}"] = [[value.hex() if isinstance(value, bytes) else value, text] for value, text in rows]
for ending, read in (
    ("parquet", polars.read_parquet),
    ("arrow", polars.read_ipc),
    ("csv", polars.read_csv),
    ("json", polars.read_ndjson),
):
    rows = read(f"rows.{ending}").select("value_bytes", "content").rows()
    found[f"polars {ending}"] = [[value.hex() if isinstance(value, bytes) else value, text] for value, text in rows]
json.dump(found, sys.stdout)
"""


def test_duckdb_and_polars_read_each_format_whole(
    tables: ClickHouseSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_clean(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run_clean(python, "-m", "pip", "install", "--quiet", *_READERS, cwd=tmp_path)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    insert_records(tables, "history", EVENTS, NOW_US)
    for ending in ("parquet", "arrow", "csv", "json"):
        assert run(["sql", QUERY, "--output", str(tmp_path / f"rows.{ending}")]) == 0
    (tmp_path / "read.py").write_text(_READ)
    found = json.loads(run_clean(python, "read.py", cwd=tmp_path))
    for name, rows in found.items():
        texts = [text for _, text in rows]
        if name.endswith("csv"):
            assert len(texts) == len(TEXTS), name
            continue
        assert texts == list(TEXTS), name
        if name.endswith(("parquet", "arrow")):
            assert [bytes.fromhex(value) for value, _ in rows] == EVENTS, name
    assert len(found) == 7
