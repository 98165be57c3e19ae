"""A session moves to another service: who says what, and what becomes of session and owner.

Each record is judged by the fold and by the oracle, which must agree.
"""

from typing import Any

import pytest

from sessionary.schemas.ids import content_hash
from sessionary.schemas.records import MigrationRequest, Position
from sessionary.schemas.types import Limits, Migration
from sessionary.stream_processors.core.session.migration import open_migration
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.support.event_factory import EventFactory

TARGET = "shipping"


class Stage:
    """A session of the service billing, and a process of the service shipping."""

    def __init__(self, position: Position | None = None, **limits: int) -> None:
        self.rig, self.owner = OracleRig(position=position or FIRST_POSITION), EventFactory()
        self.rig.start(self.owner, limits=Limits(**limits, override=bool(limits)))
        self.target = EventFactory(service=TARGET, producer="q")

    def send(self, agent: EventFactory, event_type: str, **fields: Any) -> str:
        row = self.rig.row_of(self.owner)
        agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
        return self.rig.send(agent, f"session_{event_type}", **fields)

    def offer(self, **fields: Any) -> str:
        return self.send(self.owner, "migration_offered", **{"target_service": TARGET, **fields})

    def prepare(self) -> None:
        assert self.offer() == "applied"
        assert self.send(self.target, "migration_loaded") == "applied"

    def accept(self, **fields: Any) -> str:
        row = self.rig.row_of(self.owner)
        same = {"version": row.version, "content_hash": content_hash(row.state_json)}
        names = {"migration_id": "m1", "target_service": TARGET}
        return self.send(self.target, "migration_accepted", **{**names, **same, **fields})

    @property
    def migration(self) -> Migration | None:
        """The session's migration, if it is open."""
        return open_migration(self.rig.row_of(self.owner))

    def requests(self) -> list[MigrationRequest]:
        return [record for _, record in self.rig.outcomes[-1].records_on("migrations")]

    def lines(self) -> list[tuple[str, str]]:
        """Return the last audit lines, as transition or step and reason code."""
        return [(line.transition or line.migration_step, line.reason_code) for line in self.rig.last_audits()]


def test_a_session_moves_in_four_steps() -> None:
    stage = Stage()
    assert stage.offer() == "applied"
    assert stage.lines() == [("offered", "offered")]
    (asked,) = stage.requests()
    assert (asked.service_id, asked.from_service, asked.step, asked.epoch) == (TARGET, "billing", "offered", 1)
    assert stage.rig.send(stage.owner, "session_activity") == "applied"  # the source still works
    assert stage.send(stage.target, "migration_loaded") == "applied"
    assert stage.lines() == [("T04", "migration"), ("prepared", "prepared")]
    assert [request.step for request in stage.requests()] == ["prepared"]
    assert stage.rig.send(stage.owner, "session_activity") == "rejected illegal_transition"
    assert stage.accept() == "applied"
    assert stage.lines() == [("completed", "migrated"), ("T05", "migrated")]
    row = stage.rig.row_of(stage.owner)
    assert (row.state, row.owner_service, row.holder, row.epoch) == ("Active", TARGET, "q", 2)
    assert row.migration is not None
    assert (row.migration.step, stage.migration) == ("completed", None)
    line = stage.rig.last_audits()[0]
    assert (line.from_service, line.to_service, line.migration_id, line.epoch) == ("billing", TARGET, "m1", 2)


def test_nothing_of_the_former_owner_is_accepted_afterwards() -> None:
    stage = Stage()
    stage.prepare()
    assert stage.accept() == "applied"
    stale = stage.owner.event_bytes("session_activity", {"epoch": 1})
    assert stage.rig.append(stage.owner.key.encoded(), stale) == "rejected stale_epoch"
    assert stage.send(stage.owner, "terminated") == "rejected not_owner"
    assert stage.rig.send(stage.owner, "state_updated", base_version=1, new_version=2) == "rejected not_member"
    assert stage.rig.send(stage.target, "state_updated", base_version=1, new_version=2) == "applied"


def test_the_former_owner_is_asked_to_clean_up_and_its_answer_is_taken() -> None:
    stage = Stage()
    stage.prepare()
    assert stage.accept() == "applied"
    ((_, request),) = stage.rig.outcomes[-1].records_on("cleanup")
    assert (request.service_id, request.reason_code, request.epoch) == ("billing", "migrated", 1)
    assert request.actions == ("memory_cleanup", "close_connection", "release_context")
    assert stage.rig.send(stage.owner, "resources_released", cleanup_id=request.cleanup_id) == "applied"
    assert stage.rig.row_of(stage.owner).state == "Active"


def test_a_target_with_another_state_looks_again_and_the_third_time_ends_it() -> None:
    stage = Stage()
    stage.prepare()
    assert stage.accept(version=7) == "rejected migration_moved"
    assert stage.accept(content_hash="0" * 64) == "rejected migration_moved"
    assert stage.migration is not None
    assert stage.migration.mismatches == 2
    assert stage.accept(version=0) == "rejected migration_moved"
    assert stage.lines() == [("aborted", "state_differs"), ("T05", "migration_aborted"), (None, "migration_moved")]
    row = stage.rig.row_of(stage.owner)
    assert (row.state, row.owner_service, row.epoch) == ("Active", "billing", 1)
    assert stage.accept() == "rejected unknown_migration"


def test_the_hold_has_a_snapshot_of_the_committed_state() -> None:
    stage = Stage()
    sent = stage.rig.send(stage.owner, "state_updated", base_version=1, new_version=2, state_json='{"cart": 3}')
    assert sent == "applied"
    first = stage.rig.row_of(stage.owner).snapshot
    stage.prepare()
    taken = stage.rig.row_of(stage.owner).snapshot
    assert (taken.parent_snapshot_id, taken.state_json) == (first.snapshot_id, '{"cart": 3}')
    assert taken.content_hash == content_hash('{"cart": 3}')


def test_an_unchanged_state_needs_no_new_snapshot() -> None:
    stage = Stage()
    first = stage.rig.row_of(stage.owner).snapshot
    stage.prepare()
    assert stage.rig.row_of(stage.owner).snapshot == first


@pytest.mark.parametrize("is_prepared", [False, True])
def test_time_ends_a_migration_and_its_reason_tells_how_far_it_was(is_prepared: bool) -> None:
    stage = Stage()
    assert stage.offer(ttl_ms=5_000) == "applied"
    if is_prepared:
        assert stage.send(stage.target, "migration_loaded") == "applied"
    assert stage.rig.advance(4_999) == []
    reported = ["None expired", "T05 migration_aborted"] if is_prepared else ["None target_silent"]
    assert stage.rig.advance(1) == reported
    row = stage.rig.row_of(stage.owner)
    assert (row.state, row.epoch, stage.migration) == ("Active", 1, None)
    assert row.migration is not None
    assert row.migration.reason_code == ("expired" if is_prepared else "target_silent")
    assert stage.accept() == "rejected unknown_migration"
    assert stage.rig.send(stage.owner, "session_activity") == "applied"


def test_a_held_session_has_as_much_time_left_as_before() -> None:
    stage = Stage(max_duration_ms=100_000)
    stage.rig.advance(40_000)
    stage.prepare()
    assert stage.rig.row_of(stage.owner).max_due_at == 60_000
    stage.rig.advance(10_000)
    assert stage.send(stage.owner, "migration_aborted", migration_id="m1") == "applied"
    assert stage.rig.row_of(stage.owner).max_due_at == stage.rig.at + 60_000


def test_a_session_in_timeout_stays_there_until_it_is_accepted() -> None:
    stage = Stage()
    assert stage.rig.advance(60_000) == ["T06 inactive"]
    stage.prepare()
    assert stage.rig.row_of(stage.owner).state == "Timeout"
    assert stage.send(stage.owner, "resumed") == "rejected migration_open"
    assert stage.accept() == "applied"
    assert stage.lines() == [("completed", "migrated"), ("T07", "migrated")]
    row = stage.rig.row_of(stage.owner)
    assert (row.state, row.owner_service, row.epoch) == ("Active", TARGET, 2)


def test_grace_goes_on_while_a_session_in_timeout_is_prepared() -> None:
    stage = Stage(grace_ms=20_000)
    assert stage.rig.advance(60_000) == ["T06 inactive"]
    stage.prepare()
    assert stage.rig.advance(20_000) == ["T08 timeout_cleanup", "None session_ended"]
    assert stage.accept() == "rejected unknown_migration"


def test_a_paused_session_moves_and_stays_paused() -> None:
    stage = Stage()
    assert stage.send(stage.owner, "paused", kind="review") == "applied"
    stage.prepare()
    assert stage.lines() == [("prepared", "prepared")]
    assert stage.send(stage.owner, "resumed") == "rejected migration_open"
    assert stage.accept() == "applied"
    row = stage.rig.row_of(stage.owner)
    assert (row.state, row.reason_code, row.owner_service, row.epoch) == ("Paused", "review", TARGET, 2)
    assert stage.send(stage.target, "resumed") == "applied"


def test_a_question_that_expires_while_its_session_is_prepared_ends_the_migration() -> None:
    stage = Stage()
    asked = {"kind": "review", "question": "may I?", "answer_ms": 5_000}
    assert stage.send(stage.owner, "paused", **asked) == "applied"
    stage.prepare()
    assert stage.rig.advance(5_000) == ["T05 expired", "None session_resumed"]
    assert stage.rig.row_of(stage.owner).state == "Active"
    assert stage.accept() == "rejected unknown_migration"


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_take_over_ends_a_migration(is_prepared: bool) -> None:
    stage = Stage()
    assert stage.offer() == "applied"
    if is_prepared:
        assert stage.send(stage.target, "migration_loaded") == "applied"
    assert stage.send(stage.owner, "taken_over") == "applied"
    last = [("T05", "migration_aborted")] if is_prepared else []
    assert stage.lines() == [(None, "taken_over"), ("aborted", "taken_over"), *last]
    assert stage.rig.row_of(stage.owner).state == "Active"
    assert stage.migration is None


def test_the_end_of_the_session_ends_a_migration() -> None:
    stage = Stage()
    stage.prepare()
    assert stage.send(stage.owner, "terminated", reason="cancelled") == "applied"
    assert stage.lines() == [("T09", "cancelled"), ("aborted", "session_ended")]


def test_who_may_send_which_step() -> None:
    stage = Stage()
    stranger = EventFactory(service="stranger", producer="x")
    assert stage.send(stranger, "migration_offered") == "rejected not_owner"
    assert stage.rig.last_audits()[0].security
    assert stage.send(stranger, "migration_offered", as_operator=True) == "applied"
    assert stage.send(stranger, "migration_loaded") == "rejected not_owner"
    assert stage.send(stage.owner, "migration_loaded") == "rejected not_owner"
    assert stage.send(stranger, "migration_aborted", migration_id="m1") == "rejected not_owner"
    assert stage.send(stage.target, "migration_aborted", migration_id="m1", reason="full") == "applied"
    assert stage.lines() == [("aborted", "declined")]
    assert stage.send(stage.owner, "migration_completed") == "rejected processor_only"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"target_service": "billing"}, "invalid_value"),
        ({"target_service": "no name"}, "invalid_value"),
        ({"migration_id": ""}, "invalid_value"),
        ({"ttl_ms": 999}, "invalid_value"),
        ({"ttl_ms": 86_400_001}, "invalid_value"),
    ],
)
def test_what_cannot_be_offered(fields: dict[str, object], reason: str) -> None:
    assert Stage().offer(**fields) == f"rejected {reason}"


def test_a_session_has_one_migration_at_a_time() -> None:
    stage = Stage()
    assert stage.offer() == "applied"
    assert stage.offer(migration_id="m2") == "rejected migration_open"
    assert stage.send(stage.target, "migration_loaded", migration_id="m2") == "rejected unknown_migration"
    assert stage.accept() == "rejected illegal_transition"  # not prepared yet
    assert stage.send(stage.target, "migration_loaded") == "applied"
    assert stage.send(stage.target, "migration_loaded") == "rejected illegal_transition"


def test_an_idle_session_cannot_be_offered() -> None:
    stage = Stage()
    other = EventFactory("t")
    assert stage.rig.send(other, "session_created") == "applied"
    assert stage.rig.send(other, "session_migration_offered") == "rejected illegal_transition"


def test_an_offer_keeps_no_silent_session_alive() -> None:
    stage = Stage()
    stage.rig.advance(50_000)
    assert stage.offer() == "applied"
    assert stage.rig.advance(10_000) == ["T06 inactive"]


def test_an_operator_may_take_over_although_the_owner_is_alive() -> None:
    stage = Stage()
    assert stage.send(stage.target, "taken_over") == "rejected owner_alive"
    assert stage.send(stage.target, "taken_over", as_operator=True, reason="it sends nonsense") == "applied"
    assert stage.rig.row_of(stage.owner).owner_service == TARGET
    (record,) = stage.rig.last_audits()
    assert record.reason.endswith(": it sends nonsense")


@pytest.mark.parametrize("state", ["Idle", "Active", "Paused", "Timeout", "Error"])
def test_an_operator_may_claim_in_each_state_but_the_last_two(state: str) -> None:
    rig, owner = OracleRig(), EventFactory()
    if state == "Idle":
        assert rig.send(owner, "session_created") == "applied"
    else:
        rig.start(owner)
    if state == "Timeout":
        rig.advance(60_000)
        assert rig.send(owner, "heartbeat") == "applied"  # it is alive
    elif state in (ways := {"Paused": "session_paused", "Error": "session_errored"}):
        assert rig.send(owner, ways[state]) == "applied"
    other = EventFactory(service=TARGET, producer="q")
    assert rig.send(other, "session_taken_over") == "rejected owner_alive"
    assert rig.send(other, "session_taken_over", as_operator=True) == "applied"
    row = rig.row_of(owner)
    assert (row.state, row.owner_service, row.epoch) == (state, TARGET, 2)


def test_a_session_whose_snapshot_would_not_fit_into_its_row_is_not_held() -> None:
    position = FIRST_POSITION
    stage = Stage(position._replace(rules=position.rules._replace(row_bytes_max=200_000)))
    content = '{"a": "' + "x" * 120_000 + '"}'
    changed: dict[str, Any] = {"base_version": 1, "new_version": 2, "state_json": content}
    assert stage.rig.send(stage.owner, "state_updated", **changed) == "applied"
    assert stage.offer() == "applied"
    with pytest.raises(AssertionError, match="rejected state_too_large"):  # the oracle knows no sizes
        stage.send(stage.target, "migration_loaded")
    row = stage.rig.row_of(stage.owner)
    assert (row.state, stage.migration and stage.migration.step) == ("Active", "offered")


@pytest.mark.parametrize("event_type", ["snapshot_created", "checkpoint_saved"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_prepared_session_takes_no_content(event_type: str, is_paused: bool) -> None:
    stage = Stage()
    if is_paused:
        assert stage.send(stage.owner, "paused") == "applied"
    stage.prepare()
    head = stage.rig.row_of(stage.owner).snapshot
    assert stage.rig.send(stage.owner, event_type) == "rejected illegal_transition"
    assert stage.accept() == "applied"
    assert stage.rig.row_of(stage.owner).snapshot == head, "it is what the target has read"


def test_the_hold_limit_does_not_end_a_session_that_is_held_for_its_migration() -> None:
    stage = Stage(hold_ms=10_000)
    assert stage.offer(ttl_ms=60_000) == "applied"
    assert stage.send(stage.target, "migration_loaded") == "applied"
    stage.rig.advance(60_000)
    row = stage.rig.row_of(stage.owner)
    assert (row.state, row.migration and row.migration.reason_code) == ("Active", "expired")


def test_a_session_whose_maximum_duration_is_over_cannot_be_offered() -> None:
    stage = Stage(max_duration_ms=60_000)
    stage.rig.advance(60_000)
    assert stage.rig.row_of(stage.owner).state == "Timeout"
    assert stage.offer() == "rejected max_duration_exceeded"


def test_the_id_of_a_migration_is_not_used_twice() -> None:
    stage = Stage()
    stage.prepare()
    assert stage.send(stage.owner, "migration_aborted", migration_id="m1") == "applied"
    assert stage.offer() == "rejected invalid_value"
    assert stage.offer(migration_id="m2") == "applied"
