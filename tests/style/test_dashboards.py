"""The dashboards: made from their tables, read by Prometheus' own tool, over metrics that exist."""

import json
import re
from pathlib import Path

import pytest

from docs.build.dashboards.boards import BOARDS, json_path
from docs.build.dashboards.panel import RATE_INTERVAL, Board, Panel, Query, dashboard_json
from docs.build.metrics_table import expression_metrics, listed_metrics, metric_helps
from tests.support.prometheus import needs_promtool, run_promtool

LABELS = {metric.name: metric.labels for metric in listed_metrics()}
_SCRAPED = {"instance", "le"}  # Prometheus' own, and the buckets of a histogram
# Metrics without a panel, and what tells the same to people.
NOT_DRAWN = {
    "sessionary_lag_committed_offset": "the lag",
    "sessionary_lag_log_end_offset": "the lag",
    "sessionary_lag_group_state": "SessionaryGroupNotStable; partitions that stand still are drawn",
    "sessionary_lag_newest_record_age_seconds": "the age of ticks, which are records too",
    "sessionary_lag_sample_seconds": "the exporter's own",
    "sessionary_lag_sample_timestamp_seconds": "the exporter's own",
    "sessionary_client_queue_events": "bytes of spools, and the age of the oldest event",
    "sessionary_client_spool_events": "bytes of spools",
    "sessionary_processor_batches_total": "records, and their number in a transaction",
    "sessionary_processor_lag_records": "the exporter's lag of the same group",
    "sessionary_processor_next_offset": "the lag",
    "sessionary_processor_ticks_sent_total": "the age of the last tick",
}


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


def unknown_labels(query: Query) -> set[str]:
    """Return the labels by which a query sums or names its series, and that its metrics lack."""
    named = {label for found in re.findall(r"by \(([^)]*)\)", query.expression) for label in found.split(", ")}
    named |= set(re.findall(r"{{(\w+)}}", query.legend))
    return named - {label for name in expression_metrics(query.expression) for label in LABELS[name]} - _SCRAPED


def test_every_label_of_a_dashboard_exists() -> None:
    for panel in all_panels():
        for query in panel.queries:
            assert unknown_labels(query) == set(), panel.question
    wrong = Query("sum by (le, instance, state) (sessionary_sink_blocked)", "{{sink}} {{kind}}")
    assert unknown_labels(wrong) == {"state", "kind"}


def test_every_metric_is_on_a_dashboard_or_said_by_another_one() -> None:
    drawn = {name for panel in all_panels() for name in named_metrics(panel)}
    assert set(metric_helps()) - drawn == NOT_DRAWN.keys()
