"""The machine's tables against the oracle's own lists, which were written independently."""

from typing import get_args

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.limits import DEFAULTS, LIMIT_MAX, RANGES
from sessionary.schemas.types import Phase, SessionStateName
from sessionary.stream_processors.core.sequencing import EPOCH_EXEMPT, PRODUCERS_MAX, RANGES_MAX, epoch_rejection
from sessionary.stream_processors.core.session.migration import MIGRATION_EVENTS
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    COMPLETIONS,
    CONTENT,
    OWNER_ONLY,
    PHASES,
    TRANSACTIONS,
    TRANSITIONS,
    WORK,
    CleanupPlan,
    clock_reasons,
    processor_only,
)
from tests.auditor import rules
from tests.auditor.migration_model import MIGRATION_TYPES
from tests.auditor.point_model import TXN_TYPES
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

STATES: tuple[SessionStateName, ...] = ("Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived")


@pytest.mark.parametrize("state", STATES)
def test_the_legal_types_of_a_state_are_the_oracles(state: SessionStateName) -> None:
    moving = {row.event_type for row in TRANSITIONS if row.source == state and row.by != "processor"}
    assert ACCEPTED[state] | moving == {name for name in PAYLOADS if rules.is_legal(state, name)}
    assert ACCEPTED[state] & moving == set()


def test_the_steps_between_phases_are_the_oracles() -> None:
    for state in STATES:
        for phase in (None, *get_args(Phase)):
            following = {after for before, after in PHASES.get(state, ()) if before == phase}
            assert following == set(rules.NEXT_PHASES.get((state, phase), ()))


def test_who_may_send_what_is_the_oracles() -> None:
    assert set(rules.PROCESSOR_TYPES) == processor_only(TRANSITIONS)
    reasons = {"session_start_failed": {"init_timeout"}, "session_terminated": {"timeout_cleanup", "user_idle"}}
    reasons["session_start_failed"] |= {"quota_timeout", "inactive"}  # which no event can say
    reasons |= {"session_resumed": {"expired"}}  # no event of this type says a reason
    assert clock_reasons(TRANSITIONS) == reasons
    lifecycle = {name for name in PAYLOADS if name.startswith("session_")}
    others = {"session_activity", "session_created", "session_taken_over"}
    of_migrations = {"session_migration_offered", "session_migration_loaded"}
    assert lifecycle - others - of_migrations == OWNER_ONLY
    assert MIGRATION_EVENTS == MIGRATION_TYPES


def test_work_content_and_completion_types_are_the_oracles() -> None:
    assert set(rules.COMPLETIONS) == COMPLETIONS
    assert {"snapshot_created", "checkpoint_saved"} == CONTENT
    assert set(TXN_TYPES) == TRANSACTIONS
    assert (rules.ACTIVE_TYPES - {"state_updated", *TRANSACTIONS}) | COMPLETIONS == WORK


def test_each_state_is_entered_at_one_phase() -> None:
    entered = {
        ("Idle", "creating"),
        ("Active", "processing"),
        ("Paused", None),
        ("Timeout", "cleaning"),
        ("Error", "logging"),
        ("Terminated", "releasing"),
        ("Archived", None),
    }
    assert {(row.target, row.phase) for row in TRANSITIONS} == entered


def test_limits_are_the_oracles() -> None:
    assert DEFAULTS._asdict() == rules.DEFAULTS
    assert RANGES == rules.RANGES
    assert LIMIT_MAX == 10_000_000_000_000
    assert (PRODUCERS_MAX, RANGES_MAX) == (64, 16)


@pytest.mark.parametrize("name", PAYLOADS)
def test_an_epoch_is_checked_except_for_creations_and_releases(name: str) -> None:
    exempt = name in ("session_created", "resources_released")
    assert (name in EPOCH_EXEMPT) is exempt
    assert epoch_rejection(2, 2, name) is None
    assert epoch_rejection(2, 1, name) == (None if exempt else "stale_epoch")
    assert epoch_rejection(2, 3, name) == (None if exempt else "future_epoch")


def test_a_session_is_created_as_the_table_says() -> None:
    rig, agent = OracleRig(), EventFactory()
    assert rig.send(agent, "session_created") == "applied"
    (creation,) = (row for row in TRANSITIONS if row.source is None)
    assert (creation.id, creation.event_type, creation.target, creation.phase) == (
        "T01",
        "session_created",
        "Idle",
        "creating",
    )
    row = rig.row_of(agent)
    assert (row.state, row.phase, row.reason_code) == (creation.target, creation.phase, "created")


def test_a_transition_of_the_processor_cannot_be_asked_for() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for row in TRANSITIONS:
        if row.by == "processor":
            with pytest.raises(NotImplementedError):
                row.guard(rig.row_of(agent), None, rig.at)


def test_a_transition_of_the_processor_has_no_client_reasons() -> None:
    assert {row.id: row.reasons for row in TRANSITIONS if row.by == "processor"} == {"T06": (), "T08": (), "T14": ()}


def test_a_clean_up_is_asked_for_again_unless_its_plan_says_once() -> None:
    again = CleanupPlan(("close",), {"late": ("free",)})
    assert again.actions_for("late", released=True) == ("free",)
    assert again.actions_for("other", released=True) == ("close",)
    once = again._replace(once=True)
    assert once.actions_for("late", released=True) == ()
    assert once.actions_for("late") == ("free",)
