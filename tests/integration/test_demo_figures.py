"""The figures of a demo run, by the real engine."""

import json
from collections.abc import Sequence
from pathlib import Path

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.demo import report
from sessionary.infra.demo.demo_run import load_journals, record_plan
from sessionary.infra.demo.plan import Plan
from sessionary.schemas.codec import encode_record
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.clickhouse_rows import insert_records
from tests.support.sink_records import NOW_US, batch_record

DEMO = "demo"
PAIRS = 100  # the engine breaks few ties alike


def write_journal(path: Path, offsets: Sequence[int]) -> Path:
    reported = {"event_type": "session_activity", "tenant_id": "acme", "session_id": "s", "producer_id": "p"}
    lines = [
        {**reported, "event_id": f"e{offset}", "producer_seq": offset, "partition": 0, "offset": offset, "error": None}
        for offset in offsets
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_no_event_misses_its_batch_because_of_a_transaction_without_records(
    tables: ClickHouseSettings, tmp_path: Path
) -> None:
    """A decision, such as other rules, is a transaction that begins where the next one does."""
    client = ClickHouseClient(tables)
    record_plan(client, Plan(DEMO, (), 0.0))
    batches = []
    for first in range(0, 10 * PAIRS, 10):
        number = first // 5
        batches.append(batch_record(0, number + 1, first_offset=first, last_offset=first, applied=0))
        batches.append(batch_record(0, number + 2, first_offset=first, last_offset=first + 9))
    insert_records(tables, "batches", [encode_record(batch) for batch in batches], NOW_US)
    load_journals(client, DEMO, [write_journal(tmp_path / "journal.ndjson", range(10 * PAIRS))])
    assert client.fetch_one(report.MISSING, demo=DEMO)["batches"] == 0
    load_journals(client, DEMO, [write_journal(tmp_path / "more.ndjson", [10 * PAIRS, 10 * PAIRS + 1])])
    assert client.fetch_one(report.MISSING, demo=DEMO)["batches"] == 2
