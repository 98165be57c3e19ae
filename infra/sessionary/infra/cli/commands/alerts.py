"""`sessionary alerts render`: alert rules for Prometheus."""

import typer

from sessionary.infra.cli.output import print_line

app = typer.Typer(no_args_is_help=True, help="Print alert rules for Prometheus.")


@app.callback()
def _alerts_group() -> None:
    """Keep `render` a subcommand: typer would merge a group of one command with its command."""


@app.command("render")
def render_command() -> None:
    """Print the alert rules as YAML, with the thresholds of the SESSIONARY_ALERT_* variables.

    Save them as a file that `rule_files` of Prometheus names. docs/runbook.md explains each alert.
    """
    from sessionary.infra.alerts.render import render_rules
    from sessionary.infra.alerts.settings import AlertSettings

    print_line(render_rules(AlertSettings.from_env()).rstrip("\n"))


__all__ = ["app"]
