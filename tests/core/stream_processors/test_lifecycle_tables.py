"""The tables of the machine against the auditor's own lists, which were written apart from them."""

from typing import get_args

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.limits import DEFAULTS, LIMIT_MAX, RANGES
from sessionary.schemas.types import Phase, SessionStateName
from sessionary.stream_processors.core.sequencing import EPOCH_EXEMPT, PRODUCERS_MAX, RANGES_MAX, epoch_refusal
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    COMPLETIONS,
    CONTENT,
    OWNER_ONLY,
    PHASES,
    PROCESSOR_ONLY,
    PROCESSOR_REASONS,
    TRANSITIONS,
    WORK,
)
from tests.auditor import wording
from tests.core.court import Court
from tests.support.scribe import Scribe

STATES: tuple[SessionStateName, ...] = ("Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived")


@pytest.mark.parametrize("state", STATES)
def test_what_may_come_in_a_state_is_what_the_auditor_lets_in(state: SessionStateName) -> None:
    moving = {row.event_type for row in TRANSITIONS if row.source == state and row.by != "processor"}
    assert ACCEPTED[state] | moving == {name for name in PAYLOADS if wording.legal(state, name)}
    assert ACCEPTED[state] & moving == set()


def test_the_steps_between_phases_are_the_auditors() -> None:
    for state in STATES:
        for phase in get_args(Phase):
            following = {after for before, after in PHASES.get(state, ()) if before == phase}
            assert following == set(wording.NEXT_PHASES.get((state, phase), ()))


def test_who_may_say_what_is_as_the_auditor_has_it() -> None:
    assert set(wording.PROCESSOR_TYPES) == PROCESSOR_ONLY
    assert PROCESSOR_REASONS == {"session_start_failed": "init_timeout", "session_terminated": "timeout_cleanup"}
    lifecycle = {name for name in PAYLOADS if name.startswith("session_")}
    assert lifecycle - {"session_activity", "session_created"} == OWNER_ONLY


def test_what_is_work_content_or_a_completion_is_as_the_auditor_has_it() -> None:
    assert set(wording.COMPLETIONS) == COMPLETIONS
    assert {"snapshot_created", "checkpoint_saved"} == CONTENT
    assert (wording.ACTIVE_TYPES - {"state_updated"}) | COMPLETIONS == WORK


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


def test_limits_are_the_auditors() -> None:
    assert DEFAULTS._asdict() == wording.DEFAULTS
    assert RANGES == wording.RANGES
    assert LIMIT_MAX == 10_000_000_000_000
    assert (PRODUCERS_MAX, RANGES_MAX) == (64, 16)


@pytest.mark.parametrize("name", PAYLOADS)
def test_an_epoch_is_looked_at_but_for_births_and_releases(name: str) -> None:
    exempt = name in ("session_created", "resources_released")
    assert (name in EPOCH_EXEMPT) is exempt
    assert epoch_refusal(2, 2, name) is None
    assert epoch_refusal(2, 1, name) == (None if exempt else "stale_epoch")
    assert epoch_refusal(2, 3, name) == (None if exempt else "future_epoch")


def test_a_session_is_born_as_the_table_says() -> None:
    court, agent = Court(), Scribe()
    assert court.says(agent, "session_created") == "applied"
    (born,) = (row for row in TRANSITIONS if row.source is None)
    assert (born.id, born.event_type, born.target, born.phase) == ("T01", "session_created", "Idle", "creating")
    row = court.row(agent)
    assert (row.state, row.phase, row.reason_code) == (born.target, born.phase, "created")


def test_a_row_that_only_a_clock_fires_names_no_reasons_of_clients() -> None:
    assert {row.id: row.reasons for row in TRANSITIONS if row.by == "processor"} == {"T06": (), "T08": (), "T14": ()}
