"""The alert rules with their defaults, for people who do not run the generator:
`python -m tests.support.alert_rules` brings the file up to date.
"""

import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from sessionary.infra.alerts.render import render_rules
from sessionary.infra.alerts.settings import AlertSettings
from tests.support.metrics_table import expression_metrics, role_of

ROOT = Path(__file__).parents[2]
RULES = ROOT / "infra" / "prometheus" / "rules.yml"
# Of the roles that `up` runs; the exporter serves all metrics that are not named here.
_JOBS = {"processor": "sessionary-processor", "sink": "sessionary-sink", "client": None}


def rule_metrics(job: str) -> set[str]:
    """Return the metrics that rules name, and that a job of a local stack serves."""
    named = expression_metrics(RULES.read_text("utf-8"))
    return {name for name in named if _JOBS.get(role_of(name) or "", "sessionary-lag") == job}


def rule_selectors(rules: str, without: Collection[str] = ()) -> set[str]:
    """Return the selectors of the product's metrics in rules; `without` names labels to leave out.

    Those of a histogram's buckets are named without their suffix.
    """
    expressions = "\n".join(re.findall(r"^ +expr: \|\n((?: {10}.*\n)+)", rules, flags=re.M))
    return {
        name + (f"{{{', '.join(kept)}}}" if (kept := list(_kept_matchers(matchers, without))) else "")
        for name, matchers in re.findall(r"\b(sessionary_\w+?)(?:_bucket)?\b(?:\{([^}]*)\})?", expressions)
    }


def _kept_matchers(matchers: str, without: Collection[str]) -> Iterator[str]:
    for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
        if label not in without:
            yield f'{label}{operator}"{value}"'


if __name__ == "__main__":
    RULES.parent.mkdir(parents=True, exist_ok=True)
    RULES.write_text(render_rules(AlertSettings()), "utf-8")
    sys.stdout.write(f"wrote {RULES.relative_to(ROOT)}\n")
