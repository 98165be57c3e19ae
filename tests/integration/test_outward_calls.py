"""Queries that would reach out of the database, as ClickHouse itself parses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sessionary.infra.cli.commands.sql import find_outward_calls
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.errors import Invalid
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.pipeline_rig import COMMAND
from tests.support.pipelines import environment, run_sql

_SAFE = (
    "SELECT 1",
    "SELECT number FROM numbers(3) WHERE number IN (SELECT number FROM zeros(2) UNION ALL SELECT 1)",
    "WITH url AS (SELECT 1 AS n) SELECT n, 'file(1)' AS s /* url('http://x') */ FROM url -- remote('x')",
    "SELECT url, remote AS s3, t.n FROM (SELECT 'x' AS url, 2 AS remote, 3 AS n) AS t",
    "SELECT sumIf(n, n > 1), arrayMap(x -> x + 1, [1]), CAST(1 AS String), format('{}', 'file') FROM t",
    "SELECT * EXCEPT (n) FROM t FINAL",
    "SELECT * FROM `odd name`",
    "SELECT name FROM system.tables WHERE database = currentDatabase() LIMIT 1",
    "SELECT * FROM values('n UInt8', 1, 2)",
    "SELECT * FROM other_between.v_t_between(from = '2026-01-01', to = now())",
    "SHOW TABLES",
    "DESCRIBE t",
    "EXISTS TABLE t",
    "EXPLAIN SELECT 1",
)
_OUTWARD = (
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV')",
    "SELECT * FROM UrL/* hidden */('http://127.0.0.1:1/', 'CSV')",
    "SELECT * FROM `url`('http://127.0.0.1:1/', CSV)",
    "SELECT * FROM \"file\" ('/etc/hostname', 'LineAsString')",
    "WITH x AS (SELECT * FROM remote('127.0.0.1:1', system.one)) SELECT * FROM x",
    "SELECT (SELECT count() FROM s3('http://127.0.0.1:1/b', 'CSV'))",
    "SELECT * FROM numbers(3) AS n JOIN mysql('127.0.0.1:1', 'd', 't', 'u', 'p') AS m ON n.number = m.a",
    "SELECT * FROM view(SELECT * FROM executable('cat', 'TSV', 'a String'))",
    "SELECT * FROM viewIfPermitted(SELECT 1 AS n ELSE url('http://127.0.0.1:1/', 'CSV', 'n UInt8'))",
    "SELECT * FROM loop(url('http://127.0.0.1:1/'))",
    "SELECT * FROM cluster('default', system.one)",
    "SELECT * FROM eval('SELECT 1')",
    "SELECT 1 IN url('http://127.0.0.1:1/', 'CSV')",
    "SELECT 1 WHERE EXISTS (SELECT * FROM postgresql('127.0.0.1:1', 'd', 't', 'u', 'p'))",
    "(SELECT 1) UNION ALL (SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'n UInt8'))",
    "SELECT file('/etc/hostname')",
    "SELECT arrayMap(file, ['/etc/hostname'])",
    "WITH file AS f SELECT arrayMap(f, ['/etc/hostname'])",
    "SELECT arrayMap(x -> file(x), ['/etc/hostname'])",
    "SELECT * APPLY(file) FROM (SELECT '/etc/hostname' AS a)",
    "SELECT * APPLY(x -> file(x)) FROM (SELECT '/etc/hostname' AS a)",
    "SELECT * REPLACE(file(a) AS a) FROM (SELECT '/etc/hostname' AS a)",
    "SELECT n FROM t ORDER BY n WITH FILL FROM length(file('/etc/hostname'))",
    "SELECT sum(n) OVER (PARTITION BY file('/etc/hostname')) FROM t",
    "SELECT 1 SETTINGS additional_result_filter = 'length(file(\\'/etc/hostname\\')) > 0'",
    "SELECT * FROM (SELECT 1 SETTINGS max_threads = 1)",
    "SELECT * FROM '/etc/hostname'",
    "SELECT * FROM default.`/etc/hostname`",
    "SELECT 'x' IN `/etc/hostname`",
    "SELECT aiGenerate('collection', 'hello')",
    "SELECT hasColumnInTable('127.0.0.2', 'default', '', 'system', 'one', 'dummy')",
    "DESCRIBE url('http://127.0.0.1:1/', 'CSV')",
    "DESCRIBE TABLE '/etc/hostname'",
    "EXPLAIN SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'n UInt8')",
    "EXPLAIN AST SELECT file('/etc/hostname')",
)


@pytest.fixture
def tables(clickhouse: ClickHouseSettings) -> ClickHouseSettings:
    for name in ("t", "`odd name`"):
        run_sql(
            clickhouse,
            f"CREATE TABLE {clickhouse.clickhouse_database}.{name} (n UInt64) ENGINE = ReplacingMergeTree ORDER BY n",
        )
    return clickhouse


def test_queries_of_the_database_are_safe(tables: ClickHouseSettings) -> None:
    client = ClickHouseClient(tables)
    assert {query: find_outward_calls(client, query) for query in _SAFE} == {query: [] for query in _SAFE}


def test_no_spelling_hides_a_call_that_reaches_out(tables: ClickHouseSettings) -> None:
    client = ClickHouseClient(tables)
    assert [query for query in _OUTWARD if not find_outward_calls(client, query)] == []


def test_a_file_that_would_be_written_is_refused(tables: ClickHouseSettings, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with pytest.raises(Invalid):
        find_outward_calls(ClickHouseClient(tables), f"SELECT 1 INTO OUTFILE '{target}' FORMAT CSV")
    assert not target.exists()


def test_the_command_runs_a_query_that_reaches_out_only_if_asked(tables: ClickHouseSettings, tmp_path: Path) -> None:
    source = tmp_path / "reported.csv"
    source.write_text("41\n")
    query = f"SELECT c1 + 1 AS n FROM file('{source}', 'CSV')"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(tables), "PATH": str(Path(sys.executable).parent)}
        return subprocess.run([COMMAND, "sql", *arguments], capture_output=True, text=True, env=env, check=False)

    refused = run(query)
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr == (
        "sessionary: this query is not safe: file() reaches out of the database. If you trust it, add --unsafe\n"
    )
    assert json.loads(run("--unsafe", query).stdout) == {"n": 42}
    assert json.loads(run("SELECT count() AS n FROM t").stdout) == {"n": 0}
