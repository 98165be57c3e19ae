"""What operators do to sessions, and questions to people, beside the oracle."""

from typing import Any

import pytest

from sessionary.schemas.codec import Event
from sessionary.schemas.ids import content_hash
from sessionary.schemas.types import Answer, Limits, SessionHold
from sessionary.stream_processors.core.session.people import (
    instant_text,
    is_answer_new,
    is_by_operator,
)
from sessionary.stream_processors.core.session.snapshots import committed_snapshot
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.support.event_factory import EventFactory, payload_of, snapshot, snapshot_id

HOLD_MS = 20_000
LONG_MS = 100_000  # longer than a session may be silent


def started(hold_ms: int = HOLD_MS, **created: Any) -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(hold_ms=hold_ms), **created)
    return rig, agent


class Hand:
    """An operator's hand: each event has a producer of its own, as a worker sends it."""

    def __init__(self, rig: OracleRig, agent: EventFactory, principal: str = "alice") -> None:
        self.rig, self.agent, self.principal, self.count = rig, agent, principal, 0

    def send(self, event_type: str, **fields: Any) -> str:
        self.count += 1
        hand = EventFactory(service="control-api", producer=f"hand-{self.count}")
        hand.key, hand.epoch, hand.head = self.agent.key, self.rig.row_of(self.agent).epoch, self.agent.head
        outcome = self.rig.send(hand, event_type, {"actor": self.principal}, **{"as_operator": True, **fields})
        row = self.rig.oracle.rows.get(self.agent.key.encoded())
        self.agent.head = row["head"] if row else None
        return outcome

    def pause(self, **fields: Any) -> str:
        return self.send("session_paused", snapshot=None, reason="look at it", **fields)


def test_an_operators_pause_has_a_snapshot_of_the_committed_state_and_his_name() -> None:
    rig, agent = started()
    assert rig.send(agent, "state_updated", base_version=1, new_version=2, state_json='{"step": 2}') == "applied"
    before = rig.row_of(agent)
    expected = committed_snapshot(before)
    assert Hand(rig, agent).pause() == "applied"
    row, (line,) = rig.row_of(agent), rig.last_audits()
    assert (row.state, row.epoch, row.owner_service, row.holder) == ("Paused", 1, "billing", "p")
    assert row.snapshot == expected
    assert (expected.state_json, expected.parent_snapshot_id) == ('{"step": 2}', before.snapshot.snapshot_id)
    assert expected.content_hash == content_hash('{"step": 2}')
    assert (line.transition, line.reason_code, line.reason) == ("T04", "manual", "look at it")
    assert (line.actor, line.snapshot_id, line.service_id) == ("alice", expected.snapshot_id, "control-api")


def test_a_snapshot_that_is_the_committed_state_is_not_made_again() -> None:
    rig, agent = started()
    head = rig.row_of(agent).snapshot
    assert Hand(rig, agent).pause() == "applied"
    assert rig.row_of(agent).snapshot == head == committed_snapshot(rig.row_of(agent))
    assert rig.last_audits()[0].snapshot_id == head.snapshot_id


def test_the_agents_own_pause_names_its_snapshot_too() -> None:
    rig, agent = started()
    assert rig.send(agent, "session_paused", snapshot=snapshot("mine")) == "applied"
    assert rig.last_audits()[0].snapshot_id == snapshot_id("mine")
    assert rig.send(agent, "session_paused", snapshot=None) == "rejected illegal_transition"


def test_the_holder_goes_on_after_an_operators_resume_and_the_epoch_fences_who_did_not_adopt_it() -> None:
    rig, agent = started()
    hand = Hand(rig, agent)
    assert hand.pause() == "applied"
    assert hand.send("session_resumed", message="go on") == "applied"
    row = rig.row_of(agent)
    assert (row.state, row.epoch, row.holder, row.holder_epoch) == ("Active", 2, "p", 0)
    assert rig.last_audits()[0].reason == "go on"
    assert rig.send(agent, "session_activity", {"epoch": 1}) == "rejected stale_epoch"
    agent.epoch = 2
    assert rig.send(agent, "session_activity") == "applied"


def test_an_epoch_that_a_client_gave_fences_off_who_spoke_before() -> None:
    rig, agent = started()
    assert rig.send(agent, "session_paused") == "applied"
    assert rig.send(agent, "session_resumed") == "applied"
    assert (rig.row_of(agent).epoch, rig.row_of(agent).holder_epoch) == (2, 2)
    hand = Hand(rig, agent)
    assert (hand.pause(), hand.send("session_resumed")) == ("applied", "applied")
    assert (rig.row_of(agent).epoch, rig.row_of(agent).holder_epoch) == (3, 2)


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ([], "T13"),
        ([("session_paused", {})], "T09"),
        ([("session_errored", {})], "T12"),
        ([("session_paused", {"question": "Go on?"})], "T09"),
    ],
)
def test_an_operator_calls_a_session_off(before: list[tuple[str, dict[str, Any]]], number: str) -> None:
    rig, agent = started()
    for event_type, fields in before:
        assert rig.send(agent, event_type, **fields) == "applied"
    assert Hand(rig, agent).send("session_terminated", reason="cancelled") == "applied"
    (line,) = rig.last_audits()
    assert (line.transition, line.reason_code, line.actor) == (number, "cancelled", "alice")
    assert rig.row_of(agent).question is None


def test_without_the_mark_another_service_is_no_owner() -> None:
    rig, agent = started()
    hand = Hand(rig, agent)
    assert hand.send("session_paused", as_operator=False) == "rejected not_owner"
    assert hand.send("session_resumed", as_operator=False) == "rejected not_owner"
    assert hand.send("session_terminated", as_operator=False) == "rejected not_owner"
    assert not is_by_operator(Event(agent.envelope("session_paused"), payload_of("session_paused")))


def asked(
    answer_ms: int | None = None, hold_ms: int = HOLD_MS, run_id: str | None = None
) -> tuple[OracleRig, EventFactory, Hand, str]:
    rig, agent = started(hold_ms)
    if run_id is not None:
        assert rig.send(agent, "run_started", {"run_id": run_id}, mode="attached") == "applied"
    fields = {"kind": "review", "question": "Deploy?", "answer_ms": answer_ms}
    assert rig.send(agent, "session_paused", {"event_id": "q1"}, **fields) == "applied"
    return rig, agent, Hand(rig, agent), "q1"


@pytest.mark.parametrize(("approved", "code"), [(True, "approved"), (False, "denied")])
def test_an_answer_resumes_the_session_and_is_kept(approved: bool, code: str) -> None:
    rig, agent, hand, question_id = asked()
    assert rig.row_of(agent).question == (question_id, "Deploy?", HOLD_MS)
    assert hand.send("session_resumed", approved=approved, message="because") == "applied"
    row, (line,) = rig.row_of(agent), rig.last_audits()
    assert (row.state, row.epoch, row.question) == ("Active", 2, None)
    assert row.answers == (Answer(question_id, approved, code, "alice", "because"),)
    assert (line.transition, line.reason_code, line.reason, line.actor) == ("T05", code, "because", "alice")


@pytest.mark.parametrize("answer_ms", [1, 5_000, HOLD_MS + 60_000, None])
def test_a_question_that_nobody_answers_expires_exactly_at_its_deadline_and_is_rejected(answer_ms: int | None) -> None:
    rig, agent, _, question_id = asked(answer_ms)
    limit_ms = HOLD_MS if answer_ms is None else answer_ms
    assert rig.fold.next_deadline_ms == rig.at + limit_ms
    assert rig.advance(limit_ms - 1) == []
    assert rig.advance(1) == ["T05 expired"]
    row, (line,) = rig.row_of(agent), rig.last_audits()
    assert (row.state, row.phase, row.epoch, row.holder_epoch) == ("Active", "processing", 2, 0)
    assert row.answers == (Answer(question_id, False, "expired", ""),)
    assert (line.due_at, line.fired_at, line.actor) == (rig.at * 1_000, rig.at * 1_000, None)
    agent.epoch = 2
    assert rig.send(agent, "session_activity") == "applied"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "question_open"),
        ({"approved": True, "question_id": "q2"}, "no_question"),
        ({"approved": True, "as_operator": False, "question_id": "q1"}, "not_owner"),
    ],
)
def test_what_is_no_answer_leaves_the_question_open(fields: dict[str, Any], reason: str) -> None:
    rig, agent, hand, _ = asked()
    assert hand.send("session_resumed", **fields) == f"rejected {reason}"
    assert rig.row_of(agent).question is not None


def test_an_agent_does_not_answer_itself() -> None:
    rig, agent, _, _ = asked()
    assert rig.send(agent, "session_resumed") == "rejected question_open"
    assert rig.send(agent, "session_resumed", approved=True) == "rejected operator_only"


def test_an_answer_without_a_question_is_rejected() -> None:
    rig, agent = started()
    hand = Hand(rig, agent)
    assert hand.pause() == "applied"
    assert hand.send("session_resumed", approved=True) == "rejected no_question"
    assert rig.row_of(agent).state == "Paused"


def test_the_next_questions_leave_the_last_sixteen_answers() -> None:
    rig, agent, hand, _ = asked()
    for number in range(2, 20):
        assert hand.send("session_resumed", approved=True) == "applied"
        agent.epoch = number
        fields = {"kind": "review", "question": "And now?"}
        assert rig.send(agent, "session_paused", {"event_id": f"q{number}"}, **fields) == "applied"
    row = rig.row_of(agent)
    assert [answer.question_id for answer in row.answers] == [f"q{number}" for number in range(3, 19)]
    assert row.question is not None
    assert (row.question.question_id, row.question.text) == ("q19", "And now?")


def test_an_answer_is_new_until_work_is_done() -> None:
    rig, agent, hand, _ = asked()
    assert not is_answer_new(rig.row_of(agent))
    assert hand.send("session_resumed", approved=True) == "applied"
    agent.epoch = 2
    rig.advance(1)
    assert rig.send(agent, "heartbeat") == "applied"
    assert is_answer_new(rig.row_of(agent))
    assert rig.send(agent, "session_activity") == "applied"
    assert not is_answer_new(rig.row_of(agent))


def test_an_answer_waits_for_a_process_as_long_as_a_pause_may_last() -> None:
    rig, agent, hand, _ = asked(hold_ms=LONG_MS)
    assert hand.send("session_resumed", approved=True) == "applied"
    agent.epoch = 2
    assert rig.advance(LONG_MS - 1) == []
    assert rig.send(agent, "heartbeat") == "applied"
    assert rig.advance(60_000) == ["T06 inactive"]


def test_an_answer_that_no_process_takes_ends_the_session_at_last() -> None:
    rig, _, hand, _ = asked(hold_ms=LONG_MS)
    assert hand.send("session_resumed", approved=True) == "applied"
    assert rig.advance(LONG_MS) == ["T06 inactive"]


@pytest.mark.parametrize("beats", [False, True])
def test_work_after_an_answer_begins_the_clocks_of_activity(beats: bool) -> None:
    rig, agent, hand, _ = asked(hold_ms=LONG_MS)
    assert hand.send("session_resumed", approved=False) == "applied"
    agent.epoch = 2
    rig.advance(1)
    if beats:
        assert rig.send(agent, "heartbeat") == "applied"
    assert rig.send(agent, "session_activity") == "applied"
    assert rig.advance(60_000) == ["T06 inactive"]


@pytest.mark.parametrize("waited_ms", [60_000, 2_000_000])
def test_the_limit_of_an_attached_run_waits_for_the_answer_too(waited_ms: int) -> None:
    rig, agent, hand, _ = asked(answer_ms=3_000_000, run_id="r")
    assert rig.advance(waited_ms) == []
    assert hand.send("session_resumed", approved=True) == "applied"
    agent.epoch = 2
    assert rig.advance(1) == []
    assert rig.send(agent, "heartbeat") == "applied"  # the limit begins
    for _ in range(17):
        assert rig.advance(50_000) == []
        assert rig.send(agent, "heartbeat") == "applied"
    assert rig.advance(50_000) == ["None attached_limit"]


@pytest.mark.parametrize("heard", ["heartbeat", "session_activity", "run_completed", "session_taken_over"])
def test_the_limit_of_an_attached_run_waits_for_a_process_that_takes_the_answer(heard: str) -> None:
    rig, agent, hand, _ = asked(answer_ms=3_000_000, hold_ms=3_000_000, run_id="r")
    assert hand.send("session_resumed", approved=True) == "applied"
    agent.epoch = 2
    assert rig.advance(2_000_000) == []
    if heard == "run_completed":
        assert rig.send(agent, "run_running", {"run_id": "r"}, progress=None) == "applied"
        assert rig.send(agent, heard, {"run_id": "r"}) == "applied"
        assert rig.row_of(agent).open_runs == ()
        return
    assert rig.send(agent, heard) == "applied"
    agent.epoch = rig.row_of(agent).epoch
    for _ in range(17):
        assert rig.advance(50_000) == []
        assert rig.send(agent, "session_activity") == "applied"
    assert rig.advance(50_000) == ["None attached_limit"]


def test_a_pause_whose_snapshot_would_not_fit_into_the_row_is_rejected() -> None:
    position = FIRST_POSITION
    position = position._replace(rules=position.rules._replace(row_bytes_max=200_000))
    rig, agent = OracleRig(position=position), EventFactory()
    rig.start(agent)
    content = "{" + '"a": ' + '"' + "x" * 120_000 + '"}'
    assert rig.send(agent, "state_updated", base_version=1, new_version=2, state_json=content) == "applied"
    row = rig.row_of(agent)
    hand = EventFactory(service="control-api", producer="hand")
    hand.key = agent.key
    value = hand.event_bytes("session_paused", snapshot=None, as_operator=True)
    with pytest.raises(AssertionError, match="rejected state_too_large"):  # the oracle knows no sizes
        rig.append(agent.key.encoded(), value)
    assert rig.row_of(agent)._replace(rejections=(), producers=(), audit_seq=0) == row._replace(
        rejections=(), producers=(), audit_seq=0
    )


# An operator's pause is a lock.


def held(**fields: Any) -> tuple[OracleRig, EventFactory, Hand]:
    rig, agent = started()
    hand = Hand(rig, agent)
    assert hand.pause(**fields) == "applied"
    return rig, agent, hand


def test_an_operators_pause_is_not_undone_by_the_agent() -> None:
    rig, agent, hand = held()
    row = rig.row_of(agent)
    assert row.hold == SessionHold("alice", HOLD_MS)
    assert rig.send(agent, "session_resumed", snapshot_id=None) == "rejected operator_only"
    assert rig.send(agent, "session_resumed", snapshot_id=snapshot_id("stale")) == "rejected operator_only"
    until = instant_text(row.entered_at + HOLD_MS)
    assert rig.last_audits()[0].reason == f"alice holds the session until {until}"
    for event_type in ("session_recovered", "session_started", "session_phase_changed", "session_errored"):
        assert rig.send(agent, event_type).startswith("rejected "), event_type
    assert (rig.row_of(agent).state, rig.row_of(agent).epoch, rig.row_of(agent).hold) == ("Paused", 1, row.hold)
    assert hand.send("session_resumed") == "applied"
    assert (rig.row_of(agent).state, rig.row_of(agent).hold) == ("Active", None)


def test_the_agents_own_pause_is_no_lock() -> None:
    rig, agent = started()
    assert rig.send(agent, "session_paused") == "applied"
    assert rig.row_of(agent).hold is None
    assert rig.send(agent, "session_resumed") == "applied"


@pytest.mark.parametrize("hold_ms", [1_000, 5_000, HOLD_MS + 60_000, None])
def test_a_hold_ends_the_session_exactly_at_its_own_limit(hold_ms: int | None) -> None:
    rig, agent, _ = held(hold_ms=hold_ms)
    limit_ms = HOLD_MS if hold_ms is None else hold_ms
    assert rig.fold.next_deadline_ms == rig.at + limit_ms
    assert rig.advance(limit_ms - 1) == []
    assert rig.advance(1) == ["T09 timeout_cleanup"]
    assert (rig.row_of(agent).state, rig.row_of(agent).hold) == ("Terminated", None)


@pytest.mark.parametrize("hold_ms", [0, 999, 2_592_000_001])
def test_the_time_of_a_hold_has_a_range(hold_ms: int) -> None:
    rig, agent = started()
    assert Hand(rig, agent).pause(hold_ms=hold_ms) == "rejected invalid_value"
    assert rig.row_of(agent).state == "Active"


def test_an_agent_names_no_time_for_its_pause() -> None:
    rig, agent = started()
    assert rig.send(agent, "session_paused", hold_ms=5_000) == "rejected operator_only"
    assert rig.row_of(agent).state == "Active"


def test_an_operator_locks_a_session_that_its_agent_has_paused() -> None:
    rig, agent = started()
    rig.advance(1_000)
    assert rig.send(agent, "session_paused") == "applied"
    left_ms = rig.row_of(agent).max_due_at
    rig.advance(5_000)
    assert rig.send(agent, "session_paused") == "rejected illegal_transition"
    hand = Hand(rig, agent)
    assert hand.pause() == "applied"
    row, (line,) = rig.row_of(agent), rig.last_audits()
    assert (row.state, row.hold, row.max_due_at) == ("Paused", SessionHold("alice", HOLD_MS), left_ms)
    assert (line.transition, line.from_state, line.to_state, line.actor) == ("T04", "Paused", "Paused", "alice")
    assert line.snapshot_id == row.snapshot.snapshot_id
    assert rig.fold.next_deadline_ms == rig.at + HOLD_MS
    assert rig.send(agent, "session_resumed") == "rejected operator_only"
    assert hand.send("session_resumed") == "applied"
    assert rig.row_of(agent).max_due_at == rig.at + (left_ms or 0)


def test_the_last_operator_who_pauses_holds_the_session() -> None:
    rig, agent, _ = held(hold_ms=5_000)
    rig.advance(4_000)
    bob = Hand(rig, agent, "bob")
    bob.count = 10  # of other producers than alice's
    assert bob.pause(hold_ms=60_000) == "applied"
    assert rig.row_of(agent).hold == SessionHold("bob", 60_000)
    assert rig.fold.next_deadline_ms == rig.at + 60_000


def test_a_question_stays_open_while_an_operator_holds_the_session_and_does_not_expire() -> None:
    rig, agent, hand, question_id = asked(answer_ms=5_000)
    rig.advance(4_000)
    assert hand.pause() == "applied"
    assert rig.row_of(agent).question == (question_id, "Deploy?", 5_000)
    assert rig.advance(6_000) == []
    assert rig.send(agent, "session_resumed", approved=True) == "rejected operator_only"
    assert hand.send("session_resumed") == "rejected question_open"
    assert hand.send("session_resumed", approved=True) == "applied"
    row = rig.row_of(agent)
    assert (row.state, row.question, row.hold) == ("Active", None, None)
    assert row.answers == (Answer(question_id, True, "approved", "alice", None),)


def test_a_hold_over_an_open_question_ends_both_with_the_session() -> None:
    rig, agent, hand, _ = asked(answer_ms=5_000)
    assert hand.pause() == "applied"
    assert rig.advance(HOLD_MS) == ["T09 timeout_cleanup"]
    row = rig.row_of(agent)
    assert (row.state, row.question, row.answers, row.hold) == ("Terminated", None, (), None)


def test_an_agent_does_not_ask_in_a_session_that_is_held() -> None:
    rig, agent, _ = held()
    assert rig.send(agent, "session_paused", question="Go on?") == "rejected illegal_transition"
    assert rig.row_of(agent).question is None


def test_a_new_holder_or_owner_does_not_undo_the_hold() -> None:
    rig, agent, hand = held(hold_ms=60_000)
    again = EventFactory(producer="p2")
    again.key = agent.key
    assert rig.send(again, "session_taken_over", {"epoch": 1}) == "applied"
    again.epoch = 2
    assert rig.send(again, "session_resumed", snapshot_id=None) == "rejected operator_only"
    rig.advance(30_000)  # the owner is silent by now
    shop = EventFactory(service="shop", producer="s1")
    shop.key, shop.epoch = agent.key, 2
    assert rig.send(shop, "session_taken_over") == "applied"
    shop.epoch = 3
    assert rig.row_of(agent).owner_service == "shop"
    assert rig.send(shop, "session_resumed", snapshot_id=None) == "rejected operator_only"
    assert rig.row_of(agent).hold == SessionHold("alice", 60_000)
    assert hand.send("session_resumed") == "applied"


def test_a_registered_agents_service_does_not_undo_the_hold() -> None:
    rig, agent = started()
    assert rig.send(agent, "agent_registered", agent_id="helper", role="r", service_id="shop") == "applied"
    assert Hand(rig, agent).pause() == "applied"
    member = EventFactory(service="shop", producer="s1")
    member.key = agent.key
    assert rig.send(member, "session_resumed", snapshot_id=None) == "rejected not_owner"
    assert rig.row_of(agent).state == "Paused"


def test_the_owner_may_still_end_a_session_that_is_held() -> None:
    rig, agent, _ = held()
    assert rig.send(agent, "session_terminated", reason="completed") == "rejected invalid_reason"
    assert rig.send(agent, "session_terminated", reason="cancelled", snapshot=None) == "applied"
    assert (rig.row_of(agent).state, rig.row_of(agent).hold) == ("Terminated", None)
