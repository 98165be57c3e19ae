"""The shell's parts that need no broker: when a tick is due, what a store is worth, what settings say, who is stuck."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import CommitFailedError, ConsumerStoppedError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from confluent_kafka import KafkaError, KafkaException
from faust.exceptions import ConsumerNotStarted

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.records import Gravestone, Position
from sessionary.stream_processors.core.partition import Row
from sessionary.stream_processors.errors import Aborted, Halted, Lost
from sessionary.stream_processors.metrics import HELP, Metrics
from sessionary.stream_processors.runtime import ticker
from sessionary.stream_processors.runtime import transaction as outputs_module
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.executor import UnboundedExecutor, wait_unless_hung
from sessionary.stream_processors.runtime.faust_transport import MemberThread
from sessionary.stream_processors.runtime.job import sessions
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.runtime.ticker import DUE_MS, RENEW_MS, STEADY_MS, LastTick, is_tick_due
from sessionary.stream_processors.runtime.transaction import TransactionWriter
from sessionary.stream_processors.runtime.watchdog import StuckPartitionWatchdog
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import Rows, pack
from sessionary.stream_processors.store.stores import (
    SAVED_AGE_MAX_S,
    MemoryStore,
    RocksStore,
    SavedPosition,
    Store,
    is_usable,
)

NOW_MS = 1_000_000.0


@pytest.mark.parametrize(
    ("deadline_ms", "sent", "due"),
    [
        (None, None, False),  # nobody lives
        (None, LastTick(0, under_way=False), False),
        (2_000_000, None, True),
        (2_000_000, LastTick(NOW_MS - STEADY_MS + 1, under_way=False), False),
        (2_000_000, LastTick(NOW_MS - STEADY_MS, under_way=False), True),
        (int(NOW_MS), LastTick(NOW_MS - DUE_MS + 1, under_way=False), False),
        (int(NOW_MS), LastTick(NOW_MS - DUE_MS, under_way=False), True),
        (int(NOW_MS) + 1, LastTick(NOW_MS - DUE_MS, under_way=False), False),
        (int(NOW_MS), LastTick(0, under_way=True), False),  # the broker is away: no pile of ticks
    ],
)
def test_a_tick_is_due_each_second_and_when_a_deadline_has_passed(
    deadline_ms: int | None, sent: LastTick | None, due: bool
) -> None:
    assert is_tick_due(NOW_MS, deadline_ms, sent) is due


def stone(name: str, epoch: int = 1) -> Gravestone:
    return Gravestone("acme", name, (), "closed", epoch, 7, 99)


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "rows")


def test_both_stores_are_the_same_mapping(store: Store) -> None:
    rows = store.rows
    for name in ("a", "b", "c"):
        rows[name.encode()] = stone(name)
    saved = SavedPosition(Position(5, 1, 0, 2, 0), 11, time.time())
    store.save_rows({name.encode(): pack(stone(name)).stored for name in ("a", "b", "c")}, saved)
    rows[b"a"] = stone("a", epoch=2)
    assert rows.pop(b"b", None) is not None
    assert rows.pop(b"none", None) is None
    assert rows[b"a"].epoch == 2
    assert sorted(rows) == [b"a", b"c"]
    assert len(rows) == 2
    store.save_rows({b"a": pack(stone("a", epoch=2)).stored, b"b": None}, saved._replace(changelog_next=12))
    assert {key: row.epoch for key, row in rows.items()} == {b"a": 2, b"c": 1}
    assert store.saved_position is not None
    assert (store.saved_position.changelog_next, store.saved_position.position.next_offset) == (12, 5)
    with pytest.raises(KeyError):
        rows[b"b"]
    store.wipe()
    assert store.saved_position is None
    assert list(store.rows) == []
    store.close()


def test_rocksdb_keeps_only_what_was_saved(tmp_path: Path) -> None:
    first = RocksStore(tmp_path)
    first.rows[b"kept"] = stone("kept")
    first.save_rows({b"kept": pack(stone("kept")).stored}, SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0))
    first.rows[b"merged, not saved"] = stone("lost")
    first.close()
    again = RocksStore(tmp_path)
    assert again.saved_position == SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0)
    assert list(again.rows) == [b"kept"]
    again.close()


def test_a_reader_of_rocksdb_sees_a_row_while_it_is_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rows, "RECENT_MAX", 0)
    store = RocksStore(tmp_path)
    store.rows[b"a"] = stone("a")

    class SavedMeanwhile(dict[bytes, Row | None]):
        """The writer's thread gets its turn between a reader's two looks."""

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            store.save_rows({b"a": pack(stone("a")).stored}, SavedPosition(Position(9, 1, 0, 2, 0), 21, 5.0))
            return found

    store.rows.unsaved = SavedMeanwhile(store.rows.unsaved)
    row = store.rows.get(b"a")
    assert row is not None
    assert row.session_id == "a"
    store.close()


@pytest.mark.parametrize(
    ("changelog_next", "age_s", "worth"),
    [
        (10, 0.0, True),
        (20, 0.0, True),
        (9, 0.0, False),  # the changelog begins later
        (21, 0.0, False),  # ahead of the log: the changelog is another one
        (15, SAVED_AGE_MAX_S, False),  # tombstones may be gone
        (15, -1.0, False),  # saved in the future: some clock is wrong
    ],
)
def test_a_store_is_worth_something_behind_the_log_and_not_too_old(
    changelog_next: int, age_s: float, worth: bool
) -> None:
    saved = SavedPosition(Position(0, 0, 0, 0, 0), changelog_next, 1_000_000.0)
    assert is_usable(saved, 10, 20, 1_000_000.0 + age_s) is worth
    assert not is_usable(None, 0, 0)


def test_a_position_must_stand_in_the_log() -> None:
    LogProbe(5, 9).check_position(0, 5)
    LogProbe(5, 9).check_position(0, 9)
    for outside in (4, 10):
        with pytest.raises(Halted, match="log_gap"):
            LogProbe(5, 9).check_position(0, outside)


def test_tokens_come_as_json_and_never_show() -> None:
    settings = ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": '{"secret": "acme"}'})
    assert settings.api_tokens == {"secret": "acme"}
    assert "secret" not in repr(settings)
    with pytest.raises(SettingsError) as caught:
        ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": "secret"})
    assert "SESSIONARY_API_TOKENS" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_metric_is_explained_and_made() -> None:
    text = Metrics().exposition().decode()
    for name, sentence in HELP.items():
        assert sentence.endswith(".")
        assert f"# HELP {name}" in text


class FakeTransactions:
    """Fails as told, then works."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors, self.calls = list(errors), 0

    def commit(self, timeout_s: float) -> str:
        self.calls += 1
        if self.errors:
            raise KafkaException(self.errors.pop(0))
        return "committed"


def outputs(wanted: bool = True) -> TransactionWriter:
    settings = ProcessorSettings(bootstrap_servers="127.0.0.1:1")
    return TransactionWriter(settings, sessions(settings), 0, lambda: wanted)


def error(code: int, retriable: bool = False, abort: bool = False, fatal: bool = False) -> KafkaError:
    return KafkaError(code, "told so", fatal, retriable, abort)


def test_a_retriable_error_is_retried_in_place() -> None:
    producer = FakeTransactions(*(error(KafkaError._TIMED_OUT, retriable=True) for _ in range(3)))
    assert outputs()._retry_in_place(producer.commit, 1.0) == "committed"
    assert producer.calls == 4


def test_patience_ends_with_the_ownership() -> None:
    producer = FakeTransactions(error(KafkaError._TIMED_OUT, retriable=True))
    with pytest.raises(Lost):
        outputs(wanted=False)._retry_in_place(producer.commit, 1.0)
    assert producer.calls == 1


def test_patience_with_one_producer_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs_module, "_PATIENCE_S", 0.05)
    producer = FakeTransactions(*(error(KafkaError._TIMED_OUT, retriable=True) for _ in range(1_000)))
    with pytest.raises(Lost):
        outputs()._retry_in_place(producer.commit, 1.0)
    assert producer.calls > 1


def test_a_call_of_many_steps_is_waited_for_and_a_step_that_hangs_is_left() -> None:
    began_s, hang, left = [0.0], threading.Event(), threading.Event()

    def steps() -> str:
        for _ in range(6):
            began_s[0] = time.monotonic()
            time.sleep(0.05)
        return "through"

    def hangs() -> None:
        hang.wait()
        left.set()

    async def story() -> None:
        loop, threads = asyncio.get_running_loop(), UnboundedExecutor()

        async def call(blocking: Callable[[], str | None]) -> str | None:
            return await loop.run_in_executor(threads, blocking)

        began_s[0] = time.monotonic()
        assert await wait_unless_hung(call(steps), lambda: began_s[0], 0.2) == "through"
        began_s[0] = time.monotonic()
        with pytest.raises(TimeoutError):
            await wait_unless_hung(call(hangs), lambda: began_s[0], 0.1)

    asyncio.run(story())
    assert not left.is_set()
    hang.set()
    assert left.wait(10)


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        (error(KafkaError.TRANSACTION_COORDINATOR_FENCED, fatal=True), Lost),
        (error(KafkaError._FENCED, fatal=True), Lost),
        (error(KafkaError.NOT_ENOUGH_REPLICAS, abort=True), Aborted),
        (error(KafkaError.NOT_ENOUGH_REPLICAS, abort=True, retriable=True), Aborted),
        (error(KafkaError.MSG_SIZE_TOO_LARGE, abort=True), Halted),
    ],
)
def test_every_other_error_has_one_consequence(cause: KafkaError, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        outputs()._retry_in_place(FakeTransactions(cause).commit, 1.0)


class FakeOwner:
    """An open partition at a position."""

    def __init__(self, position: int) -> None:
        self.is_open = True
        self.fold = self
        self.position = Position(position, 0, 0, 0, 0)


class FakeProducer:
    """Fails every delivery, or none."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.reports, self.sent = fails, list[Callable[[], None]](), 0

    def produce(self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        self.sent += 1
        told = error(KafkaError._MSG_TIMED_OUT) if self.fails else None
        self.reports.append(lambda: on_delivery(told, None))

    def poll(self, timeout_s: float) -> None:
        while self.reports:
            self.reports.pop()()

    def purge(self, **options: bool) -> None:
        """Nothing is held."""


def test_a_producer_of_ticks_that_fails_is_replaced_but_not_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeProducer] = []

    def make(config: object) -> FakeProducer:
        made.append(FakeProducer(fails=len(made) < 2))
        return made[-1]

    monkeypatch.setattr(ticker, "Producer", make)
    clock = ticker.Ticker(ProcessorSettings(), Metrics())
    for second in range(60):
        clock.send_due_ticks(NOW_MS + second * STEADY_MS, {0: int(NOW_MS) + 900_000})
    assert [producer.sent for producer in made] == [1, RENEW_MS // STEADY_MS, 60 - 1 - RENEW_MS // STEADY_MS]


class FakeMember:
    """A member of the group whose commits end as told."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.committed = error, list[object]()

    def _ensure_consumer(self) -> "FakeMember":
        return self

    async def commit(self, offsets: object) -> None:
        if self.error is not None:
            raise self.error
        self.committed.append(offsets)


@pytest.mark.parametrize("error", [CommitFailedError(), ConsumerStoppedError(), ConsumerNotStarted(), TimeoutError()])
def test_offsets_that_are_not_committed_are_told_to_be_so_and_end_nobody(error: Exception) -> None:
    member: Any = FakeMember(error)
    assert not asyncio.run(MemberThread.commit_offsets(member, {TopicPartition("events", 0): 7}))


def test_offsets_are_committed_as_kafka_has_them() -> None:
    member: Any = FakeMember(None)
    assert asyncio.run(MemberThread.commit_offsets(member, {TopicPartition("events", 0): 7}))
    assert member.committed == [{TopicPartition("events", 0): OffsetAndMetadata(7, "")}]


class FakeAssignment:
    def __init__(self, position: int) -> None:
        self.owners: dict[int, Any] = {0: FakeOwner(position)}
        self.reopened = 0

    def reopen_partition(self, partition: int) -> None:
        self.reopened += 1

    @property
    def as_assignment(self) -> Assignment:
        assignment: Any = self
        return assignment  # type: ignore[no-any-return]


def watchdog(assignment: FakeAssignment, gave_up: list[str]) -> StuckPartitionWatchdog:
    return StuckPartitionWatchdog(assignment.as_assignment, Metrics(), 60.0, gave_up.append)


def test_a_partition_that_stands_while_its_log_moves_is_reopened_once_then_given_up() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    dog.check_progress({0: 20}, 0.0)
    dog.check_progress({0: 21}, 59.0)
    assert assignment.reopened == 0
    dog.check_progress({0: 22}, 60.0)
    assert (assignment.reopened, gave_up) == (1, [])
    dog.check_progress({0: 23}, 119.0)
    dog.check_progress({0: 24}, 121.0)
    assert assignment.reopened == 1
    assert "stays at 10" in gave_up[0]


def test_a_partition_that_waits_for_nothing_or_moves_is_left_alone() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    for second in range(0, 300, 30):
        dog.check_progress({0: 10}, float(second))  # caught up
    for second in range(300, 600, 30):
        assignment.owners[0].position = Position(second, 0, 0, 0, 0)
        dog.check_progress({0: second + 500}, float(second))  # behind, but moving
    assert (assignment.reopened, gave_up) == (0, [])


def test_time_without_any_look_does_not_count_as_standing_still() -> None:
    assignment, gave_up = FakeAssignment(10), list[str]()
    dog = watchdog(assignment, gave_up)
    dog.check_progress({0: 10}, 0.0)
    for second in range(5, 70, 5):
        dog.check_progress({}, float(second))  # the broker is away
    dog.check_progress({0: 20}, 70.0)  # and back, with what waited at the clients
    assert (assignment.reopened, gave_up) == (0, [])
    dog.check_progress({0: 21}, 75.0)
    assert assignment.reopened == 0
    for second in range(80, 131, 5):
        dog.check_progress({0: second}, float(second))
    assert assignment.reopened == 1
