"""What calls cost: each event once, refused ones never."""

import pytest

from sessionary.schemas.codec import Decoder, Event, encode_event, encode_record
from sessionary.schemas.events import UsageRecorded
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import Envelope
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
from tests.support.pipelines import run_sql
from tests.support.sink_records import NOW_US, session_id


def usage(seq: int, cost: int, *, retry: bool = False, service: str = "billing") -> bytes:
    envelope = Envelope(
        event_id=f"event-{seq}",
        event_type="usage_recorded",
        schema_version=1,
        tenant_id="acme",
        session_id=session_id(1),
        user_id=None,
        agent_id="a",
        agent_role=None,
        service_id=service,
        actor=None,
        epoch=1,
        producer_id="p",
        producer_seq=seq,
        run_id=None,
        run_seq=None,
        step_id=None,
        causation_id=None,
        occurred_at=NOW_US,
    )
    payload = UsageRecorded("m", 100, 10, cost, 1, is_timeout_retry=retry, retry_of="event-1" if retry else None)
    return encode_event(Event(envelope, payload))


def refused(offset: int) -> bytes:
    return encode_record(RejectedEvent("stale_epoch", "", True, None, None, None, None, None, "t", 0, offset, NOW_US))


def write(clickhouse: ClickHouseSettings, kind: str, values: list[bytes]) -> None:
    sink = SINKS[kind]  # type: ignore[index]
    inserter = TableInserter(SinkSettings.model_validate(clickhouse.model_dump()), sink.table)
    inserter.open()
    rows = [
        sink.build_row(RawRecord("t", 0, offset, NOW_US // 1_000, b"k", value), Decoder())
        for offset, value in enumerate(values)
    ]
    block = inserter.new_block()
    assert not block.add_rows(rows)
    inserter.insert_block(block, "t", first_try=True)
    inserter.close()


@pytest.mark.parametrize(("retry_cost", "share"), [(8, 0.09), (10, 0.11)])
def test_the_share_of_retries_after_a_timeout(clickhouse: ClickHouseSettings, retry_cost: int, share: float) -> None:
    """R-000-19, R-000-46: a load of 9 % and one of 11 %, tool cost included."""
    migrate.apply_migrations(clickhouse)
    rest = 100 - (retry_cost + 1) - 1
    events = [usage(1, rest), usage(2, retry_cost, retry=True)]
    again_and_refused = [usage(2, retry_cost, retry=True), usage(3, 5_000)]
    write(clickhouse, "history", [*events, *again_and_refused, usage(4, 7, service="search")])
    write(clickhouse, "rejected", [refused(3)])
    found = run_sql(
        clickhouse,
        "SELECT service_id, calls, tokens_in, model_cost_usd_micros + tool_cost_usd_micros, timeout_retries, "
        "timeout_retry_cost_usd_micros, timeout_retry_share "
        f"FROM {clickhouse.clickhouse_database}.v_usage ORDER BY service_id",
    )
    assert [line.split("\t") for line in found.splitlines()] == [
        ["billing", "2", "200", "100", "1", str(retry_cost + 1), str(share)],
        ["search", "1", "100", "8", "0", "0", "0"],
    ]
