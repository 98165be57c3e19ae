"""How far apart a worker's transactions begin, and what it logs of those that are committed."""

import logging
import time
from typing import Any

import pytest

from sessionary.schemas.types import CleanupAction
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.runtime.transaction import CommitReceipt
from sessionary.stream_processors.runtime.worker_context import (
    BUSY_S,
    SLOW_MS_MAX,
    UNDER_WAY_MAX,
    BusyPartitions,
    CommitTimes,
    WorkerContext,
    spread_interval_ms,
)
from tests.core.fold_rig import FoldRig
from tests.core.stream_processors.runtime.owner_doubles import OwnerBench
from tests.support.event_factory import EventFactory


def note_begins(context: WorkerContext, partitions: int) -> None:
    """Let so many partitions begin a transaction now."""
    for partition in range(partitions):
        context.busy_partitions.note_begin(partition, time.monotonic())


@pytest.mark.parametrize(
    ("commit_interval_ms", "busy_partitions", "wanted_ms"),
    [
        (30, 0, 30),
        (30, 1, 30),
        (30, 7, 30),
        (30, 8, 32),
        (30, 16, 64),
        (30, 25, 100),
        (30, 26, 100),
        (30, 256, 100),
        (200, 256, 200),
        (1, 1, 4),
        (0, 256, 0),
    ],
)
def test_transactions_are_further_apart_the_more_partitions_are_busy(
    commit_interval_ms: int, busy_partitions: int, wanted_ms: int
) -> None:
    assert spread_interval_ms(commit_interval_ms, busy_partitions) == wanted_ms


@pytest.mark.parametrize("busy_partitions", range(8, 26))
def test_a_worker_begins_at_most_250_transactions_a_second_with_up_to_25_busy_partitions(busy_partitions: int) -> None:
    assert busy_partitions * 1_000 / spread_interval_ms(30, busy_partitions) <= 250


def test_the_interval_follows_the_partitions_that_are_busy() -> None:
    context = OwnerBench().context
    assert context.commit_interval_s == 0.03
    note_begins(context, 20)
    assert context.commit_interval_s == 0.08


def test_a_partition_is_busy_for_a_while_after_each_of_its_transactions_began() -> None:
    busy = BusyPartitions()
    assert busy.count(10.0) == 0
    busy.note_begin(0, 10.0)
    busy.note_begin(1, 10.0)
    busy.note_begin(0, 11.0)
    assert busy.count(11.0) == 2
    assert busy.count(10.0 + BUSY_S) == 2
    assert busy.count(10.5 + BUSY_S) == 1
    assert busy.count(11.5 + BUSY_S) == 0


def test_a_partition_stays_busy_at_the_longest_interval() -> None:
    assert BUSY_S * 1_000 > SLOW_MS_MAX + 500  # a transaction itself takes time


@pytest.mark.parametrize("busy_partitions", [17, 64, 256])
@pytest.mark.parametrize("commit_ms", [5.0, 40.0, 400.0])
def test_slow_transactions_are_begun_so_far_apart_that_few_are_under_way(
    busy_partitions: int, commit_ms: float
) -> None:
    interval_ms = spread_interval_ms(30, busy_partitions, commit_ms)
    under_way = busy_partitions * commit_ms / max(interval_ms, commit_ms)
    assert under_way <= UNDER_WAY_MAX or interval_ms == SLOW_MS_MAX


@pytest.mark.parametrize("busy_partitions", [1, 4, UNDER_WAY_MAX])
def test_few_partitions_wait_no_longer_if_transactions_are_slow(busy_partitions: int) -> None:
    """Not longer than the transaction itself takes."""
    assert spread_interval_ms(30, busy_partitions, 500.0) <= max(500.0, spread_interval_ms(30, busy_partitions))


def test_slow_transactions_wait_a_second_at_most_and_none_if_the_interval_is_off() -> None:
    assert spread_interval_ms(30, 1_000, 10_000.0) == SLOW_MS_MAX
    assert spread_interval_ms(0, 256, 1_000.0) == 0


def test_the_interval_follows_the_time_that_transactions_take() -> None:
    context = OwnerBench().context
    note_begins(context, 64)
    quick_s = context.commit_interval_s
    for _ in range(200):
        context.commit_times.add_commit(0.2)
    assert context.commit_interval_s == pytest.approx(0.2 * 64 / UNDER_WAY_MAX, rel=0.05)
    for _ in range(200):
        context.commit_times.add_commit(0.005)
    assert context.commit_interval_s == pytest.approx(quick_s, rel=0.05)


def test_one_transaction_that_hangs_changes_the_mean_little() -> None:
    times = CommitTimes()
    for _ in range(100):
        times.add_commit(0.01)
    times.add_commit(12.0)
    assert times.mean_ms < 10 + SLOW_MS_MAX / 16


def reported_fields(caplog: pytest.LogCaptureFixture, outcome: BatchResult, partition: int = 3) -> list[dict[str, Any]]:
    """Commit an outcome; return the level, text and fields of the lines that it leaves."""
    caplog.clear()
    OwnerBench().context.note_commit(partition, outcome, 0.0, CommitReceipt({}, outcome.position, 1, 0, 0.0))
    names = ("levelname", "tenant_id", "session_id", "partition", "offset", "error_class", "records")
    return [
        {"text": line.getMessage(), **{name: line.__dict__[name] for name in names if name in line.__dict__}}
        for line in caplog.records
    ]


def test_rejections_for_security_are_one_line_of_the_first_one_s_session(caplog: pytest.LogCaptureFixture) -> None:
    rig, agents = FoldRig(), [EventFactory(), EventFactory()]
    records = [
        LogRecord(
            n, rig.at, agents[n % 2].key.encoded(), agents[n % 2].event_bytes("session_created", {"tenant_id": "evil"})
        )
        for n in range(4)
    ]
    (line,) = reported_fields(caplog, rig.append_batch(*records))
    assert line.pop("text") == "4 records are rejected for security: foreign_tenant"
    assert line == {
        "levelname": "WARNING",
        "tenant_id": agents[0].key.tenant_id,
        "session_id": agents[0].key.session_id,
        "partition": 3,
        "offset": 0,
        "error_class": "foreign_tenant",
        "records": 4,
    }


def test_a_record_that_the_judge_failed_at_is_reported_with_its_session(caplog: pytest.LogCaptureFixture) -> None:
    rig, agent = FoldRig(), EventFactory()
    batch = rig.fold.begin()
    record = LogRecord(0, rig.at, agent.key.encoded(), agent.event_bytes("session_created"))
    assert batch.apply(record, "KeyError at core/machine.py:1, in judge")
    (line,) = reported_fields(caplog, batch.finish())
    assert (line["levelname"], line["error_class"], line["offset"]) == ("ERROR", "internal_error", 0)
    assert (line["tenant_id"], line["session_id"]) == agent.key
    assert line["text"] == "the judge failed at 1 records: KeyError at core/machine.py:1, in judge"


def test_a_failed_clean_up_is_reported_with_its_session_and_without_the_host_s_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    cleanup_id = rig.row_of(agent).cleanups[0].cleanup_id
    actions = (CleanupAction("s3cret", False, 6, "s3cret"),)
    released: dict[str, Any] = {
        "cleanup_id": cleanup_id,
        "actions": actions,
        "bytes_released": None,
        "host_lost": False,
    }
    assert rig.send(agent, "resources_released", **released) == "applied"
    assert rig.outcome is not None
    (line,) = reported_fields(caplog, rig.outcome)
    assert (line["tenant_id"], line["session_id"]) == agent.key
    assert "s3cret" not in line["text"]


def test_ordinary_rejections_leave_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig, agent = FoldRig(), EventFactory()
    assert rig.send(agent, "session_activity", kind="llm") == "rejected unknown_session"
    assert rig.outcome is not None
    assert reported_fields(caplog, rig.outcome) == []
