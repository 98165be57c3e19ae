"""All dashboards, and the files that they are written to."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from docs.build.dashboards.kpi_board import KPIS
from docs.build.dashboards.panel import Board, dashboard_json
from docs.build.dashboards.pipeline_board import PIPELINE
from docs.build.dashboards.processor_board import PROCESSOR
from docs.build.dashboards.session_board import SESSIONS
from docs.build.dashboards.sink_board import SINKS

ROOT: Final = Path(__file__).parents[3]
BOARDS: Final = (PIPELINE, PROCESSOR, SINKS, SESSIONS, KPIS)


def json_path(board: Board) -> Path:
    """Return where the dashboard's JSON is."""
    return ROOT / "infra" / "grafana" / f"{board.name}.json"


def write() -> Iterable[Path]:
    """Bring all files up to date. Returns their paths."""
    for board in BOARDS:
        json_path(board).write_text(dashboard_json(board), "utf-8")
    return [json_path(board) for board in BOARDS]
