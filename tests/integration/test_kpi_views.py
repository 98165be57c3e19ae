"""The key figures of a time, in the real engine, and on the lag exporter's page."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.kpi.integrity import KNOWN_FAULTS, ask_integrity
from sessionary.infra.kpi.key_figures import (
    LATE_S,
    KeyFigures,
    Quantiles,
    ask_disk_space,
    ask_key_figures,
    ask_tenant_bytes_max,
)
from sessionary.infra.lag.exporter import run_exporter
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import LagSettings
from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import Heartbeat, StateUpdated, UsageRecorded
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.clickhouse_rows import insert_records
from tests.support.metrics_page import metric_value
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import new_clickhouse, run_sql
from tests.support.sink_records import agent_event, audit_record, batch_record
from tests.support.waiting import wait_until

_HOUR_S = 3_600
_SECOND_US = 1_000_000


@pytest.fixture
def now_us(tables: ClickHouseSettings) -> int:
    return int(run_sql(tables, "SELECT toUnixTimestamp(now())")) * _SECOND_US


def timed_out(number: int, at_us: int, **fields: Any) -> bytes:
    """Return the timeout of the n-th session, which asks for its clean-up."""
    line = audit_record(number, 3, transition="T06", cleanup_id=f"c{number}", at=at_us, due_at=at_us, fired_at=at_us)
    return encode_record(line._replace(from_state="Active", to_state="Timeout", **fields))


def released(number: int, at_us: int, **fields: Any) -> bytes:
    """Return the confirmation of that clean-up."""
    line: AuditRecord = audit_record(number, 4, kind="release", transition=None, cleanup_id=f"c{number}", at=at_us)
    return encode_record(line._replace(from_state="Timeout", to_state="Timeout", **fields))


def usage(number: int, cost: int, *, retry: bool = False) -> bytes:
    return agent_event(UsageRecorded("m", 100, 10, cost - 1, 1, is_timeout_retry=retry), seq=number)


def rejected(offset: int, at_us: int) -> bytes:
    return encode_record(RejectedEvent("stale_epoch", "", True, None, None, None, None, None, "t", 0, offset, at_us))


def test_without_rows_no_figure_is_known(tables: ClickHouseSettings) -> None:
    unknown = Quantiles(None, None, None)
    assert ask_key_figures(tables, _HOUR_S) == KeyFigures(None, None, unknown, unknown, unknown, None, None, None)


def test_a_tenth_of_confirmations_that_is_suppressed_shows_as_a_reclaim_ratio_of_0_9(
    tables: ClickHouseSettings, now_us: int
) -> None:
    """R-000-23; a lost host leaves the divisor, and a timeout of just now is not judged yet."""
    timeout_us = now_us - (LATE_S + 60) * _SECOND_US
    lines = [timed_out(number, timeout_us) for number in range(100)]
    lines += [released(number, timeout_us + number * 10_000) for number in range(90)]
    lines += [timed_out(100, timeout_us), released(100, timeout_us + 1, host_lost=True)]
    lines += [timed_out(101, now_us + LATE_S * _SECOND_US)]  # however long the machine takes until it is asked
    before_us = now_us - (_HOUR_S + 60) * _SECOND_US
    lines += [timed_out(102, before_us), released(103, now_us)]
    insert_records(tables, "audit", lines, now_us)
    insert_records(tables, "audit", lines[:150], now_us, "again")  # stored twice, counted once
    figures = ask_key_figures(tables, _HOUR_S)
    assert figures.reclaim_ratio == 0.9
    assert figures.cleanup == Quantiles(0.45, 0.85, 0.89)
    assert figures.cleanup_average_s == pytest.approx(0.445)
    assert figures.audit_io_ratio == 1.0
    failed = [timed_out(200, timeout_us), released(200, timeout_us, actions_failed=("mark_closed",))]
    insert_records(tables, "audit", failed, now_us, "failed")
    assert ask_key_figures(tables, _HOUR_S).reclaim_ratio == pytest.approx(90 / 101)


def test_a_clean_up_whose_confirmation_a_late_sink_has_not_read_is_not_judged_yet(
    tables: ClickHouseSettings, now_us: int
) -> None:
    read_us, unread_us = (now_us - (LATE_S + age_s) * _SECOND_US for age_s in (1_200, 30))
    lines = [timed_out(0, read_us), released(0, read_us + 1), timed_out(1, unread_us)]
    insert_records(tables, "audit", lines, now_us)
    assert ask_key_figures(tables, _HOUR_S).reclaim_ratio == 0.5
    assert ask_key_figures(tables, _HOUR_S, behind_s=900).reclaim_ratio == 1.0


@pytest.mark.parametrize("percent", [9, 11])
def test_the_share_of_costs_of_retries_after_a_timeout(tables: ClickHouseSettings, now_us: int, percent: int) -> None:
    """R-000-46: a load of 9 % and one of 11 %; rejected and repeated events cost nothing."""
    events = [usage(1, 100 - percent), usage(2, percent, retry=True), usage(2, percent, retry=True), usage(3, 5_000)]
    insert_records(tables, "history", events, now_us - _SECOND_US)
    insert_records(tables, "history", [usage(4, 5_000)], now_us - 2 * _HOUR_S * _SECOND_US, "before")
    insert_records(tables, "rejected", [rejected(3, now_us - _SECOND_US)], now_us)
    assert ask_key_figures(tables, _HOUR_S).timeout_retry_cost_ratio == pytest.approx(percent / 100)


def test_the_largest_context_is_that_of_an_event_that_was_not_rejected(tables: ClickHouseSettings, now_us: int) -> None:
    """R-000-44."""
    beats = [
        agent_event(Heartbeat(number), seq=number, context_bytes=size)
        for number, size in enumerate((5, 209_715_201, 10**12))
    ]
    insert_records(tables, "history", beats, now_us - _SECOND_US)
    insert_records(tables, "rejected", [rejected(2, now_us - _SECOND_US)], now_us)
    assert ask_key_figures(tables, _HOUR_S).session_context_bytes_max == 209_715_201


def test_latencies_and_the_share_of_audit_bytes(tables: ClickHouseSettings, now_us: int) -> None:
    """The arithmetic of R-000-22, R-000-42, R-000-43, R-000-45; benchmarks tell what is met."""
    began_us = now_us - 60 * _SECOND_US
    lines = [audit_record(n, 1, source_partition=1, batch_number=n, at=began_us) for n in (1, 2, 3)]
    insert_records(tables, "audit", [encode_record(line) for line in lines], now_us)
    batches = [
        batch_record(1, n, started_at=began_us + 20_000, previous_acknowledged_at=began_us + 10_000 * n + 20_000)
        for n in (1, 2, 3, 4)
    ]
    insert_records(tables, "batches", [encode_record(record) for record in batches], now_us)
    figures = ask_key_figures(tables, _HOUR_S)
    # The acknowledgement of each is reported by the next one.
    assert figures.transition_latency == Quantiles(0.05, 0.06, 0.06)
    assert figures.audit_write_latency == Quantiles(0.03, 0.04, 0.04)
    sizes = ClickHouseClient(tables).fetch_one(
        "SELECT (SELECT sum(value_size) FROM audit) AS a, (SELECT sum(value_size) FROM batches) AS b"
    )
    assert figures.audit_io_ratio == sizes["a"] / (sizes["a"] + sizes["b"])


def test_stored_bytes_are_reported_by_session_and_layer(tables: ClickHouseSettings, now_us: int) -> None:
    """R-003-89."""
    state = '{"text": "' + "ä" * 5_000 + '"}'
    updates = [StateUpdated(1, 2, state), StateUpdated(2, 3, state + state), StateUpdated(9, 10, state * 9)]
    events = [agent_event(update, seq=number) for number, update in enumerate(updates)]
    insert_records(tables, "history", events, now_us)
    insert_records(tables, "rejected", [rejected(2, now_us)], now_us)
    sizes = "SELECT layer, records, bytes FROM v_stored_bytes WHERE tenant_id = 'acme' ORDER BY layer"

    def stored() -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in ClickHouseClient(tables).fetch_rows(sizes)]

    kept = sum(int(row["value_size"]) for row in ClickHouseClient(tables).fetch_rows("SELECT value_size FROM history"))
    assert stored() == [("history", 3, kept), ("state", 1, 2 * len(state.encode()))]
    archived = audit_record(1, 9, transition="T14", from_state="Terminated", to_state="Archived", at=now_us)
    insert_records(tables, "audit", [encode_record(archived)], now_us)
    assert [layer for layer, *_ in stored()] == ["audit", "history"]


def test_the_largest_tenant_stores_what_the_view_says_of_it(tables: ClickHouseSettings, now_us: int) -> None:
    """R-003-89. One tenant has more of history, the other one more in all tables together."""
    assert ask_tenant_bytes_max(tables) == 0
    text = "x" * 500
    events = [agent_event(StateUpdated(1, 2, f'{{"text": "{text}"}}'))]
    events += [agent_event(StateUpdated(1, 2, f'{{"text": "{text}y"}}'), session=2, tenant_id="globex")]
    insert_records(tables, "history", events, now_us)
    lines = [encode_record(audit_record(1, seq, at=now_us)) for seq in (1, 2)]
    insert_records(tables, "audit", lines, now_us)
    insert_records(tables, "rejected", [rejected(9, now_us)] * 50, now_us)  # of no tenant
    asked = "SELECT tenant_id, layer, bytes FROM v_stored_bytes WHERE layer != 'state'"
    stored = {(row["tenant_id"], row["layer"]): row["bytes"] for row in ClickHouseClient(tables).fetch_rows(asked)}
    assert stored["globex", "history"] > stored["acme", "history"]
    assert ask_tenant_bytes_max(tables) == stored["acme", "history"] + stored["acme", "audit"]


def test_findings_are_counted_by_fault_and_rows_that_a_sink_has_not_read_are_not_missing(
    tables: ClickHouseSettings, now_us: int
) -> None:
    began_us = now_us - 600 * _SECOND_US
    batch = encode_record(batch_record(0, 1, started_at=began_us, applied=0, audited=2))
    insert_records(tables, "batches", [batch], now_us)
    run_sql(
        tables,
        f"ALTER TABLE {tables.clickhouse_database}.batches UPDATE landed_at = now64(3) - 500 WHERE true "
        "SETTINGS mutations_sync = 2",
    )
    assert set(ask_integrity(tables, 21_600, 3_600).by_fault.values()) == {0}
    found = ask_integrity(tables, 21_600, 0.0)
    assert set(found.by_fault) == set(KNOWN_FAULTS)
    assert {fault: number for fault, number in found.by_fault.items() if number} == {"audit_rows_missing": 1}
    assert set(ask_integrity(tables, 300, 0.0).by_fault.values()) == {0}  # it began before


def test_every_disk_says_how_much_of_it_is_free(tables: ClickHouseSettings) -> None:
    assert [(disk.disk, 0 < disk.free_ratio < 1) for disk in ask_disk_space(tables)] == [("default", True)]


def _is_absent(port: int, series: str) -> bool:
    return metric_value(port, series) is None


@contextmanager
def exporter_of(clickhouse: ClickHouseSettings) -> Iterator[int]:
    """Run the exporter beside no broker; yield the port of its page."""
    port, stop = free_port(), threading.Event()
    settings = LagSettings(
        **clickhouse.model_dump(),
        bootstrap_servers=f"127.0.0.1:{free_port()}",
        metrics_port=port,
        kpi_interval_s=1,
        integrity_interval_s=1,
    )
    thread = threading.Thread(target=run_exporter, args=(settings, stop))
    thread.start()
    try:
        yield port
    finally:
        stop.set()
        thread.join(180)


def test_the_exporter_serves_what_is_known_and_nothing_of_a_clickhouse_that_is_away(
    own_clickhouse: LocalClickHouse,
) -> None:
    clickhouse = new_clickhouse(own_clickhouse.url)
    make_tables(clickhouse)
    at_us = time.time_ns() // 1_000 - (LATE_S + 60) * _SECOND_US
    lines = [timed_out(number, at_us) for number in range(10)] + [released(number, at_us) for number in range(9)]
    insert_records(clickhouse, "audit", lines, at_us)
    missing = 'sessionary_integrity_findings{kind="batch_missing",table="batches"}'
    with exporter_of(clickhouse) as port:
        wait_until(lambda: metric_value(port, "sessionary_kpi_reclaim_ratio") == 0.9, 60, "the reclaim ratio")
        wait_until(lambda: metric_value(port, missing) == 0, 120, "an integrity without findings")
        wait_until(
            lambda: (metric_value(port, 'sessionary_clickhouse_disk_free_ratio{disk="default"}') or 0) > 0, 60, "a disk"
        )
        wait_until(lambda: metric_value(port, "sessionary_clickhouse_artifacts_overdue") == 0, 60, "no artifact")
        assert metric_value(port, "sessionary_kpi_timeout_retry_cost_ratio") is None
        own_clickhouse.stop()
        for series in ("sessionary_kpi_reclaim_ratio", "sessionary_kpi_audit_io_ratio"):
            wait_until(partial(_is_absent, port, series), 60, "no series")
        wait_until(lambda: metric_value(port, "sessionary_lag_clickhouse_up") == 0, 60, "the sign of it")
