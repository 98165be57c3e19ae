"""What an event says of itself."""

from typing import Any

import pytest

from sessionary.schemas.types import ErrorInfo, Rejection
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

LONG_ID = "x" * 1_200_000


def active_rig() -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    return rig, agent


@pytest.mark.parametrize(
    ("event_type", "fields", "detail"),
    [
        ("usage_recorded", {"tokens_in": -5}, "tokens_in is -5; it must be from 0 to 1000000000000000"),
        ("usage_recorded", {"model_cost_usd_nanos": -1}, "model_cost_usd_nanos is -1; it must be from 0 to 10"),
        ("session_activity", {"kind": "k" * 257}, "kind has 257 characters, more than 256"),
        ("session_terminated", {"message": "m" * 16_385}, "message has 16385 characters, more than 16384"),
        (
            "session_errored",
            {"error": ErrorInfo("retryable", LONG_ID, "m")},
            "error.code has 1200000 characters, more than 256",
        ),
    ],
)
def test_a_value_out_of_bounds_is_rejected(event_type: str, fields: dict[str, Any], detail: str) -> None:
    rig, agent = active_rig()
    before = rig.row_of(agent)
    assert rig.send(agent, event_type, **fields) == "rejected invalid_value"
    after = rig.row_of(agent)
    assert (after.state, after.last_event_at, after.state_json) == (
        before.state,
        before.last_event_at,
        before.state_json,
    )
    assert rig.last_audits()[0].reason.startswith(detail)
    # The ledger moved, so the rejection is no gap, and its repetition is known.
    assert [ledger.last_seq for ledger in after.producers] == [agent.seq]
    assert [rejection.reason for rejection in after.rejections] == ["invalid_value"]
    assert rig.append(rig.log[-1].key, rig.log[-1].value) == "duplicate"


@pytest.mark.parametrize("name", ["event_id", "user_id", "agent_role", "actor", "service_id", "tenant_id", "run_id"])
def test_nothing_repeats_a_long_text_of_an_envelope(name: str) -> None:
    rig, agent = active_rig()
    before = rig.row_of(agent)
    assert rig.send(agent, "session_activity", {name: LONG_ID}) == "rejected invalid_value"
    kept = Rejection(len(rig.log) - 1, "invalid_value", "")
    assert rig.row_of(agent) == before._replace(audit_seq=before.audit_seq + 1, rejections=(kept,))
    (line,) = rig.last_audits()
    assert line.reason == f"{name} has 1200000 characters, more than 256"
    ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
    assert rejected.value == rig.log[-1].value
    assert max(len(text) for text in (*line, *rejected) if isinstance(text, str)) < 100


def test_the_values_of_a_first_event_are_judged_before_the_session_exists() -> None:
    rig, agent = OracleRig(), EventFactory()
    assert rig.send(agent, "session_created", parent_session_id=LONG_ID) == "rejected invalid_value"
    assert rig.fold.rows == {}


def test_a_sequence_number_out_of_bounds_does_not_move_the_ledger() -> None:
    rig, agent = active_rig()
    before = rig.row_of(agent).producers
    assert rig.send(agent, "session_activity", {"producer_seq": 10**15 + 1}) == "rejected invalid_value"
    assert rig.row_of(agent).producers == before
    assert rig.send(agent, "session_activity", {"producer_seq": 10**15}) == "applied"


def test_a_heartbeat_out_of_bounds_is_no_sign_of_life() -> None:
    rig, agent = active_rig()
    rig.at += 1_000
    before = rig.row_of(agent)
    assert rig.send(agent, "heartbeat", last_seq=-1) == "rejected invalid_value"
    assert rig.row_of(agent) == before
    assert rig.last_audits() == []
