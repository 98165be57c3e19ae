"""How an owner announces rules, and which rules it does not take over. Without a broker."""

import asyncio
from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import AuditRecord, Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import AnnouncedRules, RuleSet
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.rules_change import (
    RulesRequest,
    due_request,
    is_decided,
    needs_tick,
    require_known_rules,
)
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_probe import LogProbe
from tests.core.fold_rig import activation_record
from tests.core.oracle_rig import START_MS
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.support.event_factory import TICK
from tests.support.second_rules import SECOND_RULES

pytestmark = pytest.mark.usefixtures("second_rules")

AT_START = Position(5, START_MS, 0, 2, 0)
ANNOUNCED = AnnouncedRules(*SECOND_RULES, from_offset=5, principal="ops")
REQUEST = RulesRequest(SECOND_RULES, "ops")
LATER = SECOND_RULES.version + 1


def test_rules_in_force_or_announced_are_decided_and_older_ones_with_them() -> None:
    assert is_decided(AT_START, NEWEST_RULES)
    assert not is_decided(AT_START, SECOND_RULES)
    for later in (AT_START._replace(rules=SECOND_RULES), AT_START._replace(announced=ANNOUNCED)):
        assert is_decided(later, SECOND_RULES)
        assert not is_decided(later, SECOND_RULES._replace(version=LATER))


def test_rules_are_announced_at_the_place_before_a_record_only() -> None:
    assert due_request(None, AT_START) is None
    assert due_request(REQUEST, AT_START) == REQUEST
    assert due_request(REQUEST, AT_START._replace(outputs_written=1)) is None  # a part of its timers has fired
    assert due_request(REQUEST, AT_START._replace(announced=ANNOUNCED)) is None
    assert due_request(REQUEST, AT_START._replace(rules=SECOND_RULES)) is None


def test_another_setting_of_the_rules_in_force_begins_after_what_was_announced_before() -> None:
    other = RulesRequest(SECOND_RULES._replace(finished_run_days=400), "ops")
    in_force = AT_START._replace(rules=SECOND_RULES)
    assert due_request(other, in_force) == other
    assert due_request(other, in_force._replace(rules=other.rules)) is None
    assert due_request(other, AT_START._replace(announced=ANNOUNCED)) is None
    assert not is_decided(AT_START._replace(announced=ANNOUNCED), other.rules)
    # Announced back to what is still in force: the announcement comes first.
    back = in_force._replace(announced=AnnouncedRules(*other.rules, from_offset=5, principal="ops"))
    assert not is_decided(back, SECOND_RULES)


def test_an_empty_partition_needs_a_tick_before_rules_are_announced() -> None:
    empty = Position(0, 0, 0, 0, 0)
    assert due_request(REQUEST, empty) is None
    assert needs_tick(REQUEST, empty)
    assert not needs_tick(None, empty)
    assert not needs_tick(REQUEST, AT_START)
    assert not needs_tick(REQUEST, empty._replace(rules=SECOND_RULES))


@pytest.mark.parametrize(
    "position",
    [
        AT_START._replace(rules=RuleSet(LATER, 1, 30, 1, 1)),
        AT_START._replace(announced=AnnouncedRules(*RuleSet(LATER, 1, 30, 1, 1), 5, "ops")),
    ],
)
def test_rules_of_a_later_release_halt_the_partition_by_name(position: Position) -> None:
    with pytest.raises(Halted, match=f"partition 3: rules {LATER} were activated.*: upgrade this worker") as raised:
        require_known_rules(3, position)
    assert raised.value.reason == "unknown_rules"
    require_known_rules(3, AT_START._replace(rules=SECOND_RULES))
    require_known_rules(3, AT_START._replace(announced=ANNOUNCED))


@pytest.fixture
def bench_settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let partitions open at once, at offset 0."""
    recovery = FakeRecovery()
    recovery.gate.release(100)
    RecordingWriter.written, RecordingWriter.started_at, RecordingWriter.aborts = [], [], 0
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
    monkeypatch.setattr(partition_owner, "recover", recovery.recover)
    monkeypatch.setattr(partition_owner, "probe_log", lambda settings, partition, offset: LogProbe(0, 0))
    monkeypatch.setattr(partition_owner, "_ABORT_PAUSE_S", 0.0)
    return {"partitions": 1, "commit_interval_ms": 0, "tick_commit_interval_ms": 0}


@pytest.mark.parametrize("aborts", [0, 2])
def test_an_owner_announces_rules_once_in_a_transaction_of_their_own(
    bench_settings: dict[str, Any], aborts: int
) -> None:
    async def story() -> None:
        bench = OwnerBench(**bench_settings)
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        await bench.seen(lambda: owner.is_open)
        RecordingWriter.aborts = aborts
        owner.request_rules(REQUEST)
        owner.offer_records(0, [LogRecord(0, START_MS, None, TICK)])
        owner.request_rules(REQUEST)
        assert await owner.wait_until(lambda position: is_decided(position, SECOND_RULES), 60)
        owner.request_rules(REQUEST)
        ticks = [LogRecord(1, START_MS, None, TICK)]
        owner.offer_records(1, [*ticks, activation_record(2, START_MS, SECOND_RULES)])
        assert await owner.wait_until_committed(2, 60)
        await bench.assignment.close()

    asyncio.run(story())
    _, announced, before, began = RecordingWriter.written
    ((_, decision),) = announced.records_on("audit")
    assert isinstance(decision, AuditRecord)
    assert (decision.kind, decision.actor, decision.source_offset) == ("decision", "ops", 1)
    assert announced.position.announced == AnnouncedRules(*SECOND_RULES, from_offset=1, principal="ops")
    assert (before.position.next_offset, before.position.rules) == (2, NEWEST_RULES)
    assert (began.position.next_offset, began.position.rules, began.position.announced) == (3, SECOND_RULES, None)


def test_an_announcement_goes_before_the_records_that_wait(bench_settings: dict[str, Any]) -> None:
    async def story() -> None:
        bench = OwnerBench(**bench_settings)
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        owner.request_rules(REQUEST)  # asked for while it still opens
        await bench.seen(lambda: owner.is_open)
        owner.state.load_position(AT_START)
        owner.offer_records(5, [LogRecord(offset, START_MS, None, TICK) for offset in range(5, 14)])
        assert await owner.wait_until_committed(13, 60)
        await bench.assignment.close()

    asyncio.run(story())
    first, *_, last = RecordingWriter.written
    assert first.position.announced is not None
    assert last.counts.last_offset == 13
    assert encode_record(last.position)  # a position with an announcement can be written
