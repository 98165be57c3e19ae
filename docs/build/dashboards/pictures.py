"""Draws the dashboards: a stack under load, a real Prometheus beside it, its answers as SVG.

`python -m docs.build.dashboards.pictures --minutes 6` (`make dashboard-pictures`). No Grafana is
used: the diagrams are drawn from `query_range` of Prometheus' API.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from docs.build.dashboards.boards import BOARDS, ROOT
from docs.build.dashboards.panel import RATE_INTERVAL, Board, Panel
from docs.build.dashboards.prometheus import SCRAPE_S, running_prometheus
from docs.build.dashboards.scraped_agent import scraped_agent
from docs.build.dashboards.svg_chart import Line, board_svg
from sessionary.infra.cli.commands.up import START_S_MAX, activate_newest_rules
from sessionary.infra.local.process import Child
from sessionary.infra.metrics_targets import TARGETS_FILE
from sessionary.infra.stack import Stack
from tests.support.prometheus import PrometheusClient, Series

PICTURES: Final = ROOT / "docs" / "dashboards"
_COMMAND: Final = (sys.executable, "-m", "sessionary.infra.cli")
_STOP_S: Final = 60.0
_RATE: Final = f"{SCRAPE_S * 10}s"
_POINTS: Final = 100


@contextmanager
def running_stack(data: Path) -> Iterator[Stack]:
    """Run a local stack by the newest rules. Raises `StartFailed`."""
    with Stack(data) as stack:
        stack.wait_ready(START_S_MAX)
        activate_newest_rules(stack)
        yield stack


def load_stack(data: Path, logs: Path, until_s: float, sessions: int, speed: float) -> None:
    """Play the sample's agent runs again and again until `until_s`, of `time.monotonic`."""
    seed = 0
    while time.monotonic() < until_s:
        seed += 1
        options = {"--data": data, "--sessions": sessions, "--speed": speed, "--seed": seed}
        argv = [*_COMMAND, "demo", "load", *(str(part) for option in options.items() for part in option)]
        child = Child(argv, logs / f"load-{seed}.log")
        child.wait(max(0.0, until_s - time.monotonic()))
        child.stop(_STOP_S)


def series_name(legend: str, series: Series) -> str:
    """Return a legend with the values of the labels that it names."""
    return re.sub(r"{{(\w+)}}", lambda match: series.labels.get(match[1], ""), legend)


def panel_lines(client: PrometheusClient, panel: Panel, start_s: float, end_s: float) -> list[Line]:
    """Return the lines of a panel between two times, seconds since the epoch."""
    step_s = max((end_s - start_s) / _POINTS, 1.0)
    return [
        Line(
            series_name(query.legend, series),
            tuple((at_s - start_s, value) for at_s, value in series.points if value == value),  # without NaN
        )
        for query in panel.queries
        for series in client.query_range(query.expression.replace(RATE_INTERVAL, _RATE), start_s, end_s, step_s)
    ]


def draw_board(client: PrometheusClient, board: Board, start_s: float, end_s: float) -> str:
    """Return a dashboard's picture of the time between `start_s` and `end_s`."""
    day = datetime.fromtimestamp(end_s, UTC).date()
    lines = {panel.question: panel_lines(client, panel, start_s, end_s) for panel in board.panels}
    empty = [question for question, found in lines.items() if not any(line.points for line in found)]
    sys.stdout.write(f"{board.name}: {len(lines) - len(empty)} of {len(lines)} panels have data; none: {empty}\n")
    return board_svg(board, lines, end_s - start_s, f"drawn from Prometheus' API on {day}")


def main() -> int:
    """Start everything, wait, draw. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--sessions", type=int, default=150, help="sessions of one round of load")
    parser.add_argument("--speed", type=float, default=60.0, help="how much faster than recorded")
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sessionary-pictures-") as name:
        folder = Path(name)
        with (
            running_stack(folder / "data") as stack,
            scraped_agent(stack.environ, folder) as agent,
            running_prometheus(folder, stack.data / TARGETS_FILE, agent) as client,
        ):
            start_s, until_s = time.time(), time.monotonic() + given.minutes * 60
            load_stack(folder / "data", folder, until_s, given.sessions, given.speed)
            end_s = time.time()
            for board in BOARDS:
                (PICTURES / f"{board.name}.svg").write_text(draw_board(client, board, start_s, end_s), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
