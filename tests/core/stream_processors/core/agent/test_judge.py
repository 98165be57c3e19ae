"""What events come to for a session's agents; fold and oracle agree on each."""

from typing import Any

import pytest

from sessionary.schemas.codec import Decoder, Event, encode_record
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.ids import agent_key, content_hash, event_snapshot_id
from sessionary.schemas.limits import AGENTS_MAX, RESULT_CHARACTERS_MAX
from sessionary.schemas.records import AgentState, RulesActivation
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import AgentHandover, Limits, SharedResult, Snapshot
from sessionary.stream_processors.core.children.agent import view_of
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import ANNOUNCING, OracleRig
from tests.core.schemas.codec.test_framing import Schema, changed, field_of, written_by
from tests.support.event_factory import EventFactory, snapshot_id

_LONG = Limits(idle_ms=10**9, max_duration_ms=10**12)


class AgentRig(OracleRig):
    """A fold and an oracle; `owner` owns an Active session, `guest` is another service."""

    def __init__(self) -> None:
        super().__init__(position=ANNOUNCING)
        self.append(None, encode_record(RulesActivation(*NEWEST_RULES, "ops", "w1")))
        self.owner = EventFactory()
        self.guest = EventFactory(service="guests", producer="q")
        self.start(self.owner, limits=_LONG)

    def register(self, agent_id: str, role: str = "writer", by: EventFactory | None = None, **fields: Any) -> str:
        """Register an agent."""
        return self.send(by or self.owner, "agent_registered", agent_id=agent_id, role=role, **fields)

    def task(
        self, agent_id: str, task: str | None, completed: bool = False, by: EventFactory | None = None, **f: Any
    ) -> str:
        """Tell of an agent's task."""
        return self.send(by or self.owner, "agent_task_updated", agent_id=agent_id, task=task, completed=completed, **f)

    def hand_over(self, giver: str, taker: str, by: EventFactory | None = None, **fields: Any) -> str:
        """Hand over from an agent to another."""
        named = {"from_agent_id": giver, "to_agent_id": taker, "sync_type": "handoff", "shared_json": None}
        return self.send(by or self.owner, "context_synced", **{**named, **fields})

    def agent(self, agent_id: str) -> AgentState:
        """Return the row of an agent."""
        row = self.fold.rows[agent_key(self.owner.key.encoded(), agent_id)]
        assert isinstance(row, AgentState)
        return row

    def last_event_id(self, agent: EventFactory, event_type: str) -> str:
        """Return the id of the last event that an agent sent."""
        agent.seq -= 1
        return agent.envelope(event_type).event_id

    def reason(self) -> str:
        """Return the reason that the last record's audit record gives."""
        return str(self.last_audits()[-1].reason)


def test_a_registered_agent_has_no_task_and_a_first_snapshot() -> None:
    rig = AgentRig()
    assert rig.register("r1", "researcher", service_id="guests") == "applied"
    made = event_snapshot_id(rig.last_event_id(rig.owner, "agent_registered"))
    at = rig.at
    assert rig.agent("r1") == AgentState(*rig.owner.key, "r1", "researcher", "guests", at, at, made, 0)
    assert [tuple(agent) for agent in rig.row_of(rig.owner).agents] == [("r1", "researcher", "guests", made)]


def test_an_agent_is_by_default_the_one_that_sends_and_of_its_service() -> None:
    rig = AgentRig()
    assert rig.send(rig.owner, "agent_registered", {"agent_id": "me"}, role="writer") == "applied"
    assert [agent[:3] for agent in rig.row_of(rig.owner).agents] == [("me", "writer", "billing")]


def test_an_agent_registered_again_is_as_it_was() -> None:
    rig = AgentRig()
    rig.register("r1", "researcher")
    rig.task("r1", "read")
    before = rig.agent("r1"), rig.row_of(rig.owner).agents
    rig.at += 5
    assert rig.register("r1", "researcher") == "applied"
    assert (rig.agent("r1"), rig.row_of(rig.owner).agents) == before
    assert rig.register("r1", "writer") == "rejected invalid_value"
    assert rig.reason() == "agent r1 is registered as researcher of billing"
    assert rig.register("r1", "researcher", service_id="guests") == "rejected invalid_value"


@pytest.mark.parametrize(
    ("role", "known", "verdict"),
    [
        ("researcher", "researcher", "applied"),
        ("critic", "other", "applied"),
        ("critic", "UNKNOWN", "applied"),
        ("critic", "writer", "rejected invalid_value"),
        ("writer", "other", "applied"),  # of a client that does not know this role yet
    ],
)
def test_a_role_is_one_of_the_known_ones_or_another_one_which_is_kept(role: str, known: str, verdict: str) -> None:
    """R-003-44: the list can be extended: clients and processors of both releases work together."""
    rig = AgentRig()
    assert rig.register("r1", role, known_role=known) == verdict
    kept = [agent.role for agent in rig.row_of(rig.owner).agents]
    assert kept == ([role] if verdict == "applied" else [])


def test_an_older_processor_keeps_and_shows_a_role_that_it_does_not_know() -> None:
    """R-003-44: a client of a newer release, whose list of roles has one more."""

    def add(schema: Schema) -> None:
        field_of(schema, "known_role")["type"]["symbols"].append("critic")

    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    event = Decoder().decode_event(agent.event_bytes("agent_registered", agent_id="c1", role="critic"))
    assert isinstance(event, Event)
    value, rig.fold.decoder = written_by(changed("AgentRegistered", add), event, known_role="critic")
    assert rig.append(agent.key.encoded(), value) == "applied"
    assert rig.send(agent, "agent_task_updated", agent_id="c1", task="review") == "applied"
    (known,) = rig.row_of(agent).agents
    kept = rig.fold.rows[agent_key(agent.key.encoded(), "c1")]
    assert isinstance(kept, AgentState)
    assert (known.role, kept.role, kept.current_task) == ("critic", "critic", "review")
    seen = view_of("c1", [known], [kept])
    assert seen is not None
    assert seen.row == kept


@pytest.mark.parametrize("fields", [{"agent_id": "a b"}, {"service_id": ""}, {"role": ""}])
def test_names_of_agents_and_services_are_names(fields: dict[str, str]) -> None:
    rig = AgentRig()
    named: dict[str, Any] = {"agent_id": "r1", **fields}
    assert rig.send(rig.owner, "agent_registered", **named) == "rejected invalid_value"
    assert rig.row_of(rig.owner).agents == ()


def test_a_session_has_at_most_64_agents() -> None:
    rig = AgentRig()
    for number in range(AGENTS_MAX):
        assert rig.register(f"a{number}") == "applied"
    before = rig.row_of(rig.owner).agents
    assert rig.register("one-more") == "rejected too_many_agents"
    assert rig.reason() == "the session has 64 agents, which is the most"
    assert rig.row_of(rig.owner).agents == before
    assert rig.register("a7") == "applied"  # it is there


CONTENT_EVENTS = (
    "state_updated",
    "snapshot_created",
    "checkpoint_saved",
)


@pytest.mark.parametrize("event_type", CONTENT_EVENTS)
def test_only_members_change_the_content(event_type: str) -> None:
    rig = AgentRig()
    content: dict[str, Any] = {}
    if event_type == "snapshot_created":
        first = rig.row_of(rig.owner).snapshot.snapshot_id
        content = {"snapshot": Snapshot(snapshot_id("later"), first, 1, "{}", None, content_hash("{}"), "full", "none")}
    before = rig.row_of(rig.owner)
    assert rig.send(rig.guest, event_type, **content) == "rejected not_member"
    (line,) = rig.last_audits()
    assert (line.kind, line.security, line.reason) == ("rejection", True, "the content is billing's, not guests's")
    after = rig.row_of(rig.owner)
    changed = {name for name, old, new in zip(before._fields, before, after, strict=True) if old != new}
    assert changed <= {"audit_seq", "rejections", "producers"}  # what tells of the rejection itself
    assert rig.register("r1", service_id="guests") == "applied"
    assert rig.send(rig.guest, event_type, **content) == "applied"


def test_activity_messages_calls_and_usage_are_open_to_all_services() -> None:
    rig = AgentRig()
    for event_type in ("session_activity", "message_appended", "tool_call_started", "usage_recorded"):
        assert rig.send(rig.guest, event_type) == "applied"


def test_lifecycle_stays_the_owners_although_a_service_is_a_member() -> None:
    rig = AgentRig()
    rig.register("r1", service_id="guests")
    assert rig.send(rig.guest, "session_terminated") == "rejected not_owner"


def test_only_the_owner_or_an_operator_says_who_is_a_member() -> None:
    rig = AgentRig()
    assert rig.register("r1", by=rig.guest) == "rejected not_member"
    assert [line.security for line in rig.last_audits()] == [True]
    assert rig.row_of(rig.owner).agents == ()
    rig.register("r2", service_id="guests")
    assert rig.register("r1", by=rig.guest) == "rejected not_member"  # also if it is one itself
    assert rig.register("r1", by=rig.guest, service_id="others", as_operator=True) == "applied"
    assert [agent.service_id for agent in rig.row_of(rig.owner).agents] == ["guests", "others"]


def test_tasks_follow_each_other_and_each_makes_a_snapshot() -> None:
    rig = AgentRig()
    rig.register("r1", "researcher")
    first = rig.agent("r1").snapshot_id
    rig.at += 10
    assert rig.task("r1", "plan", from_snapshot_id=first, to_snapshot_id=snapshot_id("s1")) == "applied"
    assert rig.agent("r1")[6:10] == (rig.at, snapshot_id("s1"), 0, "plan")
    rig.at += 10
    assert rig.task("r1", "read", from_snapshot_id=snapshot_id("s1"), to_snapshot_id=snapshot_id("s2")) == "applied"
    row = rig.agent("r1")
    assert (row.current_task, row.completed_tasks) == ("read", ("plan",))
    assert rig.task("r1", "read", completed=True) == "applied"
    row = rig.agent("r1")
    assert (row.current_task, row.completed_tasks) == (None, ("plan", "read"))
    assert row.snapshot_id == event_snapshot_id(rig.last_event_id(rig.owner, "agent_task_updated"))
    assert [agent.snapshot_id for agent in rig.row_of(rig.owner).agents] == [row.snapshot_id]


def test_a_task_that_is_not_the_current_one_is_completed_beside_it() -> None:
    rig = AgentRig()
    rig.register("r1")
    rig.task("r1", "plan")
    assert rig.task("r1", "other", completed=True) == "applied"
    assert (rig.agent("r1").current_task, rig.agent("r1").completed_tasks) == ("plan", ("other",))
    assert rig.task("r1", None, completed=True) == "applied"  # the current one
    assert rig.agent("r1").completed_tasks == ("other", "plan")
    assert rig.task("r1", None, completed=True) == "rejected invalid_value"
    assert rig.reason() == "agent r1 has no task"


@pytest.mark.parametrize("completed", [True, False])
def test_each_task_is_done_once(completed: bool) -> None:
    rig = AgentRig()
    rig.register("r1")
    rig.task("r1", "plan", completed=True, result_json='"first"')
    before = rig.agent("r1")
    assert rig.task("r1", "plan", completed=completed, result_json='"second"') == "rejected task_done"
    assert rig.reason() == "agent r1 completed plan before"
    assert rig.agent("r1") == before
    rig.register("r2")
    assert rig.task("r2", "plan", completed=True) == "applied"  # another agent's


def test_results_are_shared_under_the_agents_key_in_one_order() -> None:
    rig = AgentRig()
    rig.register("r1", "researcher")
    rig.register("w1")
    rig.task("r1", "read", completed=True, result_json='["p1"]')
    rig.at += 7
    rig.task("w1", "write", completed=True, artifact_id="f1", shared_key="report")
    assert rig.agent("r1").shared == (SharedResult("r1_read", "read", 1, rig.at - 7, '["p1"]', None),)
    assert rig.agent("w1").shared == (SharedResult("report", "write", 2, rig.at, None, "f1"),)
    assert (rig.agent("r1").shared_seen, rig.agent("w1").shared_seen) == (1, 2)
    rig.register("w2")
    assert rig.agent("w2").shared_seen == 2
    assert rig.row_of(rig.owner).shared_results == 2


def test_a_result_of_a_task_at_work_is_replaced_by_a_later_one() -> None:
    rig = AgentRig()
    rig.register("r1")
    rig.task("r1", "read", result_json="1")
    rig.task("r1", "read", completed=True, result_json="2")
    assert rig.agent("r1").shared == (SharedResult("r1_read", "read", 2, rig.at, "2", None),)


def test_a_long_result_goes_as_an_artifact() -> None:
    rig = AgentRig()
    rig.register("r1")
    longest = '"' + "x" * (RESULT_CHARACTERS_MAX - 2) + '"'
    assert rig.task("r1", "read", completed=True, result_json=longest + " ") == "rejected invalid_value"
    assert rig.reason() == "result_json has 16385 characters, more than 16384: send it as an artifact"
    assert rig.task("r1", "read", completed=True, result_json=longest) == "applied"


def test_an_unknown_agent_has_no_tasks_and_gets_nothing() -> None:
    rig = AgentRig()
    assert rig.task("r1", "read") == "rejected unknown_agent"
    rig.register("r2")
    assert rig.hand_over("r1", "r2") == "rejected unknown_agent"
    assert rig.hand_over("r2", "r1") == "rejected unknown_agent"
    assert rig.reason() == "agent r1 is not registered with the session"


def test_an_agents_tasks_are_its_services_or_the_owners() -> None:
    rig = AgentRig()
    rig.register("r1", service_id="guests")
    rig.register("r2")
    assert rig.task("r1", "read", by=rig.guest) == "applied"
    assert rig.task("r2", "read", by=rig.guest) == "rejected not_member"
    assert [line.security for line in rig.last_audits()] == [True]
    assert rig.hand_over("r2", "r1", by=rig.guest) == "rejected not_member"
    assert rig.hand_over("r1", "r2", by=rig.guest) == "applied"
    assert rig.task("r1", "write") == "applied"


def test_a_task_follows_the_agents_last_snapshot_if_it_names_one() -> None:
    rig = AgentRig()
    rig.register("r1")
    old = rig.agent("r1").snapshot_id
    rig.task("r1", "read", to_snapshot_id=snapshot_id("s1"))
    before = rig.agent("r1")
    assert rig.task("r1", "write", from_snapshot_id=old) == "rejected broken_chain"
    assert rig.reason() == f"snapshot {old} is not the last one of agent r1, {snapshot_id('s1')}"
    assert rig.agent("r1") == before


def test_a_hand_over_links_the_givers_snapshot_to_the_taker() -> None:
    rig = AgentRig()
    rig.register("r1", "researcher")
    rig.register("w1")
    rig.task("r1", "read", completed=True, to_snapshot_id=snapshot_id("s1"))
    rig.at += 3
    assert rig.hand_over("r1", "w1", from_snapshot_id=snapshot_id("s0")) == "rejected broken_chain"
    assert rig.hand_over("r1", "w1", from_snapshot_id=snapshot_id("s1")) == "applied"
    assert rig.agent("w1").handover == AgentHandover("r1", snapshot_id("s1"), "handoff", rig.at)
    assert rig.hand_over("r1", "r1") == "rejected invalid_value"


@pytest.mark.parametrize("event_type", ["agent_registered", "agent_task_updated", "context_synced"])
def test_a_replayed_event_of_agents_fills_no_gap(event_type: str) -> None:
    rig = AgentRig()
    rig.register("r1")
    rig.owner.seq += 1
    assert rig.send(rig.owner, "session_activity") == "applied"
    missing = rig.owner.seq - 1
    before = rig.row_of(rig.owner)
    value = rig.owner.event_bytes(event_type, {"producer_seq": missing})
    replayed = ((REPLAYED_FROM, b'"events:0:1"'),)
    assert rig.append(rig.owner.key.encoded(), value, replayed) == "rejected late_filler"
    assert rig.row_of(rig.owner).producers == before.producers
    value = rig.owner.event_bytes("session_activity", {"producer_seq": missing})
    assert rig.append(rig.owner.key.encoded(), value, replayed) == "applied"


def test_agents_vanish_with_their_session() -> None:
    rig = AgentRig()
    rig.register("r1")
    key = agent_key(rig.owner.key.encoded(), "r1")
    assert rig.send(rig.owner, "session_terminated", reason="closed") == "applied"
    assert rig.send(rig.owner, "session_phase_changed", phase="clearing") == "applied"
    assert key in rig.fold.rows
    rig.advance(400_000, step_ms=4_000)
    assert key not in rig.fold.rows
    assert rig.owner.key.encoded() not in rig.oracle.rows
