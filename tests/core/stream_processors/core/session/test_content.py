"""Who may change a session's content, and what its snapshots must be."""

from typing import Any

import pytest

from sessionary.schemas.ids import content_hash, successor_id
from sessionary.schemas.retention import compliance_tags, retention_of
from sessionary.schemas.snapshots import stored_snapshot
from sessionary.schemas.types import Candidate, DataClass
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory, snapshot, snapshot_id

FORGED = snapshot("forged")._replace(content_hash=content_hash("another"))
DETACHED = snapshot("detached", parent="nowhere")


def active_rig() -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    return rig, agent


@pytest.mark.parametrize("event_type", ["state_updated", "snapshot_created"])
@pytest.mark.parametrize("state", ["Active", "Paused"])
def test_a_stranger_cannot_change_the_content(event_type: str, state: str) -> None:
    rig, agent = active_rig()
    if state == "Paused":
        assert rig.send(agent, "session_paused") == "applied"
    stranger = EventFactory(service="other", producer="q")
    stranger.head = agent.head
    before = rig.row_of(agent)
    assert rig.send(stranger, event_type) == "rejected not_member"
    after = rig.row_of(agent)
    bookkeeping: dict[str, Any] = {"audit_seq": 0, "producers": (), "rejections": ()}
    assert after._replace(**bookkeeping) == before._replace(**bookkeeping)
    (line,) = rig.last_audits()
    assert (line.kind, line.security, line.audit_seq) == ("rejection", True, before.audit_seq + 1)
    assert line.reason == "the content is billing's, not other's"
    assert [ledger.last_seq for ledger in after.producers if ledger.producer_id == "q"] == [1]


def test_a_stranger_may_still_report_work() -> None:
    rig, _ = active_rig()
    stranger = EventFactory(service="other", producer="q")
    for event_type in ("session_activity", "usage_recorded", "message_appended", "tool_call_started", "heartbeat"):
        assert rig.send(stranger, event_type) == "applied"


@pytest.mark.parametrize("said", [{}, {"choice": "X", "output_text": "I would take X.", "threshold": 0.85}])
def test_a_decision_of_free_text_alone_is_rejected(said: dict[str, Any]) -> None:
    rig, agent = active_rig()
    assert rig.send(agent, "llm_decision", candidates=(), chosen_tools=(), **said) == "rejected invalid_value"
    (line,) = rig.last_audits()
    assert line.reason.startswith("a decision names neither candidates nor chosen_tools: a model's text is a message")
    assert rig.send(agent, "llm_decision", candidates=(), chosen_tools=("order",), **said) == "applied"
    assert rig.send(agent, "llm_decision", candidates=(Candidate("X", 0.9),), chosen_tools=(), **said) == "applied"


@pytest.mark.parametrize(("wrong", "reason"), [(FORGED, "hash_mismatch"), (DETACHED, "broken_chain")])
@pytest.mark.parametrize("event_type", ["snapshot_created", "session_paused"])
def test_a_wrong_snapshot_is_rejected(event_type: str, wrong: Any, reason: str) -> None:
    rig, agent = active_rig()
    before = rig.row_of(agent)
    assert rig.send(agent, event_type, snapshot=wrong) == f"rejected {reason}"
    after = rig.row_of(agent)
    assert (after.snapshot, after.state, after.last_event_at) == (before.snapshot, "Active", before.last_event_at)
    assert rig.send(agent, event_type, snapshot=snapshot("right")) == "applied"
    assert rig.send(agent, "snapshot_created", snapshot=snapshot("next", '{"a": 1}')) == "applied"
    assert rig.row_of(agent).snapshot.parent_snapshot_id == snapshot_id("right")


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        (FORGED, f"the hash of snapshot {FORGED.snapshot_id} is not that of its content"),
        (
            DETACHED,
            f"snapshot {DETACHED.snapshot_id} follows {DETACHED.parent_snapshot_id}, but the head of the chain is "
            f"{snapshot_id('first')}",
        ),
    ],
)
def test_a_session_ends_even_if_its_last_snapshot_is_wrong(wrong: Any, detail: str) -> None:
    rig, agent = active_rig()
    assert rig.send(agent, "session_terminated", snapshot=wrong, message="done") == "applied"
    row = rig.row_of(agent)
    assert (row.state, row.snapshot.snapshot_id) == ("Terminated", snapshot_id("first"))
    assert rig.last_audits()[0].reason == f"done; its snapshot is left out: {detail}"


def test_a_session_ends_with_its_last_snapshot() -> None:
    rig, agent = active_rig()
    assert rig.send(agent, "session_terminated", snapshot=snapshot("last"), message="done") == "applied"
    assert rig.row_of(agent).snapshot.snapshot_id == snapshot_id("last")
    assert rig.last_audits()[0].reason == "done"


@pytest.mark.parametrize(
    ("first", "restored_from", "outcome"),
    [
        (snapshot("first"), None, "applied"),
        (snapshot("first"), snapshot_id("older"), "applied"),
        (snapshot("first", parent="older"), snapshot_id("older"), "applied"),
        (snapshot("first", parent="older"), None, "rejected broken_chain"),
        (snapshot("first", parent="older"), snapshot_id("another"), "rejected broken_chain"),
        (FORGED, None, "rejected hash_mismatch"),
    ],
)
def test_a_first_snapshot_follows_the_one_that_was_restored_or_none(
    first: Any, restored_from: str | None, outcome: str
) -> None:
    rig, agent = OracleRig(), EventFactory()
    fields = {"snapshot": first, "restored_from_snapshot_id": restored_from}
    assert rig.send(agent, "session_created", **fields) == outcome


@pytest.mark.parametrize("state", ["unknown", "Archived"])
@pytest.mark.parametrize("classes", [("personal",), ("financial", "personal"), ()])
def test_a_rejection_without_a_session_is_kept_as_its_event_says(state: str, classes: tuple[DataClass, ...]) -> None:
    rig, agent = OracleRig(), EventFactory()
    if state == "Archived":
        rig.start(agent)
        rig.send(agent, "session_terminated", reason="closed")
        rig.advance(300_000, step_ms=5_000)
    expected = "rejected session_archived" if state == "Archived" else "rejected unknown_session"
    assert rig.send(agent, "session_activity", {"data_classes": classes}) == expected
    (line,) = rig.last_audits()
    kept = retention_of(classes, rig.at * 1_000)
    assert (line.retention_class, line.retain_until, line.personal_until) == kept
    assert line.compliance_tags == compliance_tags(classes)


OTHERS = EventFactory("other").key.session_id


@pytest.mark.parametrize(
    ("name", "text", "parent", "outcome"),
    [
        ("thread-42", "thread-42", None, "applied"),
        ("thread-42", None, None, "applied"),
        ("thread-42", "thread-43", None, "rejected invalid_value"),
        ("thread-42", "thread-43", OTHERS, "rejected invalid_value"),
        ("thread-42", "", None, "rejected invalid_value"),
        ("successor", "other", OTHERS, "applied"),
        ("successor", "other", None, "rejected invalid_value"),
    ],
)
def test_no_event_gives_a_session_the_text_of_another_ones_id(
    name: str, text: str | None, parent: str | None, outcome: str
) -> None:
    rig, agent = OracleRig(), EventFactory(name)
    if name == "successor":
        agent.key = agent.key._replace(session_id=successor_id("acme", OTHERS))
    assert rig.send(agent, "session_created", external_id=text, parent_session_id=parent) == outcome
    if outcome != "applied":
        assert agent.key.encoded() not in rig.fold.rows


NO_STATES = ["[1]", "3", "null", '"x"', "{x}", "", '{"a":NaN}']


@pytest.mark.parametrize("text", NO_STATES)
@pytest.mark.parametrize("event_type", ["state_updated", "txn_committed", "session_rolled_back"])
def test_content_that_is_no_json_object_is_rejected_and_kept(event_type: str, text: str) -> None:
    rig, agent = active_rig()
    if event_type == "txn_committed":
        assert rig.send(agent, "txn_begun", transaction_id="t") == "applied"
    fields: dict[str, Any] = {"transaction_id": "t"} if event_type == "txn_committed" else {}
    if event_type == "session_rolled_back":  # of this one the processor knows only the id
        for number in range(20):
            assert rig.send(agent, "snapshot_created", snapshot=snapshot(f"s{number}")) == "applied"
    before = rig.row_of(agent)
    sent = agent.event_bytes(event_type, state_json=text, **fields)
    assert rig.append(agent.key.encoded(), sent) == "rejected invalid_value"
    after = rig.row_of(agent)
    kept = after.state_json, after.version, after.snapshot, after.transactions
    assert kept == (before.state_json, before.version, before.snapshot, before.transactions)
    (line,) = rig.last_audits()
    assert line.reason == "state_json is not a JSON object, such as {}"
    ((_, letter),) = rig.outcomes[-1].records_on("rejected")
    assert letter.value == sent
    assert rig.send(agent, event_type, state_json="{}", **fields) == "applied"
    assert rig.row_of(agent).state_json == "{}"


@pytest.mark.parametrize("text", NO_STATES)
@pytest.mark.parametrize("event_type", ["session_created", "snapshot_created", "session_paused"])
def test_a_snapshot_whose_state_is_no_json_object_is_rejected(event_type: str, text: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    if event_type != "session_created":
        rig.start(agent)
    assert rig.send(agent, event_type, snapshot=snapshot("next", text)) == "rejected invalid_value"
    detail = f"the state of snapshot {snapshot_id('next')} is not a JSON object, such as {{}}"
    assert rig.last_audits()[0].reason == detail
    assert rig.send(agent, event_type, snapshot=snapshot("next", "{}")) == "applied"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_session_ends_without_a_snapshot_whose_state_is_no_json_object(compression: str) -> None:
    rig, agent = active_rig()
    bad = snapshot("last", f'["{"x" * 5_000 * (compression == "gzip")}"]', "first")
    stored = stored_snapshot(bad, None)
    assert stored.compression == compression
    assert rig.send(agent, "session_terminated", snapshot=stored, message="done") == "applied"
    assert rig.row_of(agent).snapshot.snapshot_id == snapshot_id("first")
    assert (rig.last_audits()[0].reason or "").endswith(f"{bad.snapshot_id} is not a JSON object, such as {{}}")


def test_a_delta_that_leaves_no_json_object_is_rejected() -> None:
    rig, agent = active_rig()
    patch = '[{"op":"replace","path":"/state","value":[1]}]'
    whole = snapshot("next", "[1]", "first")
    assert rig.send(agent, "snapshot_created", snapshot=whole._replace(encoding="delta", state_json=patch)) == (
        "rejected invalid_value"
    )
    assert rig.row_of(agent).snapshot.snapshot_id == snapshot_id("first")
