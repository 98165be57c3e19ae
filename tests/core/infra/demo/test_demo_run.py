"""The end of a demo run while Kafka is away."""

from typing import Any

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.demo import queries
from sessionary.infra.demo.demo_run import count_other_bytes
from sessionary.infra.demo.plan_runner import DemoCounts
from sessionary.infra.demo.report import make_report
from sessionary.infra.local.ports import free_port
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

ROWS: dict[str, Row] = {
    queries.PROGRESS: {"planned": 2, "finished": 2},
    queries.MISSING: {"audit": 0, "rejected": 0, "unacknowledged": 0},
    queries.DOUBLED: {"history": 0, "broken_chains": 0},
    queries.COUNTS: {"false_timeouts": 0},
    queries.CLEANUP: {"reclaim_rate": 1.0},
    queries.BYTES: {"audit": 10, "events": 30},
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
