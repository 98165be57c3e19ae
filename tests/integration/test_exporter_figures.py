"""The exporter serves every figure that it asks ClickHouse for, and rows move each of them."""

import time
from collections.abc import Iterable
from pathlib import Path

from sessionary.infra.kpi.metrics import HELP
from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import Heartbeat
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_artifact_sweep import Artifacts
from tests.integration.test_kpi_views import exporter_of, released, timed_out, usage
from tests.support.clickhouse_rows import insert_records
from tests.support.metrics_page import metric_values
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import run_sql
from tests.support.sink_records import agent_event, audit_record, batch_record
from tests.support.waiting import wait_until

_SECOND_US = 1_000_000
EXPECTED = {
    "sessionary_kpi_reclaim_ratio": 0.5,
    "sessionary_kpi_cleanup_average_seconds": 3.0,
    "sessionary_kpi_timeout_retry_cost_ratio": 0.1,
    "sessionary_kpi_session_context_bytes_max": 5_000,
    "sessionary_clickhouse_artifacts_overdue": 1,
}
CHECKED = 'sessionary_integrity_checked_timestamp_seconds{source="tables"}'
_OVERDUE_DAYS = 32.0  # an artifact expires after 30 days at most, and is overdue a day later


def insert_rows(clickhouse: ClickHouseSettings, at_us: int) -> None:
    """Insert what every figure follows from; some audit records of batches have no row."""
    lines = [timed_out(number, at_us) for number in (1, 2)] + [released(1, at_us + 3 * _SECOND_US)]
    lines += [encode_record(audit_record(3, 1, source_partition=1, batch_number=1, at=at_us))]
    insert_records(clickhouse, "audit", lines, at_us)
    batches = [
        batch_record(1, number, started_at=at_us + 20_000, previous_acknowledged_at=at_us + 20_000 + 10_000 * number)
        for number in (1, 2)
    ]
    missed = batch_record(0, 1, started_at=at_us, applied=0, audited=2)
    insert_records(clickhouse, "batches", [encode_record(batch) for batch in (*batches, missed)], at_us)
    run_sql(
        clickhouse,
        f"ALTER TABLE {clickhouse.clickhouse_database}.batches UPDATE landed_at = now64(3) - 500 WHERE true "
        "SETTINGS mutations_sync = 2",
    )
    events = [usage(1, 90), usage(2, 10, retry=True), agent_event(Heartbeat(2), seq=3, context_bytes=5_000)]
    insert_records(clickhouse, "history", events, at_us)


def test_every_figure_is_served_and_moved_by_rows(clickhouse: ClickHouseSettings, tmp_path: Path) -> None:
    make_tables(clickhouse)
    Artifacts(clickhouse, tmp_path / "store").save("never swept", _OVERDUE_DAYS)
    insert_rows(clickhouse, time.time_ns() // 1_000 - 600 * _SECOND_US)
    seen: set[str] = set()
    with exporter_of(clickhouse) as port:

        def have_moved() -> bool:
            seen.update(name.partition("{")[0] for name, value in metric_values(port).items() if value > 0)
            return seen >= set(HELP)

        wait_until(have_moved, 180, f"a series above 0 of each of {sorted(HELP)}")
        # An answer that a busy ClickHouse gives too late leaves its series out for a moment.
        page = wait_until(lambda: values_of(port, {*EXPECTED, CHECKED}), 180, "all series at the same time")
    assert {name: page[name] for name in EXPECTED} == EXPECTED
    assert page[CHECKED] > time.time() - 3_600


def values_of(port: int, names: Iterable[str]) -> dict[str, float]:
    """Return the page's values, once it has all of these series."""
    page = metric_values(port)
    return page if page.keys() >= set(names) else {}
