"""`sessionary alerts render`: alert rules for Prometheus."""

from sessionary.infra.cli.output import print_line


def render_command() -> None:
    """Print the alert rules as YAML, with the thresholds of the SESSIONARY_ALERT_* variables.

    Save them as a file that `rule_files` of Prometheus names. docs/runbook.md explains each alert.
    """
    from sessionary.infra.alerts.render import render_rules
    from sessionary.infra.alerts.settings import AlertSettings

    print_line(render_rules(AlertSettings.from_env()).rstrip("\n"))


__all__ = ["render_command"]
