"""The columns of all views, and their recording in `tests/recorded/view_columns.json`.

`python -m tests.support.view_columns` records them anew. Its diff is all that a reader of the views
notices: a column that is gone, has another name or another type.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import new_clickhouse

RECORDING: Final = Path(__file__).parents[1] / "recorded" / "view_columns.json"
_VIEWS: Final = (
    "SELECT name, concat(database, '.', name) AS place, create_table_query AS sql FROM system.tables "
    "WHERE database IN ({main:String}, {between:String}) AND engine = 'View' ORDER BY name"
)
_PARAMETER: Final = re.compile(r"\{(\w+):(\w+)")


def read_columns(clickhouse: ClickHouseSettings) -> dict[str, dict[str, str]]:
    """Return the type of each column by view, both in their order."""
    source = ClickHouseClient(clickhouse)
    found = {}
    for view in source.fetch_rows(_VIEWS, main=source.database, between=source.between):
        # The server lists no columns of views with parameters: a query has them.
        values = {name: "'2026-01-01'" if kind == "DateTime" else "1" for name, kind in _PARAMETER.findall(view["sql"])}
        given = ", ".join(f"{name} = {value}" for name, value in values.items())
        columns = source.fetch_rows(f"DESCRIBE (SELECT * FROM {view['place']}{f'({given})' if given else ''})")
        found[view["name"]] = {column["name"]: column["type"] for column in columns}
    return found


def main() -> None:
    """Record the columns with an engine of this process."""
    with tempfile.TemporaryDirectory() as folder:
        server = LocalClickHouse(Path(folder), None, Path(folder) / "clickhouse.log")
        server.start()
        try:
            server.wait_ready()
            clickhouse = new_clickhouse(server.url)
            make_tables(clickhouse)
            RECORDING.write_text(json.dumps(read_columns(clickhouse), indent=1) + "\n", "utf-8")
        finally:
            server.stop()
    sys.stdout.write(f"wrote {RECORDING.name}\n")


if __name__ == "__main__":
    main()
