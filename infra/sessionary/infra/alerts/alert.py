"""What one alert is; pure.

The texts are templates. `$name` stands for the threshold of that name; in summary and description
`{{ $labels.name }}` and `{{ $value }}` are Prometheus' own, for its series.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """Whom an alert reaches."""

    PAGE = "page"  # a person at once, at any hour
    TICKET = "ticket"  # a person on the next working day


class Alert(NamedTuple):
    """One alert rule. Its section of the runbook has its name as its heading."""

    name: str
    expr: str  # PromQL
    hold: str  # the threshold with the seconds that `expr` must last; empty: it fires at once
    severity: Severity
    summary: str  # a line
    description: str  # what it means, with labels and value

    @property
    def anchor(self) -> str:
        """The anchor of its section in the runbook."""
        return self.name.lower()


class AlertGroup(NamedTuple):
    """Alerts that Prometheus evaluates together."""

    name: str
    alerts: tuple[Alert, ...]


def risen_counter(selector: str, labels: Sequence[str], *, above: str = "0") -> str:
    """Return the condition that a counter rose by more than `above` within the window, by `labels`.

    A series that is younger than the window counts from 0: `increase` alone misses the first event
    of a series that is born with it.
    """
    by = ", ".join(labels)
    return (
        f"sum by ({by}) (increase({selector}[${{window_s}}s])) > {above}\n"
        f"or sum by ({by}) ({selector} unless {selector} offset ${{window_s}}s) > {above}"
    )
