"""The measuring programs work: some of them, small."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.bench import Bench, Options
from benchmarks.harness.stack import Stack
from benchmarks.measurements.call_latency import measure_calls
from benchmarks.measurements.command_times import COMMAND, many_groups, scrape_ms, time_command, unread_pipeline
from benchmarks.measurements.drain import measure_drains
from benchmarks.measurements.follow_latency import measure_following
from benchmarks.measurements.full_job import run_job
from benchmarks.measurements.migration_freeze import measure_freezes
from benchmarks.measurements.status_latency import measure_status
from benchmarks.measurements.view_cost import DAYS, ask_views, check_answers, fill_tables
from benchmarks.workload.events import Workload, agent_runs
from sessionary.infra.local.ports import free_port
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import environment


def test_the_full_job_is_measured_on_events_that_all_apply(kafka: KafkaSettings, tmp_path: Path) -> None:
    events = 60_000  # some batches in each partition, and longer than a sample of the CPU time
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    workload = Workload(agent_runs(), concurrent=100)
    try:
        found = run_job(stack, bench, workload, events)
    finally:
        stack.stop()
    assert found.events_per_s > 0
    assert found.cpu_us > 0
    assert 0 < found.audits_a_event < 1


def test_calls_tasks_and_questions_are_measured(kafka: KafkaSettings, tmp_path: Path) -> None:
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    try:
        calls = measure_calls(stack, bench, 20)
        started = measure_calls(stack, bench, 20, "tasks")
        asked = measure_status(stack, bench, 40, 20)
        reported = measure_following(stack, bench, 20, 5, 2)
    finally:
        stack.stop()
    assert calls["calls"] == 60  # three of the four seconds
    assert 0 < calls["p50"] <= calls["p99"] <= calls["max"]
    assert started["calls"] == 60
    assert 0 < started["p50"] <= started["p99"] <= started["max"]
    assert asked["requests"] == 120
    assert 0 < asked["runs_p50"] <= asked["runs_p99"]
    assert 0 < asked["tasks_p50"] <= asked["tasks_p99"]
    assert 0 < reported["reported"] + reported["skipped"] <= 160  # two followers
    assert 0 < reported["p50"] <= reported["p99"] <= reported["max"]
    assert reported["committed"]["p50"] < reported["p50"]


def test_migrations_and_drains_are_measured(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, tmp_path: Path
) -> None:
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    try:
        freezes = measure_freezes(stack, bench, 4, 1)
        there, back = measure_drains(stack, bench, clickhouse, 5)
    finally:
        stack.stop()
    assert len(freezes.freezes) + freezes.unknown == 3
    assert all(ms >= 0 for parts in freezes.parts for ms in parts[1:])
    assert (there.sessions, back.sessions) == (5, 5)
    for drain in (there, back):
        assert sum(drain.stages) == pytest.approx(drain.seconds)
        assert all(0 <= held <= moved for held, moved in zip(drain.holds, drain.moves, strict=True))


def test_commands_and_scrapes_are_timed(kafka: KafkaSettings, tmp_path: Path) -> None:
    stack = Stack(Bench(Options(quick=True)), tmp_path, kafka.bootstrap_servers)
    port, away = free_port(), f"http://127.0.0.1:{free_port()}"
    try:
        unread, grouped = unread_pipeline(stack, 3), many_groups(stack, 7, 2)
        assert time_command([COMMAND, "lag"], environment(unread, clickhouse_url=away)) > 0
        words = [COMMAND, "serve", "lag-exporter", "--port", str(port)]
        stack.run(words, env=environment(grouped, clickhouse_url=away), name="exporter")
        assert scrape_ms(port, 7 * 2) > 0
    finally:
        stack.stop()
    with pytest.raises(RuntimeError, match="ended with 2"):
        time_command([COMMAND, "no-such-command"], {})


def test_views_of_a_day_are_asked_and_their_answers_compared(clickhouse: ClickHouseSettings) -> None:
    make_tables(clickhouse)
    rows = 20_000
    day = fill_tables(clickhouse, rows, datetime.now(UTC))
    costs = ask_views(clickhouse, day, os.getpid())
    assert costs["v_activity, a day"].answer == {"n": rows // DAYS}
    assert costs["v_sessions, a day"].answer == {"n": 50}
    check_answers(clickhouse, [costs], day, rows, os.getpid())
    with pytest.raises(RuntimeError, match="the rows are"):
        check_answers(clickhouse, [ask_views(clickhouse, day, os.getpid())], day, rows, os.getpid())
