"""Who may change a session's content, and what its snapshots must be, by rules 1 and 2."""

from typing import Any

import pytest

from sessionary.schemas.ids import content_hash
from sessionary.schemas.retention import compliance_tags, retention_of
from sessionary.schemas.types import DataClass
from tests.core.oracle_rig import OracleRig, position_under
from tests.support.event_factory import EventFactory, snapshot

FORGED = snapshot("forged")._replace(content_hash=content_hash("another"))
DETACHED = snapshot("detached", parent="nowhere")


def active_rig(rules: int) -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(position=position_under(rules)), EventFactory()
    rig.start(agent)
    return rig, agent


@pytest.mark.parametrize("event_type", ["state_updated", "snapshot_created"])
@pytest.mark.parametrize("state", ["Active", "Paused"])
def test_by_rules_2_a_stranger_cannot_change_the_content(event_type: str, state: str) -> None:
    outcomes = []
    for rules in (1, 2):
        rig, agent = active_rig(rules)
        if state == "Paused":
            assert rig.send(agent, "session_paused") == "applied"
        stranger = EventFactory(service="other", producer="q")
        stranger.head = agent.head
        before = rig.row_of(agent)
        outcomes.append(rig.send(stranger, event_type))
        after = rig.row_of(agent)
    assert outcomes[0] == (
        "applied" if (event_type, state) != ("state_updated", "Paused") else "refused illegal_transition"
    )
    assert outcomes[1] == "refused not_member"
    bookkeeping: dict[str, Any] = {"audit_seq": 0, "producers": (), "refusals": ()}
    assert after._replace(**bookkeeping) == before._replace(**bookkeeping)
    (line,) = rig.last_audits()
    assert (line.kind, line.security, line.audit_seq) == ("refusal", True, before.audit_seq + 1)
    assert line.reason == "the content is billing's, not other's"
    assert [ledger.last_seq for ledger in after.producers if ledger.producer_id == "q"] == [1]


def test_a_stranger_may_still_report_work() -> None:
    rig, _ = active_rig(2)
    stranger = EventFactory(service="other", producer="q")
    for event_type in ("session_activity", "usage_recorded", "message_appended", "tool_call_started", "heartbeat"):
        assert rig.send(stranger, event_type) == "applied"


@pytest.mark.parametrize(("wrong", "reason"), [(FORGED, "hash_mismatch"), (DETACHED, "broken_chain")])
@pytest.mark.parametrize("event_type", ["snapshot_created", "session_paused"])
def test_a_wrong_snapshot_is_refused_by_rules_2(event_type: str, wrong: Any, reason: str) -> None:
    rig, agent = active_rig(1)
    assert rig.send(agent, event_type, snapshot=wrong) == "applied"
    rig, agent = active_rig(2)
    before = rig.row_of(agent)
    assert rig.send(agent, event_type, snapshot=wrong) == f"refused {reason}"
    after = rig.row_of(agent)
    assert (after.snapshot, after.state, after.last_event_at) == (before.snapshot, "Active", before.last_event_at)
    assert rig.send(agent, event_type, snapshot=snapshot("right")) == "applied"
    assert rig.send(agent, "snapshot_created", snapshot=snapshot("next", '{"a": 1}')) == "applied"
    assert rig.row_of(agent).snapshot.parent_snapshot_id == "right"


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        (FORGED, "the hash of snapshot forged is not that of its content"),
        (DETACHED, "snapshot detached follows nowhere, but the head of the chain is first"),
    ],
)
def test_a_session_ends_even_if_its_last_snapshot_is_wrong(wrong: Any, detail: str) -> None:
    rig, agent = active_rig(2)
    assert rig.send(agent, "session_terminated", snapshot=wrong, message="done") == "applied"
    row = rig.row_of(agent)
    assert (row.state, row.snapshot.snapshot_id) == ("Terminated", "first")
    assert rig.last_audits()[0].reason == f"done; its snapshot is left out: {detail}"


def test_a_session_ends_with_its_last_snapshot() -> None:
    rig, agent = active_rig(2)
    assert rig.send(agent, "session_terminated", snapshot=snapshot("last"), message="done") == "applied"
    assert rig.row_of(agent).snapshot.snapshot_id == "last"
    assert rig.last_audits()[0].reason == "done"


@pytest.mark.parametrize(
    ("first", "restored_from", "outcome"),
    [
        (snapshot("first"), None, "applied"),
        (snapshot("first"), "older", "applied"),
        (snapshot("first", parent="older"), "older", "applied"),
        (snapshot("first", parent="older"), None, "refused broken_chain"),
        (snapshot("first", parent="older"), "another", "refused broken_chain"),
        (FORGED, None, "refused hash_mismatch"),
    ],
)
def test_a_first_snapshot_follows_the_one_that_was_restored_or_none(
    first: Any, restored_from: str | None, outcome: str
) -> None:
    rig, agent = OracleRig(position=position_under(2)), EventFactory()
    fields = {"snapshot": first, "restored_from_snapshot_id": restored_from}
    assert rig.send(agent, "session_created", **fields) == outcome
    rig, agent = OracleRig(), EventFactory()
    assert rig.send(agent, "session_created", **fields) == "applied"


@pytest.mark.parametrize("state", ["unknown", "Archived"])
@pytest.mark.parametrize("classes", [("personal",), ("financial", "personal"), ()])
def test_by_rules_2_a_refusal_without_a_session_is_kept_as_its_event_says(
    state: str, classes: tuple[DataClass, ...]
) -> None:
    for rules in (1, 2):
        rig, agent = OracleRig(position=position_under(rules)), EventFactory()
        if state == "Archived":
            rig.start(agent)
            rig.send(agent, "session_terminated", reason="closed")
            rig.advance(300_000, step_ms=5_000)
        expected = "refused session_archived" if state == "Archived" else "refused unknown_session"
        agent.seq += 1  # a gap is audited with the same classes
        assert rig.send(agent, "session_activity", {"data_classes": classes}) == expected
        for line in rig.last_audits():
            kept = retention_of(classes if rules == 2 else (), rig.at * 1_000)
            assert (line.retention_class, line.retain_until, line.personal_until) == kept
            assert line.compliance_tags == compliance_tags(classes if rules == 2 else ())
        assert len(rig.last_audits()) == (2 if (state, rules) == ("Archived", 1) else 1)
