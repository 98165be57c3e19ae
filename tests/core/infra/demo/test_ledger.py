"""The journals of a demo run reach ClickHouse whole, also if it goes away meanwhile."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.demo.ledger import load_journals
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import ClickHouseSettings


class _FailingOnce(ClickHouseClient):
    """A table in memory whose second insert is made, but not answered."""

    def __init__(self) -> None:
        super().__init__(ClickHouseSettings.from_env({}))
        self.rows: list[Mapping[str, Json]] = []
        self._inserts = 0

    def fetch_rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]:
        return [{"1": 1}]

    def execute(self, sql: str) -> None:
        assert sql == "DELETE FROM demo_journal WHERE demo_id = 'd1'"
        self.rows.clear()

    def insert_rows(self, table: str, rows: Iterable[Mapping[str, Json]]) -> None:
        self.rows += rows
        self._inserts += 1
        if self._inserts == 2:
            raise Unavailable("connection reset", 1.0)


def test_journals_are_inserted_once_if_the_server_goes_away(tmp_path: Path) -> None:
    journal, client = tmp_path / "journal", _FailingOnce()
    journal.write_text("".join(json.dumps({"event_id": f"e{number}"}) + "\n" for number in range(25_000)))
    assert load_journals(client, "d1", [journal]) == 25_000
    assert [row["event_id"] for row in client.rows] == [f"e{number}" for number in range(25_000)]
