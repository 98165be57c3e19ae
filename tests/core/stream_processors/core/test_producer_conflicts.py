"""Two processes with one producer id: what the judge makes of a number that is used twice."""

from typing import Any

import pytest

from sessionary.stream_processors.core.sequencing import IDS_KEPT, hash_event_id
from tests.core.fold_rig import FoldRig
from tests.support.event_factory import EventFactory


def rig_with_session() -> tuple[FoldRig, EventFactory]:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    return rig, agent


def test_a_second_process_with_the_same_producer_id_loses_no_event_silently() -> None:
    rig, first = rig_with_session()
    second = EventFactory()  # a clone: the same producer id, and numbers from 1 on
    second.epoch = first.epoch
    outcomes = [rig.send(second, "message_appended", {"event_id": f"other-{n}"}) for n in range(first.seq)]
    assert outcomes == ["rejected producer_conflict"] * first.seq
    assert rig.letter().detail == "number 4 of producer p is another event's: two processes use this id"
    assert rig.send(second, "message_appended", {"event_id": "other-5"}) == "applied"
    assert rig.send(first, "message_appended", {"event_id": "own-5"}) == "rejected producer_conflict"
    assert rig.send(first, "message_appended", {"event_id": "own-6"}) == "applied"


def test_an_event_that_comes_again_is_a_duplicate_whether_it_was_applied_or_rejected() -> None:
    rig, agent = rig_with_session()
    assert rig.send(agent, "message_appended", {"event_id": "a"}) == "applied"
    assert rig.send(agent, "session_started", {"event_id": "b"}) == "rejected illegal_transition"
    for event_id, seq in (("a", 5), ("b", 6)):
        again = {"event_id": event_id, "producer_seq": seq}
        assert rig.send(agent, "message_appended", again) == "duplicate"


def test_what_came_before_the_ids_that_are_kept_is_a_repetition() -> None:
    rig, agent = rig_with_session()
    while agent.seq < IDS_KEPT + 3:
        assert rig.send(agent, "message_appended") == "applied"
    found = {seq: rig.send(agent, "message_appended", {"event_id": "x", "producer_seq": seq}) for seq in (1, 2, 3, 4)}
    assert found == {1: "duplicate", 2: "duplicate", 3: "duplicate", 4: "rejected producer_conflict"}


def test_a_gap_moves_the_ids_that_are_kept() -> None:
    rig, agent = rig_with_session()
    agent.seq += 3  # 5 to 7 are lost
    assert rig.send(agent, "message_appended", {"event_id": "8"}) == "applied"
    expected = {4: "rejected producer_conflict", 6: "rejected late_filler", 8: "rejected producer_conflict"}
    for seq, outcome in expected.items():
        assert rig.send(agent, "message_appended", {"event_id": "x", "producer_seq": seq}) == outcome
    assert rig.send(agent, "message_appended", {"event_id": "8", "producer_seq": 8}) == "duplicate"
    agent.seq += 10**9
    assert rig.send(agent, "message_appended", {"event_id": "far"}) == "applied"
    assert len(rig.row_of(agent).producers[0].recent_ids or b"") == 2 * IDS_KEPT


def test_a_number_that_a_replay_filled_in_is_no_conflict() -> None:
    rig, agent = rig_with_session()
    agent.seq += 1  # 5 is lost
    assert rig.send(agent, "message_appended") == "applied"
    lost = agent.event_bytes("message_appended", {"event_id": "lost", "producer_seq": 5})
    replayed = (("replayed_from", b'"events:0:1"'),)
    assert rig.append(agent.key.encoded(), lost, replayed) == "applied"
    assert rig.append(agent.key.encoded(), lost, replayed) == "duplicate"


def test_tombstones_keep_no_ids() -> None:
    rig, agent = rig_with_session()
    assert rig.send(agent, "session_terminated") == "applied"
    rig.advance(301_000)
    grave: Any = rig.fold.rows[agent.key.encoded()]
    assert [ledger.recent_ids for ledger in grave.producers] == [None]


@pytest.mark.parametrize("event_id", ["", "a", "0198f1c2-7d9a-7000-8000-000000000009", "ü" * 256])
def test_the_hash_of_an_id_is_two_bytes_and_never_the_mark_of_an_unknown_one(event_id: str) -> None:
    assert len(hash_event_id(event_id)) == 2
    assert hash_event_id(event_id) != b"\0\0"
