"""The dashboards: made from their tables, read by Prometheus' own tool, over metrics that exist."""

import json
from pathlib import Path

import pytest

from tests.support.dashboards.boards import BOARDS, json_path
from tests.support.dashboards.panel import RATE_INTERVAL, Board, Panel, dashboard_json
from tests.support.metrics_table import expression_metrics, metric_helps
from tests.support.prometheus import needs_promtool, run_promtool


def named_metrics(panel: Panel) -> set[str]:
    """Return the metrics of a panel's expressions."""
    return {name for query in panel.queries for name in expression_metrics(query.expression)}


def all_panels() -> list[Panel]:
    return [panel for board in BOARDS for panel in board.panels]


def check_expressions(expressions: list[str], folder: Path) -> tuple[int, str]:
    """Return promtool's exit code and output for a file with a rule per expression."""
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace(RATE_INTERVAL, "1m")}
        for number, expression in enumerate(expressions)
    ]
    path = folder / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML too
    return run_promtool("check", "rules", str(path))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_file_is_what_the_tables_say(board: Board) -> None:
    assert json_path(board).read_text("utf-8") == dashboard_json(board), "make docs brings it up to date"


def test_each_panel_asks_a_question_and_says_what_to_think_of_the_answer() -> None:
    for panel in all_panels():
        assert panel.question.endswith("?"), panel
        assert len(panel.question) < 50, "it does not fit its panel"
        assert panel.description.endswith("."), panel
        assert panel.unit, panel
        assert panel.queries, panel
    for board in BOARDS:
        questions = [panel.question for panel in board.panels]
        assert len(questions) == len(set(questions)), board.name


@needs_promtool
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    expressions = [query.expression for panel in all_panels() for query in panel.queries]
    code, text = check_expressions(expressions, tmp_path)
    assert (code, f"{len(expressions)} rules found" in text) == (0, True), text
    assert check_expressions([*expressions, "sum by (group (sessionary_lag_seconds)"], tmp_path)[0] == 1


def test_every_metric_of_a_dashboard_exists() -> None:
    known = metric_helps()
    assert {name.split("_")[1] for name in known} >= {"processor", "sink", "lag", "integrity", "kpi", "clickhouse"}
    assert {name for panel in all_panels() for name in named_metrics(panel)} <= set(known)


def test_every_metric_of_the_exporter_and_of_the_sinks_is_on_a_dashboard() -> None:
    drawn = {name for panel in all_panels() for name in named_metrics(panel)}
    raw = {"committed_offset", "log_end_offset", "group_state", "newest_record_age_seconds"}
    raw |= {"sample_seconds", "sample_timestamp_seconds"}
    wanted = {name for name in metric_helps() if not name.startswith(("sessionary_processor_", "sessionary_client_"))}
    assert wanted - drawn == {f"sessionary_lag_{name}" for name in raw}
