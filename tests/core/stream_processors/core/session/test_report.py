"""What each kind of audit record says beside what all of them have in common."""

from typing import Any

import pytest

from sessionary.schemas.records import AuditRecord
from sessionary.schemas.types import CleanupAction, Limits
from tests.core.oracle_rig import START_MS, OracleRig
from tests.support.event_factory import EventFactory


def new_audits(rig: OracleRig, kind: str) -> list[AuditRecord]:
    return [line for line in rig.last_audits() if line.kind == kind]


def only_fields(line: AuditRecord, *names: str) -> dict[str, Any]:
    return {name: getattr(line, name) for name in names}


def test_a_creation_comes_from_an_unknown_state() -> None:
    rig, agent = OracleRig(), EventFactory()
    assert rig.send(agent, "session_created") == "applied"
    (line,) = new_audits(rig, "transition")
    assert only_fields(line, "transition", "event_type", "from_state", "to_state", "reason_code", "reason") == {
        "transition": "T01",
        "event_type": "session_created",
        "from_state": "UNKNOWN",
        "to_state": "Idle",
        "reason_code": "created",
        "reason": "created",
    }


def test_a_transition_leaves_what_other_kinds_report_empty() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    (line,) = rig.last_audits()
    others = ("security", "cleanup_id", "cleanup_actions", "actions_done", "actions_failed", "bytes_released")
    assert tuple(getattr(line, name) for name in others) == (False, None, (), (), (), None)
    more = ("host_lost", "gap_first", "gap_last", "due_at", "fired_at")
    assert tuple(getattr(line, name) for name in more) == (False, None, None, None, None)


def test_a_rejection_has_its_reason_and_says_in_words_what_was_wrong() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_recovered") == "rejected illegal_transition"
    (line,) = new_audits(rig, "rejection")
    assert only_fields(line, "reason_code", "reason", "security", "from_state", "to_state") == {
        "reason_code": "illegal_transition",
        "reason": "session_recovered is not possible in Active",
        "security": False,
        "from_state": "Active",
        "to_state": "Active",
    }
    assert rig.send(agent, "session_paused", {"service_id": "another"}) == "rejected not_owner"
    (line,) = new_audits(rig, "rejection")
    assert (line.reason_code, line.security) == ("not_owner", True)
    ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
    assert (rejected.reason, rejected.security, rejected.detail) == ("not_owner", True, line.reason)


def test_a_gap_names_the_producer_and_the_missing_numbers() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_activity", {"producer_id": "other", "producer_seq": 4}) == "applied"
    (line,) = new_audits(rig, "gap")
    assert only_fields(line, "reason_code", "reason", "gap_first", "gap_last") == {
        "reason_code": "gap",
        "reason": "other jumped over 1 to 3",
        "gap_first": 1,
        "gap_last": 3,
    }


@pytest.mark.parametrize("host_lost", [False, True])
def test_a_release_lists_what_was_done_and_what_failed(host_lost: bool) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    cleanup_id = rig.row_of(agent).cleanups[0].cleanup_id
    actions = (CleanupAction("close_connection", True, 5), CleanupAction("clear_context", False, 6, "stuck"))
    released: dict[str, Any] = {
        "cleanup_id": cleanup_id,
        "actions": actions,
        "bytes_released": 77,
        "host_lost": host_lost,
    }
    assert rig.send(agent, "resources_released", **released) == "applied"
    (line,) = new_audits(rig, "release")
    assert only_fields(
        line, "reason_code", "reason", "cleanup_id", "actions_done", "actions_failed", "bytes_released", "host_lost"
    ) == {
        "reason_code": "host_lost" if host_lost else "released",
        "reason": f"clean-up {cleanup_id} confirmed",
        "cleanup_id": cleanup_id,
        "actions_done": ("close_connection",),
        "actions_failed": ("clear_context",),
        "bytes_released": 77,
        "host_lost": host_lost,
    }


def test_a_limit_outside_its_range_and_a_large_context_are_reported_in_words() -> None:
    rig, agent = OracleRig(), EventFactory()
    limits = Limits(model_ms=70_000, tool_ms=9_000, context_limit_bytes=50_000_000, override=True)
    assert rig.send(agent, "session_created", {"context_bytes": 50_000_001}, limits=limits) == "applied"
    (override,), (context,) = new_audits(rig, "limits_override"), new_audits(rig, "context_limit")
    assert (override.reason_code, override.reason) == (
        "limits_override",
        "model_ms 70000 is outside 30000 to 60000; tool_ms 9000 is outside 10000 to 30000",
    )
    assert (context.reason_code, context.reason, context.context_bytes) == (
        "context_limit",
        "context of 50000001 bytes is above the limit of 50000000",
        50_000_001,
    )


def test_a_record_that_cannot_be_read_is_reported_at_its_time_in_the_log() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.at += 1_500
    assert rig.append(agent.key.encoded(), b"no event at all").startswith("rejected ")
    (line,) = rig.last_audits()
    ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
    now_us = (START_MS + 1_500) * 1_000
    assert (line.occurred_at, line.appended_at, rejected.appended_at) == (now_us, now_us, now_us)
    assert (line.session_id, line.event_type, line.event_id, line.user_id) == (agent.key.session_id, "", None, None)


def test_a_record_has_its_event_its_place_and_its_batch() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    envelope = agent.envelope("session_paused")
    fields = {name: value for name, value in envelope._asdict().items() if name != "event_type"}
    assert rig.send(agent, "session_paused", fields) == "applied"
    (line,) = rig.last_audits()
    sent = ("event_id", "event_type", "user_id", "agent_id", "agent_role", "service_id", "actor", "producer_id")
    assert only_fields(line, *sent) == {name: getattr(envelope, name) for name in sent}
    assert (line.occurred_at, line.producer_seq) == (envelope.occurred_at, envelope.producer_seq)
    last = len(rig.log) - 1
    assert (line.source_partition, line.source_offset, line.source_n) == (0, last, 0)
    assert line.batch_number == rig.outcomes[-1].position.batch_number == len(rig.log)


def test_an_unknown_session_has_no_number_and_no_owner() -> None:
    rig, agent = OracleRig(), EventFactory()
    assert rig.send(agent, "session_activity") == "rejected unknown_session"
    (line,) = rig.last_audits()
    subject = ("from_state", "to_state", "audit_seq", "epoch", "version", "owner_service")
    assert tuple(getattr(line, name) for name in subject) == ("UNKNOWN", "UNKNOWN", 0, 0, 0, None)


def test_an_archived_session_has_no_number_and_no_owner() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for event_type in ("session_paused", "session_resumed"):
        assert rig.send(agent, event_type) == "applied"
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    assert rig.advance(300_000, step_ms=5_000) == ["T14 archived"]
    assert rig.send(agent, "session_activity") == "rejected session_archived"
    (line,) = rig.last_audits()
    subject = ("from_state", "to_state", "audit_seq", "epoch", "version", "owner_service")
    numbers = tuple(getattr(line, name) for name in subject)
    assert numbers == ("Archived", "Archived", 0, 0, 0, None)
