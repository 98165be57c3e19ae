"""What calls cost: each event once, rejected ones never."""

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import UsageRecorded
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.clickhouse_rows import insert_records
from tests.support.pipelines import run_sql
from tests.support.sink_records import NOW_US, agent_event


def usage(seq: int, cost: int, *, retry: bool = False, service: str = "billing") -> bytes:
    payload = UsageRecorded("m", 100, 10, cost, 1, is_timeout_retry=retry, retry_of="event-1-1" if retry else None)
    return agent_event(payload, seq=seq, service_id=service)


def rejected(offset: int) -> bytes:
    return encode_record(RejectedEvent("stale_epoch", "", True, None, None, None, None, None, "t", 0, offset, NOW_US))


@pytest.mark.parametrize(("retry_cost", "share"), [(8, 0.09), (10, 0.11)])
def test_the_share_of_retries_after_a_timeout(tables: ClickHouseSettings, retry_cost: int, share: float) -> None:
    """R-000-19, R-000-46: a load of 9 % and one of 11 %, tool cost included."""
    rest = 100 - (retry_cost + 1) - 1
    events = [usage(1, rest), usage(2, retry_cost, retry=True)]
    again_and_rejected = [usage(2, retry_cost, retry=True), usage(3, 5_000)]
    insert_records(tables, "history", [*events, *again_and_rejected, usage(4, 7, service="search")], NOW_US)
    insert_records(tables, "rejected", [rejected(3)], NOW_US)
    found = run_sql(
        tables,
        "SELECT service_id, calls, tokens_in, model_cost_usd_micros + tool_cost_usd_micros, timeout_retries, "
        "timeout_retry_cost_usd_micros, timeout_retry_share "
        f"FROM {tables.clickhouse_database}.v_usage ORDER BY service_id",
    )
    assert [line.split("\t") for line in found.splitlines()] == [
        ["billing", "2", "200", "100", "1", str(retry_cost + 1), str(share)],
        ["search", "1", "100", "8", "0", "0", "0"],
    ]
