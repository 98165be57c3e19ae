"""The end of a demo run while Kafka is away."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.demo import report
from sessionary.infra.demo.demo_run import count_other_bytes, load_journals
from sessionary.infra.demo.plan_runner import DemoCounts
from sessionary.infra.demo.report import make_report
from sessionary.infra.local.ports import free_port
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

ROWS: dict[str, Row] = {
    report.PROGRESS: {"planned": 2, "finished": 2},
    report.MISSING: {"audit": 0, "rejected": 0, "unacknowledged": 0},
    report.DOUBLED: {"history": 0, "broken_chains": 0},
    report.COUNTS: {"false_timeouts": 0},
    report.CLEANUP: {"reclaim_rate": 1.0},
    report.BYTES: {"audit": 10, "events": 30},
}

COUNTS = DemoCounts(10, 10, 0, 0, 0, 0.0)


class _TellingClickHouse(ClickHouseClient):
    """Answers the report's questions without a server."""

    def fetch_rows(self, sql: str, **_parameters: Any) -> list[Row]:
        return [dict(ROWS[sql])] if sql in ROWS else []

    def fetch_one(self, sql: str, **_parameters: Any) -> Row:
        return dict(ROWS.get(sql, {}))


def test_a_report_leaves_out_what_only_kafka_can_tell() -> None:
    said: list[str] = []
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")
    others = count_other_bytes(kafka, 0, said.append)
    assert others is None
    (line,) = said
    assert line.startswith("the bytes of cleanup and changelog are left out, and with them audit io share: Kafka at ")
    clickhouse = _TellingClickHouse(ClickHouseSettings())
    report = make_report(clickhouse, "demo", COUNTS, others, 1.0)
    assert (report.figures["audit_io_share"], report.faults) == (None, {})
    assert report.figures["bytes_by_topic"] == {"audit": 10, "events": 30}
    known = make_report(clickhouse, "demo", COUNTS, {"cleanup": 60}, 1.0)
    assert known.figures["audit_io_share"] == 0.1


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
