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


def test_the_least_and_the_largest_costs_add_up_exactly(tables: ClickHouseSettings) -> None:
    costs = (10**15, 10**15, 1, 75)  # a million dollars is the largest of a call; a billionth the least
    insert_records(tables, "history", [usage(seq, cost) for seq, cost in enumerate(costs, 1)], NOW_US)
    database = tables.clickhouse_database
    for view in ("v_usage", "v_usage_by", "v_usage_by_tenant"):
        found = run_sql(tables, f"SELECT model_cost_usd_nanos, tool_cost_usd_nanos FROM {database}.{view}")
        assert found.split() == ["2000000000000076", "4"]


_DETAILS = "cache_read_input_tokens, cache_write_input_tokens, reasoning_output_tokens, retries"


def test_the_details_of_calls_are_counted_and_their_first_tokens_averaged(tables: ClickHouseSettings) -> None:
    first = UsageRecorded("m", 100, 10, 8, 1, False, None, 60, 20, 7, "resp-1", 400, 1)
    second = first._replace(response_id=None, time_to_first_token_ms=None, retries=2)
    third = first._replace(time_to_first_token_ms=100)
    events = [agent_event(payload, seq=seq) for seq, payload in enumerate((first, second, third, third), 1)]
    insert_records(tables, "history", [*events, events[0]], NOW_US)  # the first one is delivered twice
    insert_records(tables, "rejected", [rejected(3)], NOW_US)
    database = tables.clickhouse_database

    def ask(columns: str, view: str) -> list[list[str]]:
        found = run_sql(tables, f"SELECT {columns} FROM {database}.{view} ORDER BY ALL")
        return [line.split("\t") for line in found.splitlines()]

    sums = ["180", "60", "21", "4"]
    assert ask(f"{_DETAILS}, mean_time_to_first_token_ms", "v_usage") == [[*sums, "250"]]
    assert ask(f"{_DETAILS}, mean_time_to_first_token_ms", "v_usage_by") == [[*sums, "250"]]
    assert ask(_DETAILS, "v_usage_by_tenant") == [sums]
    columns = f"{_DETAILS}, response_id, time_to_first_token_ms"
    calls = [
        ["60", "20", "7", "1", "resp-1", "100"],
        ["60", "20", "7", "1", "resp-1", "400"],
        ["60", "20", "7", "2", "\\N", "\\N"],
    ]
    assert ask(columns, "v_usage_calls") == calls
    assert len(ask(columns, "v_activity WHERE event_type = 'usage_recorded' AND NOT is_rejected")) == 4


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
        "SELECT service_id, calls, tokens_in, model_cost_usd_nanos + tool_cost_usd_nanos, timeout_retries, "
        "timeout_retry_cost_usd_nanos, timeout_retry_share "
        f"FROM {tables.clickhouse_database}.v_usage ORDER BY service_id",
    )
    assert [line.split("\t") for line in found.splitlines()] == [
        ["billing", "2", "200", "100", "1", str(retry_cost + 1), str(share)],
        ["search", "1", "100", "8", "0", "0", "0"],
    ]
