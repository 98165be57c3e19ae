"""The alert rules with their defaults, for people who do not run the generator."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from docs.build.metrics_table import expression_metrics, role_of
from sessionary.infra.alerts.render import render_rules
from sessionary.infra.alerts.thresholds import read_thresholds

ROOT = Path(__file__).parents[2]
RULES = ROOT / "infra" / "prometheus" / "rules.yml"
# Jobs of the roles that `up` runs; the exporter serves all metrics that are not named here.
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


def write() -> Iterable[Path]:
    """Bring the file up to date. Returns its path."""
    RULES.parent.mkdir(parents=True, exist_ok=True)
    RULES.write_text(render_rules(read_thresholds()), "utf-8")
    return (RULES,)
