"""Alert rules as Prometheus reads them: a YAML document from the tables of alerts; pure."""

import json
from collections.abc import Iterator
from string import Template

from sessionary.infra.alerts.tables import (
    CLIENT_ALERTS,
    LAG_ALERTS,
    PROCESSOR_ALERTS,
    REACH_ALERTS,
    SINK_ALERTS,
    TABLE_ALERTS,
    TARGET_ALERTS,
    Alert,
    AlertGroup,
)
from sessionary.infra.alerts.thresholds import Thresholds

ALERT_GROUPS: tuple[AlertGroup, ...] = (
    LAG_ALERTS,
    REACH_ALERTS,
    PROCESSOR_ALERTS,
    SINK_ALERTS,
    TABLE_ALERTS,
    CLIENT_ALERTS,
    TARGET_ALERTS,
)
_HEAD = """\
# Printed by `sessionary alerts render`; `--thresholds FILE` changes thresholds and times.
# docs/runbook.md says what each alert means and what to do.
groups:
"""


def threshold_texts(thresholds: Thresholds) -> dict[str, str]:
    """Return the thresholds as the templates name them, as text."""
    return {name: _number_text(value) for name, value in thresholds.model_dump().items()}


def render_expression(alert: Alert, thresholds: Thresholds) -> str:
    """Return the alert's PromQL. Raises `KeyError` if it names no threshold."""
    return Template(alert.expr).substitute(threshold_texts(thresholds))


def render_rules(thresholds: Thresholds) -> str:
    """Return all rules as a YAML document."""
    return _HEAD + "".join(f"{line}\n" for group in ALERT_GROUPS for line in _group_lines(group, thresholds))


def _group_lines(group: AlertGroup, thresholds: Thresholds) -> Iterator[str]:
    yield f"  - name: {group.name}"
    yield "    rules:"
    for alert in group.alerts:
        yield from _alert_lines(alert, thresholds)


def _alert_lines(alert: Alert, thresholds: Thresholds) -> Iterator[str]:
    values = threshold_texts(thresholds)
    yield f"      - alert: {alert.name}"
    yield "        expr: |"
    yield from (f"          {line}" for line in render_expression(alert, thresholds).splitlines())
    if alert.hold:
        yield f"        for: {values[alert.hold]}s"
    yield "        labels:"
    yield f"          severity: {alert.severity}"
    yield "        annotations:"
    # Prometheus' own templates ($labels, $value) stay as they are.
    for name, text in (("summary", alert.summary), ("description", alert.description)):
        yield f"          {name}: {_quoted_text(Template(text).safe_substitute(values))}"
    yield f"          runbook_url: {_quoted_text(f'{thresholds.runbook_url}#{alert.anchor}')}"


def _quoted_text(text: str) -> str:
    # A JSON string is a YAML string too.
    return json.dumps(text, ensure_ascii=False)


def _number_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
