"""What the page of a session says of its rows, in the real engine: also of those that are gone."""

import re
import time
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from sessionary.schemas.codec import encode_record
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.clickhouse_rows import insert_records
from tests.support.losses import delete_rows
from tests.support.pipelines import run_sql, set_environment
from tests.support.sink_records import DAY_US, audit_record, batch_record, session_id, usage

_ASKED = re.compile(r"<dt>integrity</dt><dd>(.*) \(asked 20")


def insert_sessions(clickhouse: ClickHouseSettings) -> None:
    """Insert six transactions of ten events; session 1 has every other one of the third."""
    at_us = time.time_ns() // 1_000 - 600_000_000
    sessions = [1 if offset in range(20, 30, 2) else 2 for offset in range(60)]
    events = [usage(session=session, seq=offset + 1) for offset, session in enumerate(sessions)]
    insert_records(clickhouse, "history", events, at_us)
    first = {"transition": "T01", "from_state": "UNKNOWN", "to_state": "Idle", "event_type": "session_created"}
    source = {"source_partition": 0, "source_offset": 20, "batch_number": 3}
    line = audit_record(1, 1, at=at_us, retain_until=at_us + 365 * DAY_US, **first, **source)
    insert_records(clickhouse, "audit", [encode_record(line)], at_us)
    batches = [
        batch_record(
            *(0, number),
            first_offset=number * 10 - 10,
            last_offset=number * 10 - 1,
            audited=int(number == 3),
            started_at=at_us + number * 2_000_000,
            previous_acknowledged_at=None,
        )
        for number in range(1, 7)
    ]
    insert_records(clickhouse, "batches", list(map(encode_record, batches)), at_us)
    run_sql(
        clickhouse,
        f"ALTER TABLE {clickhouse.clickhouse_database}.batches UPDATE landed_at = now64(3) - 500 WHERE true "
        "SETTINGS mutations_sync = 2",
    )


def test_a_row_that_is_gone_is_reported_by_the_session_whose_it_may_be(
    tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    insert_sessions(tables)
    set_environment(monkeypatch, tables)

    def integrity() -> str:
        page = tmp_path / "story.html"
        assert run(["session", "timeline", session_id(1), "--html", str(page)]) == 0
        found = _ASKED.search(page.read_text("utf-8"))
        assert found
        return found[1]

    delete_rows(tables, "history", "source_offset IN (5, 45)")  # before and after the session
    assert integrity() == "no row of this session is missing or doubled"
    delete_rows(tables, "history", "source_offset = 24")
    assert integrity() == "history_rows_missing: 1, of this session or of others in partition 0, offsets 24 to 24"
    delete_rows(tables, "batches", "number = 3")
    assert integrity() == "batch_missing: 1, of this session or of others in partition 0, offsets 20 to 29"
