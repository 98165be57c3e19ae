"""The rules are those of the tables, with their thresholds."""

import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import get_args

import pytest

from docs.build.alert_rules import RULES, rule_selectors
from docs.build.metrics_table import expression_metrics, metric_helps
from sessionary.infra import alerts
from sessionary.infra.alerts.render import ALERT_GROUPS, render_expression, render_rules, threshold_texts
from sessionary.infra.alerts.tables import Alert, Severity, risen_counter
from sessionary.infra.alerts.thresholds import Thresholds, read_thresholds
from sessionary.infra.cli.app import run
from sessionary.infra.lag.lag_tracker import GroupState, PartitionState
from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.errors import HaltReason
from sessionary.stream_processors.worker_gauges import CALL_STATES
from tests.alerts.moved_metrics import ALWAYS_LABELS

ALERTS = [alert for group in ALERT_GROUPS for alert in group.alerts]
SERVED = set(metric_helps())
# The values of labels that rules select; those of another metric are named in its sentence.
VALUES: dict[str, set[str]] = {
    "sessionary_lag_partition_state": set(PartitionState),
    "sessionary_lag_group_state": set(GroupState),
    "sessionary_processor_partitions_halted": set(get_args(HaltReason)),
    "sessionary_processor_tool_calls": set(CALL_STATES),
    "sessionary_processor_rejected_total": {"true", "false"},
    "sessionary_integrity_findings": {"cleanup", "tasks", "migrations", "quotas"},
}


def named_thresholds(alert: Alert) -> set[str]:
    """Return the thresholds that an alert's expression compares with."""
    return set(Template(alert.expr).get_identifiers())


def test_the_file_for_people_without_the_generator_is_up_to_date() -> None:
    assert RULES.read_text("utf-8") == render_rules(read_thresholds()), "make docs brings it up to date"


def test_no_two_alerts_have_the_same_name() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(names) == len(set(names)) > 30


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_only_metrics_that_a_role_serves(alert: Alert) -> None:
    named = expression_metrics(render_expression(alert, read_thresholds()))
    assert named - SERVED == set()
    assert named or "up{" in alert.expr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_happened_and_how_long_it_must_last(alert: Alert) -> None:
    assert alert.hold in {"", "page_for_s" if alert.severity is Severity.PAGE else "ticket_for_s"}
    assert alert.summary
    assert alert.description.endswith(".")
    assert named_thresholds(alert) <= set(threshold_texts(read_thresholds()))


def test_each_threshold_changes_the_rules() -> None:
    rules = render_rules(read_thresholds())
    for name, value in read_thresholds().model_dump().items():
        other = "other" if isinstance(value, str) else value / 2 if value else 7
        changed = read_thresholds(**{name: type(value)(other)})
        assert render_rules(changed) != rules, name


def test_each_threshold_has_its_default_below_a_sentence() -> None:
    text = resources.files(alerts).joinpath("alerts.toml").read_text("utf-8")
    explained = re.findall(r"^# [A-Z].*\.\n(\w+) = .+$", re.sub(r"\n# (?=[a-z])", " ", text), re.M)
    assert explained == list(Thresholds.model_fields)
    assert text.count("; required: ") == 8


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("lag_s = -1", "lag_s: "),
        ("lag = 1", "lag: Extra"),
        ("disk_free_ratio = 2", "disk_free_ratio"),
        ("=", "no TOML"),
    ],
)
def test_a_wrong_file_of_thresholds_is_rejected(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=fault):
        read_thresholds(path)


def test_a_counter_that_is_born_with_its_first_event_has_risen() -> None:
    assert risen_counter("x_total", ["a", "b"], above="$n").splitlines() == [
        "sum by (a, b) (increase(x_total[${window_s}s])) > $n",
        "or sum by (a, b) (x_total unless x_total offset ${window_s}s) > $n",
    ]


def test_the_command_prints_the_rules_with_the_thresholds_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["alerts", "render"]) == 0
    assert capsys.readouterr().out == RULES.read_text("utf-8")
    path = tmp_path / "alerts.toml"
    path.write_text('lag_s = 7.5\nrunbook_url = "https://docs.example.com/runbook.html"\n')
    assert run(["alerts", "render", "--thresholds", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "the limit is 7.5 s." in printed
    assert 'runbook_url: "https://docs.example.com/runbook.html#sessionarylagtime"' in printed
    path.write_text("lag_s = -1")
    assert run(["alerts", "render", "--thresholds", str(path)]) == 2
    assert "lag_s" in capsys.readouterr().err


def unknown_values(rules: str) -> set[tuple[str, str]]:
    """Return metric and value wherever rules select a value that no series has."""
    found = set()
    for selector in rule_selectors(rules, ALWAYS_LABELS):
        name, _, matchers = selector.partition("{")
        known = VALUES.get(name) or set(re.findall(r"\w+", metric_helps()[name]))
        named = {value for values in re.findall(r'"([^"]*)"', matchers) for value in values.split("|")}
        found |= {(name, value) for value in named - known}
    return found


def test_an_alert_selects_only_values_that_a_series_can_have() -> None:
    rules = render_rules(read_thresholds())
    assert unknown_values(rules) == set()
    for value, metric in (
        ("log_gap", "sessionary_lag_partition_state"),
        ("changelog_unreadable", "sessionary_processor_partitions_halted"),
        ("expired", "sessionary_client_events_total"),
    ):
        assert unknown_values(rules.replace(value, "renamed")) == {(metric, "renamed")}
