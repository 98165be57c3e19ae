"""Writes the dashboards' JSON."""

import sys

from tests.support.dashboards.boards import BOARDS, ROOT, json_path
from tests.support.dashboards.panel import dashboard_json

for board in BOARDS:
    json_path(board).write_text(dashboard_json(board), "utf-8")
    sys.stdout.write(f"wrote {json_path(board).relative_to(ROOT)}\n")
