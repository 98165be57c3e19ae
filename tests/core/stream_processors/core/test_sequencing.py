"""The ledger of a session: many producers, by each version of the rules."""

from collections.abc import Iterator
from random import Random
from unittest.mock import patch

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import SessionState, Tombstone
from sessionary.schemas.types import ForgottenProducer, ProducerLedger
from sessionary.stream_processors.core import sequencing
from sessionary.stream_processors.core.sequencing import (
    FORGOTTEN_MAX,
    OFFSET_DISTANCE_MAX,
    OFFSETS_KEPT,
    PRODUCERS_MAX,
    LogMoment,
    check_sequence,
    hash_producer,
    last_offsets,
)
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory
from tests.support.values import example


def further_processes(count: int, first: EventFactory) -> Iterator[EventFactory]:
    """Yield agents of further processes, each at the epoch of the first one."""
    for number in range(count):
        agent = EventFactory(producer=f"p{number}")
        agent.epoch, agent.taken = first.epoch, first.taken  # a snapshot's id is new in its session
        yield agent


def ledger_of(row: SessionState) -> list[str]:
    return [ledger.producer_id for ledger in row.producers]


@pytest.mark.parametrize("resumes", [False, True], ids=("one epoch", "an epoch each"))
def test_a_hundred_processes_in_turn_work_on_a_session_and_end_it(resumes: bool) -> None:
    rig, first = OracleRig(), EventFactory()
    rig.start(first)
    for agent in further_processes(100, first):
        rig.at += 100
        assert rig.send(agent, "session_activity") == "applied"
        if resumes:
            assert rig.send(agent, "session_paused") == "applied"
            assert rig.send(agent, "session_resumed") == "applied"
        first.epoch = agent.epoch
    assert rig.send(agent, "session_terminated", reason="completed") == "applied"
    row = rig.row_of(agent)
    assert (row.state, len(row.producers), len(row.forgotten)) == ("Terminated", PRODUCERS_MAX, 37)
    assert row.epoch == (101 if resumes else 1)


def test_nothing_of_a_forgotten_producer_is_applied_twice() -> None:
    rig, first = OracleRig(), EventFactory()
    rig.start(first)
    for agent in further_processes(100, first):
        rig.at += 1
        assert rig.send(agent, "session_activity") == "applied"
    row = rig.row_of(first)
    again = [rig.append(record.key, record.value) for record in list(rig.log)]
    assert set(again) == {"duplicate", "rejected late_filler"}
    assert rig.row_of(first)._replace(audit_seq=0, rejections=()) == row._replace(audit_seq=0, rejections=())


def test_a_forgotten_producer_goes_on_where_it_was() -> None:
    rig, first = OracleRig(), EventFactory()
    rig.start(first)
    for agent in further_processes(64, first):
        rig.at += 1
        assert rig.send(agent, "session_activity") == "applied"
    assert "p" not in ledger_of(rig.row_of(first))
    assert rig.send(first, "session_activity") == "applied"
    assert rig.last_audits() == []  # no gap
    assert ledger_of(rig.row_of(first))[-1] == "p"
    first.seq += 2
    assert rig.send(first, "session_activity") == "applied"
    assert [(line.gap_first, line.gap_last) for line in rig.last_audits()] == [(first.seq - 2, first.seq - 1)]


def test_producers_of_past_epochs_are_forgotten_first_and_then_the_longest_silent() -> None:
    rig, first = OracleRig(), EventFactory()
    rig.start(first)
    processes = list(further_processes(65, first))
    for agent in processes[:62]:
        rig.at += 1
        assert rig.send(agent, "session_activity") == "applied"
    assert rig.send(processes[0], "session_activity") == "applied"
    assert rig.send(first, "session_paused") == "applied"
    assert rig.send(first, "session_resumed") == "applied"
    for agent in processes:
        agent.epoch = first.epoch
    assert rig.send(processes[1], "session_activity") == "applied"
    for agent in processes[62:]:
        rig.at += 1
        assert rig.send(agent, "session_activity") == "applied"
    forgotten = {entry.id_hash for entry in rig.row_of(first).forgotten}
    # Of the past epoch: p0 spoke last, p1 speaks in the new one.
    assert forgotten == {hash_producer("p2"), hash_producer("p3")}


def full_memory(epoch: int) -> tuple[tuple[ProducerLedger, ...], tuple[ForgottenProducer, ...]]:
    listed = tuple(ProducerLedger(f"p{n}", 1, (), epoch, n) for n in range(PRODUCERS_MAX))
    return listed, tuple(ForgottenProducer(n, 1, epoch) for n in range(FORGOTTEN_MAX))


def test_a_producer_too_many_for_the_memory_of_an_epoch_is_rejected_until_the_next_one() -> None:
    listed, forgotten = full_memory(epoch=3)
    rejected = check_sequence(listed, forgotten, "new", 1, LogMoment(3, 99, b"id", 1))
    assert (rejected.rejection, rejected.forgotten) == ("too_many_producers", None)
    assert rejected.producers == listed
    taken = check_sequence(listed, forgotten, "new", 1, LogMoment(4, 99, b"id", 1))
    assert taken.rejection is None
    assert taken.forgotten is not None
    assert taken.forgotten == (*forgotten[1:], ForgottenProducer(hash_producer("p0"), 1, 3))
    back = check_sequence(
        listed, (*forgotten[1:], ForgottenProducer(hash_producer("old"), 7, 3)), "old", 8, LogMoment(3, 99, b"id", 1)
    )
    assert back.rejection is None
    assert back.forgotten == (*forgotten[1:], ForgottenProducer(hash_producer("p0"), 1, 3))


@pytest.mark.parametrize("seed", range(40))
def test_no_number_is_taken_twice_in_an_epoch(seed: int) -> None:
    with patch.multiple(sequencing, PRODUCERS_MAX=3, FORGOTTEN_MAX=4):
        send_random_numbers(seed)


def send_random_numbers(seed: int) -> None:
    """Send numbers of twelve producers; fail if one is taken twice in an epoch."""
    rng, epoch = Random(seed), 1
    listed: tuple[ProducerLedger, ...] = ()
    forgotten: tuple[ForgottenProducer, ...] = ()
    taken: set[tuple[str, int, int]] = set()
    for now_ms in range(600):
        if rng.random() < 0.02:
            epoch += 1
        producer, seq = f"p{rng.randrange(12)}", rng.randint(1, 9)
        check = check_sequence(listed, forgotten, producer, seq, LogMoment(epoch, now_ms, b"id", now_ms))
        if check.duplicate or check.rejection is not None:
            assert check.producers == listed
            continue
        # A number of an earlier epoch would be rejected for its epoch.
        assert (producer, seq, epoch) not in taken
        taken.add((producer, seq, epoch))
        listed = tuple(check.producers)
        forgotten = forgotten if check.forgotten is None else tuple(check.forgotten)
        assert len(listed) <= 3
        assert len(forgotten) <= 4
    assert taken


def test_a_ledger_that_is_not_full_is_as_small_as_before() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    row = rig.row_of(agent)
    assert row.forgotten == ()
    former = tuple(ledger._replace(epoch=0, last_at=0, offsets=()) for ledger in row.producers)
    assert len(encode_record(row)) - len(encode_record(row._replace(producers=former))) <= 10


def test_the_last_offsets_of_a_producer_take_few_bytes() -> None:
    listed: tuple[ProducerLedger, ...] = ()
    offsets = [(1 << 33) + 5_000 * number for number in range(OFFSETS_KEPT + 2)]
    for seq, offset in enumerate(offsets, start=1):
        listed = tuple(check_sequence(listed, (), "p", seq, LogMoment(1, 7, b"id", offset)).producers)
    assert list(last_offsets(listed[0])) == offsets[:1:-1]
    assert list(last_offsets(ProducerLedger("p", 3, ()))) == []
    far = LogMoment(1, 7, b"id", offsets[-1] + OFFSET_DISTANCE_MAX)
    assert list(last_offsets(check_sequence(listed, (), "p", len(offsets) + 1, far).producers[0])) == [far.offset]
    row: SessionState = example(SessionState)
    bare = row._replace(producers=tuple(ledger._replace(offsets=()) for ledger in listed))
    assert len(encode_record(row._replace(producers=listed))) - len(encode_record(bare)) <= 20


def test_a_tombstone_has_no_offsets() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.row_of(agent).producers[0].offsets == (3, 1, 1, 1)
    rig.send(agent, "session_terminated")
    rig.advance(301_000, step_ms=5_000)
    grave = rig.fold.rows[agent.key.encoded()]
    assert isinstance(grave, Tombstone)
    assert [ledger.offsets for ledger in grave.producers] == [()]


REPLAYED = (("replayed_from", b'"sessionary.events:0:3"'),)


def rig_with_gap(size: int = 3) -> tuple[OracleRig, EventFactory]:
    """Return a rig whose agent lost `size` numbers after its fourth."""
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    agent.seq += size
    assert rig.send(agent, "session_activity") == "applied"
    return rig, agent


def replay(rig: OracleRig, agent: EventFactory, seq: int, event_type: str = "usage_recorded", **envelope: int) -> str:
    value = agent.event_bytes(event_type, {"producer_seq": seq, **envelope})
    return rig.append(agent.key.encoded(), value, REPLAYED)


def gaps(rig: OracleRig, agent: EventFactory) -> list[tuple[int, int]]:
    return [(first, last) for first, last in rig.row_of(agent).producers[0].missing]


def test_a_replayed_record_fills_its_own_gap_once() -> None:
    rig, agent = rig_with_gap()
    before = rig.row_of(agent)
    rig.at += 1_000
    assert replay(rig, agent, 6) == "applied"
    after = rig.row_of(agent)
    assert after._replace(producers=(), audit_seq=0) == before._replace(producers=(), audit_seq=0)  # no sign of life
    (line,) = rig.last_audits()
    assert (line.kind, line.reason_code, line.gap_first, line.gap_last) == ("gap_filled", "gap_filled", 6, 6)
    assert line.reason == "a replayed record is 6 of p, which was missing"
    assert gaps(rig, agent) == [(5, 5), (7, 7)]
    assert replay(rig, agent, 6) == "duplicate"
    assert replay(rig, agent, 5) == replay(rig, agent, 7) == "applied"
    assert gaps(rig, agent) == []


@pytest.mark.parametrize("state", ["Paused", "Timeout", "Terminated"])
def test_a_replay_fills_its_gap_in_any_state_and_at_a_later_epoch(state: str) -> None:
    rig, agent = rig_with_gap()
    assert rig.send(agent, "session_paused") == "applied"
    if state != "Paused":
        assert rig.send(agent, "session_resumed") == "applied"
    if state == "Timeout":
        assert rig.advance(60_000) == ["T06 inactive"]
    elif state == "Terminated":
        assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    assert replay(rig, agent, 6, epoch=1) == "applied"
    assert rig.row_of(agent).state == state
    assert replay(rig, agent, 5, epoch=99) == "rejected late_filler"


@pytest.mark.parametrize("event_type", ["state_updated", "session_paused", "snapshot_created", "checkpoint_saved"])
def test_what_depends_on_the_order_of_events_fills_no_gap(event_type: str) -> None:
    rig, agent = rig_with_gap()
    assert replay(rig, agent, 6, event_type) == "rejected late_filler"


def test_without_the_header_a_filler_is_late() -> None:
    rig, agent = rig_with_gap()
    assert rig.send(agent, "usage_recorded", {"producer_seq": 6}) == "rejected late_filler"


def test_a_replay_of_a_value_out_of_bounds_stays_rejected() -> None:
    rig, agent = rig_with_gap()
    assert replay(rig, agent, 6, context_bytes=-1) == "rejected late_filler"


def test_numbers_of_joined_gaps_may_have_been_applied_and_are_not_filled() -> None:
    rig, agent = rig_with_gap(size=1)
    for _ in range(16):
        agent.seq += 1
        assert rig.send(agent, "session_activity") == "applied"
    assert gaps(rig, agent)[:2] == [(5, 7), (9, 9)]
    assert [replay(rig, agent, seq) for seq in (5, 6, 7, 9)] == ["rejected late_filler"] * 3 + ["applied"]


def test_a_split_that_makes_too_many_gaps_joins_the_oldest() -> None:
    rig, agent = rig_with_gap(size=1)
    for _ in range(14):
        agent.seq += 1
        assert rig.send(agent, "session_activity") == "applied"
    agent.seq += 3
    assert rig.send(agent, "session_activity") == "applied"
    assert len(gaps(rig, agent)) == 16
    assert replay(rig, agent, agent.seq - 2) == "applied"
    assert gaps(rig, agent)[:2] == [(5, 7), (9, 9)]
    assert replay(rig, agent, 6) == "rejected late_filler"


def test_a_producer_that_was_forgotten_fills_no_gap() -> None:
    rig, first = rig_with_gap()
    for agent in further_processes(64, first):
        rig.at += 1
        assert rig.send(agent, "session_activity") == "applied"
    assert replay(rig, first, 6) == "rejected late_filler"
    assert rig.send(first, "session_activity") == "applied"
    assert replay(rig, first, 6) == "rejected late_filler"
