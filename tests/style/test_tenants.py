"""Every query of sessions, runs, steps and calls is one of a tenant, or of an operator by name."""

import ast
import re
from collections.abc import Iterator

from sessionary.sinks.clickhouse.migrate import shipped_schema
from tests.style.project import ROOT, Module, product_modules

# What reads the rows of all tenants, and why it may.
ACROSS_TENANTS = {
    "sessionary/infra/cli/commands/demo.py": "prints commands for the demo's own run",
    "sessionary/infra/cli/commands/doctor.py": "counts faults for operators",
    "sessionary/infra/cli/commands/integrity.py": "counts faults for operators",
    "sessionary/infra/cli/commands/operators/moves.py": "operators look at migrations by their target",
    "sessionary/infra/cli/commands/rejected.py": "operators replay a record by its place",
    "sessionary/infra/cli/commands/sessions/timeline.py": "picks a session for a demonstration",
    "sessionary/infra/demo/report.py": "reads the demo's own sessions by their ids",
    "sessionary/infra/cli/commands/operators/artifacts.py": "tenants share a body that has the same hash",
    "sessionary/infra/kpi/key_figures.py": "figures of the whole pipeline, for operators",
    "sessionary/infra/demo/migration.py": "counts faults of all rows, for the demo's operator",
    "sessionary/infra/demo/workflow.py": "reads the demo's own session by its id",
    "sessionary/infra/past_rows.py": "of other sessions it reads offsets and times, which move the clock",
}
_NAMES_TENANT = re.compile(r"tenant|\{_?of_session\}", re.IGNORECASE)
_READS = re.compile(r"\bFROM\s+(?:\{[\w.]+\}\.)?(v_\w+|history|audit|rejected|run_events)\b")
# The clauses that put rows together; in each of them a session is named with its tenant.
_TOGETHER = re.compile(r"\b(?:GROUP BY|PARTITION BY|LIMIT 1 BY|\bON)\s+([^\n;)]*\bsession_id\b[^\n;)]*)")
# How a page of the control API comes to rows: these take the tenant of the caller's token.
_BY_TOKEN = (
    "ask_owner",
    "ask_task",
    "ask_to_follow",
    "require_reader",
    "require_run",
    "require_parent",
    "require_session",
)


def statements_of(module: Module) -> Iterator[str]:
    """Yield the texts of a module that read tables or views; of an f-string its source."""
    joined = [node for node in ast.walk(module.tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in ast.walk(node)} - set(map(id, joined))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            text = ast.unparse(node)
            if id(node) not in parts and _READS.search(text):
                yield text


def pages_with_rows() -> list[Module]:
    """Return the modules of the control API that look at committed rows."""
    return [m for m in product_modules() if "/api/" in m.name and ".rows" in m.text]


def test_every_statement_names_a_tenant_or_is_an_operators() -> None:
    found = {
        module.name.partition("/")[2]
        for module in product_modules()
        if module.name.startswith("infra/")
        for statement in statements_of(module)
        if not _NAMES_TENANT.search(statement)
    }
    assert found == set(ACROSS_TENANTS)


def test_views_put_together_no_rows_of_two_tenants() -> None:
    views = {view.name: "\n".join(view.statements("db")) for view in shipped_schema().views}
    clauses = [(name, clause) for name, text in views.items() for clause in _TOGETHER.findall(text)]
    assert len(clauses) > 10
    assert [(name, clause) for name, clause in clauses if "tenant_id" not in clause] == []


def test_every_page_finds_rows_by_the_tenant_of_its_token() -> None:
    modules = pages_with_rows()
    assert len(modules) > 5
    assert [module.name for module in modules if not any(name in module.text for name in _BY_TOKEN)] == []


def test_the_rules_of_tenants_can_fail() -> None:
    module = ast.parse('a = f"SELECT * FROM v_runs WHERE run_id = {1}"\nb = "SELECT 1 FROM other"')
    found = list(statements_of(Module(ROOT / "x.py", "", module)))
    assert found == ["f'SELECT * FROM v_runs WHERE run_id = {1}'"]
    assert _TOGETHER.findall("SELECT 1 GROUP BY session_id, run_id\n") == ["session_id, run_id"]
