"""A panel, a dashboard, and the JSON that Grafana reads of them."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

# What Grafana puts into an expression: long enough for four scrapes.
RATE_INTERVAL: Final = "$__rate_interval"
_WIDTH, _HEIGHT, _ROW_WIDTH = 8, 8, 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA_VERSION: Final = 39  # Grafana 10.4 and newer


class Query(NamedTuple):
    """An expression of PromQL, and its series' name: `{{label}}` stands for a label's value."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """A diagram over time that answers one question.

    Attributes:
        question: The title.
        unit: Grafana's id of the unit, such as `s`, `bytes`, `percentunit` or `short`.
        description: The figure, and its interpretation.
        queries: The drawn series.
        limit: The required limit, if a requirement gives one.
        is_floor: True if values below the limit are wrong; else those above it are.
    """

    question: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    limit: float | None = None
    is_floor: bool = False


class Row(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    """A dashboard; `name` is that of its file, and its uid."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels, in order."""
        return (panel for row in self.rows for panel in row.panels)


def dashboard_json(board: Board) -> str:
    """Return the file's text."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in board.rows:
        panels.append(
            {"type": "row", "title": row.title, "collapsed": False, "panels": []} | _place(top, 0, _ROW_WIDTH, 1)
        )
        top += 1
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, _ROW_WIDTH // _WIDTH)
            panels.append(_panel_json(panel) | _place(top + line * _HEIGHT, column * _WIDTH, _WIDTH, _HEIGHT))
        top += _HEIGHT * -(-len(row.panels) * _WIDTH // _ROW_WIDTH)
    document = {
        "uid": f"sessionary-{board.name}",
        "title": f"sessionary: {board.title}",
        "description": board.description,
        "tags": ["sessionary"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "links": [
            {"title": "sessionary", "type": "dashboards", "tags": ["sessionary"], "asDropdown": True, "keepTime": True}
        ],
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }
    return json.dumps(document, indent=2) + "\n"


def _place(top: int, left: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel_json(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        below, above = ("red", "green") if panel.is_floor else ("green", "red")
        steps = [{"color": below, "value": None}, {"color": above, "value": panel.limit}]
    defaults = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": {
            "lineWidth": 1,
            "fillOpacity": 8,
            "showPoints": "never",
            "thresholdsStyle": {"mode": "off" if panel.limit is None else "line"},
        },
    }
    return {
        "type": "timeseries",
        "title": panel.question,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def rate_of(counter: str, *by: str) -> str:
    """Return the increase per second of a counter, summed by labels."""
    labels = f" by ({', '.join(by)}) " if by else ""
    return f"sum{labels}(rate({counter}[{RATE_INTERVAL}]))"


def quantile_of(share: float, histogram: str, *by: str) -> str:
    """Return a quantile of a histogram, by labels."""
    return (
        f"histogram_quantile({share:g}, sum by ({', '.join(('le', *by))}) (rate({histogram}_bucket[{RATE_INTERVAL}])))"
    )
