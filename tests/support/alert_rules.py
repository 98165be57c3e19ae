"""The alert rules with their defaults, for people who do not run the generator:
`python -m tests.support.alert_rules` brings the file up to date.
"""

import sys
from pathlib import Path

from sessionary.infra.alerts.render import render_rules
from sessionary.infra.alerts.settings import AlertSettings

ROOT = Path(__file__).parents[2]
RULES = ROOT / "infra" / "prometheus" / "rules.yml"


if __name__ == "__main__":
    RULES.parent.mkdir(parents=True, exist_ok=True)
    RULES.write_text(render_rules(AlertSettings()), "utf-8")
    sys.stdout.write(f"wrote {RULES.relative_to(ROOT)}\n")
