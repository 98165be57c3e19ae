"""How rows are counted by label, and deadlines that should have fired."""

from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.committed import RowTally
from sessionary.stream_processors.core.model import LogRecord
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import START_MS
from tests.support.event_factory import TICK, EventFactory


def test_rows_that_wait_are_counted_once_also_if_a_batch_touches_them() -> None:
    tally = RowTally({str: str.lower}, {})
    rows: dict[bytes, object] = {b"1": "A", b"2": "b", b"3": "A", b"4": 7}
    tally.start_again(rows)
    assert (tally.counts, tally.is_complete) == ({}, False)
    tally.replace_rows({b"1": "a", b"5": None}, {b"1": "B", b"5": "c"})
    assert +tally.counts == {"b": 1, "c": 1}
    tally.count_waiting((rows | {b"1": "B"}).get, 99)
    assert (+tally.counts, tally.is_complete) == ({"a": 1, "b": 2, "c": 1}, True)
    tally.replace_rows({b"1": "b", b"2": "b"}, {b"1": "A", b"2": None})
    assert +tally.counts == {"a": 2, "c": 1}
    tally.start_again([])
    assert (tally.counts, tally.is_complete) == ({}, True)


def test_a_session_counts_by_its_state_and_its_context_once_the_batch_is_merged() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, limits=Limits(context_limit_bytes=1_000, release_limit_ms=60_000, override=True))
    assert +rig.fold.tally.counts == {("Active", False): 1}
    batch = rig.fold.begin()
    activity = agent.event_bytes("session_activity", {"context_bytes": 1_001})
    assert batch.apply(LogRecord(rig.offset, rig.at, agent.key.encoded(), activity))
    batch.finish()
    assert +rig.fold.tally.counts == {("Active", False): 1}, "its transaction may be aborted"
    rig.fold.begin()
    assert rig.append(agent.key.encoded(), activity) == "applied"
    assert +rig.fold.tally.counts == {("Active", True): 1}
    assert rig.send(agent, "session_terminated") == "applied"
    assert sum(rig.fold.tally.counts.values()) == 1
    rig.advance(120_000)
    assert not isinstance(rig.fold.rows[agent.key.encoded()], SessionState)
    assert (+rig.fold.tally.counts, rig.fold.tombstones) == ({}, 1)


def test_a_deadline_is_overdue_from_its_due_time_on_but_not_after_a_silence() -> None:
    rig, quick, slow = FoldRig(), EventFactory("quick"), EventFactory("slow")
    rig.start(quick, limits=Limits(max_duration_ms=40_000))
    rig.start(slow)
    rig.at += 1_000
    assert rig.send(slow, "session_activity") == "applied"  # its timer stays where it was, and is too early
    assert rig.fold.count_overdue(START_MS + 39_999, 100) == 0
    assert rig.fold.count_overdue(START_MS + 60_999, 100) == 1
    assert rig.fold.count_overdue(START_MS + 61_000, 100) == 2
    assert rig.fold.count_overdue(START_MS + 61_000, 1) == 1
    assert rig.fold.live == 2, "to count changes nothing"
    rig.at += 10_000
    outcome = rig.append_batch(LogRecord(rig.offset, rig.at, None, TICK))
    assert outcome.outages == 1
    assert rig.fold.count_overdue(rig.at + 20_000, 100) == 0
    assert rig.fold.count_overdue(START_MS + 39_999, 100) == 0
    assert rig.fold.count_overdue(START_MS + 40_000, 100) == 1, "a silence does not move a maximum duration"
    assert rig.fold.count_overdue(rig.at + 59_999, 100) == 1, "inactivity begins again at the silence's end"
    assert rig.fold.count_overdue(rig.at + 60_000, 100) == 2


def test_an_outcome_tells_when_its_timers_were_due() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, limits=Limits(max_duration_ms=40_000))
    rig.advance(39_000)
    rig.at += 1_700
    outcome = rig.append_batch(LogRecord(rig.offset, rig.at, None, TICK))
    assert (outcome.timer_due_ms, outcome.timer_lateness_ms, outcome.outages) == ([START_MS + 40_000], [700], 0)
