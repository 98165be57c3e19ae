"""The columns of all tables and views, as readers of the database see them.

A release freezes them (`tests/golden`): a column that is gone, has another name or another type
breaks what others read.
"""

import re
import tempfile
from pathlib import Path
from typing import Final

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import new_clickhouse

_TABLES: Final = (
    "SELECT name, engine, concat(database, '.', name) AS place, create_table_query AS sql FROM system.tables "
    "WHERE database IN ({main:String}, {between:String}) ORDER BY name"
)
_PARAMETER: Final = re.compile(r"\{(\w+):(\w+)")


def read_columns(clickhouse: ClickHouseSettings) -> dict[str, dict[str, str]]:
    """Return the type of each column by table or view, both in their order."""
    source = ClickHouseClient(clickhouse)
    found = {}
    for view in source.fetch_rows(_TABLES, main=source.database, between=source.between):
        # The server lists no columns of views with parameters: a query has them.
        found_in = _PARAMETER.findall(view["sql"]) if view["engine"] == "View" else []
        values = {name: "'2026-01-01'" if kind == "DateTime" else "1" for name, kind in found_in}
        given = ", ".join(f"{name} = {value}" for name, value in values.items())
        columns = source.fetch_rows(f"DESCRIBE (SELECT * FROM {view['place']}{f'({given})' if given else ''})")
        found[view["name"]] = {column["name"]: column["type"] for column in columns}
    return found


def columns_of_own_engine() -> dict[str, dict[str, str]]:
    """Return the columns of a new database, by an engine of this process."""
    with tempfile.TemporaryDirectory() as folder:
        server = LocalClickHouse(Path(folder), None, Path(folder) / "clickhouse.log")
        server.start()
        try:
            server.wait_ready()
            clickhouse = new_clickhouse(server.url)
            make_tables(clickhouse)
            return read_columns(clickhouse)
        finally:
            server.stop()
