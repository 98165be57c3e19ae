"""A tenant's user of ClickHouse sees no row of another tenant, in any table or view.

The local engine has one user, and no place where a statement could store users, policies or rights.
It reads those of a file of users, so the policies' conditions and the grants are tested there, over
every table and view. The rest of the statements is only parsed, by the same engine.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.admin import tenant_policies, tenant_rights
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.schemas.errors import Invalid
from sessionary.schemas.events import ArtifactCreated, CheckpointSaved, MessageAppended, StepStarted
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_run_views import STARTED, Runs, call_started
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import new_clickhouse, run_sql
from tests.support.sink_records import usage

_ASK = """
import json, sys, chdb
place, statements = sys.argv[1], json.loads(sys.argv[2])
engine = chdb.connect(place)
def ask(statement):
    try:
        return engine.query(statement, "TSV").data().strip()
    except Exception as error:
        return str(error)
print(json.dumps([ask(each) for each in statements]))
"""
_REFUSED = re.compile(r"it's necessary to have the grant SELECT.* ON \w+\.(\w+)\. \(ACCESS_DENIED\)")


def fill_tables(clickhouse: ClickHouseSettings) -> Runs:
    """Insert what runs of two tenants leave; both have the same run id."""
    runs = Runs(clickhouse)
    for tenant in ("acme", "other"):
        payloads = (STARTED, StepStarted("a", 1, "{}"), call_started("k"), ArtifactCreated("f1", "json", "file:///f1"))
        last = runs.send(*payloads, CheckpointSaved("c", "parse", None, 7), MessageAppended("user"), tenant_id=tenant)
        runs.deliver(usage(seq=last + 50, tenant_id=tenant))
        lost = {"tenant_id": tenant, "to_run_state": "paused", "reason_code": "connection_lost"}
        runs.decide(last, 1, kind="run", event_type="run_paused", **lost)
    runs.reject(runs.send(StepStarted("forged", 1, "{}")))
    columns = "tenant_id, session_id, artifact_id, created_at, deleted_at, stage"
    values = ", ".join(f"('{tenant}', 's', 'f0', now(), now(), 1)" for tenant in ("acme", "other"))
    run_sql(clickhouse, f"INSERT INTO {clickhouse.clickhouse_database}.artifact_deletions ({columns}) VALUES {values}")
    dismissed = ", ".join(f"('chain_broken', '{tenant}', 's', 1, 'why', 'ann')" for tenant in ("acme", "other"))
    columns = "fault, tenant_id, session_id, rows, reason, dismissed_by"
    run_sql(clickhouse, f"INSERT INTO {clickhouse.clickhouse_database}.dismissed_faults ({columns}) VALUES {dismissed}")
    return runs


def write_users(folder: Path, rights: str) -> str:
    """Write the engine's configuration with its user's policies and grants; return the address."""
    users = (
        "<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default><password></password>"
        f"<networks><ip>::/0</ip></networks>{rights}</default></users></clickhouse>"
    )
    (folder / "users.xml").write_text(users)
    directories = f"<user_directories><users_xml><path>{folder / 'users.xml'}</path></users_xml></user_directories>"
    (folder / "config.xml").write_text(f"<clickhouse>{directories}</clickhouse>")
    return f"{folder / 'data'}?config-file={folder / 'config.xml'}"


def ask_engine(place: str, statements: list[str]) -> list[str]:
    command = [sys.executable, "-c", _ASK, place, json.dumps(statements)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stderr
    found: list[str] = json.loads(answer.stdout)
    return found


def tenant_sees(place: str, database: str, names: list[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return own and foreign rows by table or view, and for a refused one what it may not read."""
    counts = [f"SELECT countIf(tenant_id = 'acme'), countIf(tenant_id != 'acme') FROM {database}.{n}" for n in names]
    answers = dict(zip(names, ask_engine(place, counts), strict=True))
    refused = {name: found[1] for name, answer in answers.items() if (found := _REFUSED.search(answer))}
    return {name: [int(n) for n in answers[name].split()] for name in names if name not in refused}, refused


def test_a_tenant_sees_its_own_rows_and_none_of_another_one_in_every_table_and_view(tmp_path: Path) -> None:
    server = LocalClickHouse(tmp_path / "data", None, tmp_path / "clickhouse.log")
    server.start()
    try:
        server.wait_ready()
        clickhouse = new_clickhouse(server.url)
        make_tables(clickhouse)
        fill_tables(clickhouse)
        source, database = ClickHouseClient(clickhouse), clickhouse.clickhouse_database
        policies = tenant_policies(source, "acme")
        rights = [each for each in tenant_rights(source, "acme", "default") if each.startswith("GRANT ")]
        names = [
            str(row["table"])
            for row in source.fetch_rows(
                "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'tenant_id' "
                "AND table NOT IN (SELECT name FROM system.tables WHERE engine = 'MaterializedView') ORDER BY table"
            )
        ]
    finally:
        server.stop()
    tables = "".join(f"<{p.table}><filter>{escape(p.condition)}</filter></{p.table}>" for p in policies)
    filters = f"<databases><{database}>{tables}</{database}></databases>"
    grants = "".join(f"<query>{each.removesuffix(' TO `default`')}</query>" for each in rights)
    operator, _ = tenant_sees(write_users(tmp_path, ""), database, names)
    both = {name for name, (ours, theirs) in operator.items() if ours and theirs}
    assert {"history", "audit", "run_events", "artifact_deletions"} <= both
    assert {"v_runs", "v_steps", "v_reserved_calls", "v_artifacts", "v_messages", "v_checkpoints"} <= both
    assert {"v_run_progress", "v_lost_connections", "v_usage", "v_causes", "v_sessions"} <= both
    filtered, _ = tenant_sees(write_users(tmp_path, filters), database, names)
    assert filtered == {name: [ours, 0] for name, (ours, _) in operator.items()}
    place = write_users(tmp_path, f"{filters}<grants>{grants}</grants>")
    granted, refused = tenant_sees(place, database, names)
    # Two views also read transactions, which no tenant may; and reasons are for operators.
    of_operators = {"dismissed_faults": "dismissed_faults"}
    assert refused == {"v_integrity": "batches", "v_transition_latency": "batches", **of_operators}
    assert granted == {name: counts for name, counts in filtered.items() if name not in refused}
    others = ("batches", "sink_dead_letters", "schema_migrations")
    assert all(
        "ACCESS_DENIED" in answer for answer in ask_engine(place, [f"SELECT * FROM {database}.{n}" for n in others])
    )


def test_the_statements_cover_each_table_of_tenants_before_they_grant_anything(tables: ClickHouseSettings) -> None:
    fill_tables(tables)
    statements = tenant_rights(ClickHouseClient(tables), "o'hara", "ann")
    kinds = [statement.split()[0] for statement in statements]
    assert kinds == sorted(kinds), "policies first"
    database = tables.clickhouse_database
    named = ("artifact_deletions", "audit", "dismissed_faults", "history", "rejected", "run_events")
    assert [statement for statement in statements if statement.startswith("CREATE")] == [
        f"CREATE ROW POLICY OR REPLACE `ann reads o_hara` ON {database}.{table} FOR SELECT "
        f"USING tenant_id = 'o\\'hara' TO `ann`"
        for table in named
    ]
    granted = {statement.split()[3] for statement in statements if statement.startswith("GRANT")}
    tables_granted = set(named) - {"dismissed_faults"}
    assert {f"{database}.{name}" for name in (*tables_granted, "v_runs")} <= granted
    assert f"{tables.between_database}.v_usage_between" in granted
    assert f"{database}.dismissed_faults" not in granted
    assert granted.isdisjoint({f"{database}.{name}" for name in ("batches", "sink_dead_letters", "schema_migrations")})
    with pytest.raises(Invalid, match="no user"):
        tenant_rights(ClickHouseClient(tables), "acme", "a`; DROP")


def test_the_server_understands_the_statements_and_the_command_prints_them(
    tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill_tables(tables)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    assert run(["db", "rights", "acme", "--user", "ann"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [f"{line};" for line in tenant_rights(ClickHouseClient(tables), "acme", "ann")] == lines
    source = ClickHouseClient(tables)
    for line in lines:
        assert source.fetch_rows(f"EXPLAIN AST {line.rstrip(';')}"), line
