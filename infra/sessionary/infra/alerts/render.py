"""Alert rules as Prometheus reads them: a YAML document from the tables of alerts; pure."""

import json
from collections.abc import Iterator
from string import Template

from sessionary.infra.alerts.alert import Alert, AlertGroup
from sessionary.infra.alerts.delivery_alerts import CLIENT_ALERTS, SINK_ALERTS, TABLE_ALERTS
from sessionary.infra.alerts.lag_alerts import LAG_ALERTS, REACH_ALERTS
from sessionary.infra.alerts.processor_alerts import PROCESSOR_ALERTS
from sessionary.infra.alerts.settings import AlertSettings
from sessionary.infra.alerts.target_alerts import TARGET_ALERTS

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
# Printed by `sessionary alerts render`. Settings (SESSIONARY_ALERT_*) change thresholds and times.
# docs/runbook.md says what each alert means and what to do.
groups:
"""


def setting_values(settings: AlertSettings) -> dict[str, str]:
    """Return the settings as the templates name them: without their prefix, as text."""
    return {name.removeprefix("alert_"): _number_text(value) for name, value in settings.model_dump().items()}


def render_expression(alert: Alert, settings: AlertSettings) -> str:
    """Return the alert's PromQL. Raises `KeyError` if it names no setting."""
    return Template(alert.expr).substitute(setting_values(settings))


def render_rules(settings: AlertSettings) -> str:
    """Return all rules as a YAML document."""
    return _HEAD + "".join(f"{line}\n" for group in ALERT_GROUPS for line in _group_lines(group, settings))


def _group_lines(group: AlertGroup, settings: AlertSettings) -> Iterator[str]:
    yield f"  - name: {group.name}"
    yield "    rules:"
    for alert in group.alerts:
        yield from _alert_lines(alert, settings)


def _alert_lines(alert: Alert, settings: AlertSettings) -> Iterator[str]:
    values = setting_values(settings)
    yield f"      - alert: {alert.name}"
    yield "        expr: |"
    yield from (f"          {line}" for line in render_expression(alert, settings).splitlines())
    if alert.hold:
        yield f"        for: {values[alert.hold]}s"
    yield "        labels:"
    yield f"          severity: {alert.severity}"
    yield "        annotations:"
    # Prometheus' own templates ($labels, $value) stay as they are.
    for name, text in (("summary", alert.summary), ("description", alert.description)):
        yield f"          {name}: {_quoted_text(Template(text).safe_substitute(values))}"
    yield f"          runbook_url: {_quoted_text(f'{settings.alert_runbook_url}#{alert.anchor}')}"


def _quoted_text(text: str) -> str:
    # A JSON string is a YAML string too.
    return json.dumps(text, ensure_ascii=False)


def _number_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


__all__ = ["ALERT_GROUPS", "render_expression", "render_rules", "setting_values"]
