"""Inserts into ClickHouse what a memory's sessions left, as the sinks do."""

from sessionary.producers.testing import InMemoryTransport
from sessionary.schemas.codec import encode_event, encode_record
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.clickhouse_rows import insert_block


def insert_memory(clickhouse: ClickHouseSettings, memory: InMemoryTransport) -> None:
    """Insert events, audit records and rejected records of a memory with one partition."""
    events = [(one.at_ms * 1_000, one.offset, encode_event(one.event)) for one in memory.verdicts()]
    audit = [(memory.now_ms * 1_000, place, encode_record(one)) for place, one in enumerate(memory.audit())]
    rejected = [
        (one.appended_at * 1_000, place, encode_record(one)) for place, one in enumerate(memory.rejected_records())
    ]
    if events:
        insert_block(clickhouse, "history", events, f"events to {events[-1][1]}")
    if audit:
        insert_block(clickhouse, "audit", audit, f"audit to {len(audit)}")
    if rejected:
        insert_block(clickhouse, "rejected", rejected, f"rejected to {len(rejected)}")
