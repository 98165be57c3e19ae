"""Draws all parts, or those that are named: `python -m docs.build settings metrics`."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from docs.build import (
    alert_rules,
    clickhouse_page,
    commands_page,
    control_api_page,
    limits_page,
    metrics_table,
    schema_page,
    settings_table,
    transition_docs,
    verbs_page,
)
from docs.build.dashboards import boards

ROOT: Final = Path(__file__).parents[2]
PARTS: Final[Mapping[str, Callable[[], Iterable[Path]]]] = {
    "transitions": transition_docs.write,
    "limits": limits_page.write,
    "settings": settings_table.write,
    "metrics": metrics_table.write,
    "schemas": schema_page.write,
    "control_api": control_api_page.write,
    "clickhouse": clickhouse_page.write,
    "commands": commands_page.write,
    "verbs": verbs_page.write,
    "dashboards": boards.write,
    "alerts": alert_rules.write,
}


def main(names: Iterable[str]) -> int:
    """Draw the parts, all without a name, and print the files. Returns the exit code."""
    if unknown := set(names) - PARTS.keys():
        sys.stderr.write(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}\n")
        return 2
    for name in names or PARTS:
        for path in PARTS[name]():
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
