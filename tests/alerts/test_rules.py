"""Each alert fires at bad series and stays silent at good ones, by Prometheus' own tool."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from docs.build.alert_rules import ROOT, RULES
from sessionary.infra.alerts.render import ALERT_GROUPS, threshold_texts
from sessionary.infra.alerts.tables import Alert
from sessionary.infra.alerts.thresholds import read_thresholds
from tests.alerts.rule_cases import RULE_CASES, RuleCase
from tests.support.prometheus import needs_promtool, run_promtool

ALERTS = {alert.name: alert for group in ALERT_GROUPS for alert in group.alerts}
VALUES = threshold_texts(read_thresholds())
_EVALUATION_S, _END_S = 60, 1_200
RUNBOOK = ROOT / "docs" / "runbook.md"


def expand_template(text: str, case: RuleCase) -> str:
    """Return a text of an alert as Prometheus expands it for a case."""
    for name, value in VALUES.items():
        text = text.replace(f"${{{name}}}", value)
    text = re.sub(r"\{\{ \$value[^}]*\}\}", case.shows, text)
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: case.labels.get(match[1], ""), text)


def expected_alert(alert: Alert, case: RuleCase) -> dict[str, Any]:
    """Return an alert as promtool compares it."""
    annotations = {
        "summary": expand_template(alert.summary, case),
        "description": expand_template(alert.description, case),
        "runbook_url": f"docs/runbook.md#{alert.anchor}",
    }
    return {"exp_labels": {**case.labels, "severity": str(alert.severity)}, "exp_annotations": annotations}


def rule_test(case: RuleCase) -> dict[str, Any]:
    """Return promtool's input: the alert fires after 20 minutes, not early, not if all is well."""
    alert = ALERTS[case.alert]

    def check(at_s: int, expected: list[dict[str, Any]]) -> dict[str, Any]:
        return {"eval_time": f"{at_s}s", "alertname": alert.name, "exp_alerts": expected}

    def part(series: Mapping[str, str], checks: list[dict[str, Any]]) -> dict[str, Any]:
        inputs = [{"series": name, "values": values} for name, values in series.items()]
        return {"interval": "15s", "input_series": inputs, "alert_rule_test": checks}

    early = [check(int(VALUES[alert.hold]) - _EVALUATION_S, [])] if alert.hold else []
    parts = [part(case.fires, [*early, check(_END_S, [expected_alert(alert, case)])])]
    parts.append(part(case.silent, [check(_END_S, [])]))
    return {"rule_files": [str(RULES)], "evaluation_interval": f"{_EVALUATION_S}s", "tests": parts}


def check_case(case: RuleCase, folder: Path) -> tuple[int, str]:
    """Return promtool's exit code and output for a case."""
    path = folder / "test.yml"
    path.write_text(json.dumps(rule_test(case)))  # JSON is YAML too
    return run_promtool("test", "rules", str(path))


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    code, text = run_promtool("check", "rules", str(RULES))
    assert (code, f"{len(ALERTS)} rules found" in text) == (0, True), text


@needs_promtool
@pytest.mark.parametrize("case", RULE_CASES, ids=lambda case: case.alert)
def test_an_alert_fires_at_bad_series_and_is_silent_at_good_ones(case: RuleCase, tmp_path: Path) -> None:
    code, text = check_case(case, tmp_path)
    assert code == 0, text


@needs_promtool
def test_a_case_that_is_wrong_fails(tmp_path: Path) -> None:
    case = RULE_CASES[0]
    for wrong in (
        case._replace(fires=case.silent),
        case._replace(silent=case.fires),
        case._replace(labels={}),
        case._replace(shows="3m"),
    ):
        assert check_case(wrong, tmp_path)[0] == 1


def test_each_alert_has_a_case() -> None:
    assert {case.alert for case in RULE_CASES} == set(ALERTS)


def test_each_alert_has_a_section_in_the_runbook_and_each_section_an_alert() -> None:
    sections = re.split(r"^### (\w+)$", RUNBOOK.read_text("utf-8"), flags=re.M)[1:]
    assert sections[::2] == list(ALERTS)
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        kind = ALERTS[name].severity.capitalize()
        assert text.strip().startswith(f"*{kind}.* "), name
        assert ("Wake: " if kind == "Page" else "Tell: ") in " ".join(text.split()), name
