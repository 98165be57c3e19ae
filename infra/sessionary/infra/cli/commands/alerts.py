"""`sessionary alerts render`: alert rules for Prometheus."""

from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.output import print_line


def render_command(
    thresholds: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="TOML file with the thresholds that differ; see alerts.toml."),
    ] = None,
) -> None:
    """Print the alert rules as YAML.

    Save them as a file that `rule_files` of Prometheus names. docs/runbook.md explains each alert.
    """
    from sessionary.infra.alerts.render import render_rules
    from sessionary.infra.alerts.thresholds import read_thresholds

    print_line(render_rules(read_thresholds(thresholds)).rstrip("\n"))
