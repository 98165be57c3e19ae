"""All dashboards, and the files that they are written to."""

from pathlib import Path
from typing import Final

from tests.support.dashboards.kpi_board import KPIS
from tests.support.dashboards.panel import Board
from tests.support.dashboards.pipeline_board import PIPELINE
from tests.support.dashboards.processor_board import PROCESSOR
from tests.support.dashboards.session_board import SESSIONS
from tests.support.dashboards.sink_board import SINKS

ROOT: Final = Path(__file__).parents[3]
BOARDS: Final = (PIPELINE, PROCESSOR, SINKS, SESSIONS, KPIS)


def json_path(board: Board) -> Path:
    """Return where the dashboard's JSON is."""
    return ROOT / "infra" / "grafana" / f"{board.name}.json"


__all__ = ["BOARDS", "ROOT", "json_path"]
