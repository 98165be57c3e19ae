"""The migration of a session to another service: its steps, their changes and their records.

    offered ──(the target has loaded it)──▶ prepared ──(the target has the same state)──▶ completed
       │                                       │
       └───────────────▶ aborted ◀─────────────┘   time is over, called off, three other states

A session that was Active is held while it is prepared. One in Paused or Timeout stays there until
its new owner takes it: a Paused one then is as before, one in Timeout is resumed.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import Event
from sessionary.schemas.events import (
    SessionMigrationAborted,
    SessionMigrationAccepted,
    SessionMigrationLoaded,
    SessionMigrationOffered,
)
from sessionary.schemas.ids import content_hash, derived_id, valid_name
from sessionary.schemas.limits import MIGRATION_TTL_MS_MAX, MIGRATION_TTL_MS_MIN
from sessionary.schemas.records import AuditRecord, CleanupRequest, MigrationRequest, SessionState
from sessionary.schemas.types import Cleanup, Migration, SessionStateName
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.model import CONTENT
from sessionary.stream_processors.core.sequencing import hash_producer
from sessionary.stream_processors.core.session.clocks import continue_duration, stop_duration
from sessionary.stream_processors.core.session.facts import (
    AbortReason,
    MigrationAborted,
    MigrationCompleted,
    MigrationMoved,
    SessionFact,
    StateDiffered,
    TakenOver,
    Transitioned,
)
from sessionary.stream_processors.core.session.people import is_by_operator
from sessionary.stream_processors.core.session.transitions import Transition, object_to_duration
from sessionary.stream_processors.core.trail import at_due_time, next_number

MISMATCHES_MAX: Final = 3
CLEANUP_REASON: Final = "migrated"
# The former owner is asked to release these; the session itself continues elsewhere.
CLEANUP_ACTIONS: Final = ("memory_cleanup", "close_connection", "release_context")
OFFER_STATES: Final[frozenset[SessionStateName]] = frozenset({"Active", "Paused", "Timeout"})
MIGRATION_EVENTS: Final = frozenset(
    {
        "session_migration_offered",
        "session_migration_loaded",
        "session_migration_accepted",
        "session_migration_completed",
        "session_migration_aborted",
    }
)


def _forget_release(state: SessionState, now_ms: int) -> SessionState:
    return state._replace(released_at=None)


# The fact that completes a migration has raised the epoch already; one that is aborted raises none.
HELD: Final = Transition("T04", "Active", "session_migration_loaded", "Paused", None, "processor", effect=stop_duration)
LET_GO: Final = Transition(
    "T05", "Paused", "session_migration_aborted", "Active", "processing", "processor", effect=continue_duration
)
TAKEN: Final[Mapping[SessionStateName, Transition]] = MappingProxyType(
    {
        "Active": Transition(
            "T05",
            "Paused",
            "session_migration_accepted",
            "Active",
            "processing",
            "processor",
            effect=continue_duration,
        ),
        "Timeout": Transition(
            "T07",
            "Timeout",
            "session_migration_accepted",
            "Active",
            "processing",
            "processor",
            effect=_forget_release,
        ),
    }
)
"""By the session's state before it was prepared; a session that was Paused makes no transition."""


CLEANUPS_KEPT = 8


def change_owner(row: SessionState, service_id: str, agent_id: str, producer_id: str, at_ms: int) -> SessionState:
    """Return the row as its next epoch begins: owned by a service, held by one of its clients.

    The client is a sign of life at `at_ms` (log time), so the clocks of activity begin again. A
    turn of another process is over.
    """
    return row._replace(
        epoch=row.epoch + 1,
        owner_service=service_id,
        agent_id=agent_id,
        holder=producer_id,
        holder_epoch=row.epoch + 1,
        owner_heard_at=at_ms,
        last_event_at=at_ms,
        last_work_at=at_ms,
        turn_by=row.turn_by if row.turn_by == hash_producer(producer_id) else 0,
    )


def add_cleanup(
    row: SessionState, at_ms: int, service_id: str, epoch: int, reason_code: str, actions: Sequence[str]
) -> SessionState:
    """Return the row with one more clean-up, which `service_id` is asked for.

    Its id follows from the row's last audit number.
    """
    cleanup_id = derived_id(row.tenant_id, row.session_id, row.audit_seq)
    asked = service_id, epoch, reason_code, tuple(actions)
    cleanup = Cleanup(cleanup_id, at_ms, False, *asked)  # noqa: FBT003 - the row's third field: not released yet
    return row._replace(cleanups=(*row.cleanups, cleanup)[-CLEANUPS_KEPT:])


def move_migration(row: SessionState, fact: MigrationMoved) -> SessionState:
    """Enter a step of the migration. It is no sign of the agent's life: it restarts no clock."""
    return next_number(row._replace(migration=fact.migration))


def held_migration(row: SessionState) -> Migration | None:
    """Return the migration of a session that an operator has paused: no end of it resumes it."""
    migration = row.migration
    if migration is None or not migration.holds_session:
        return migration
    return migration._replace(from_state="Paused")


def count_difference(row: SessionState, fact: StateDiffered) -> SessionState:
    """Count that the target had another state."""
    return row._replace(migration=fact.migration)


def complete_migration(row: SessionState, fact: MigrationCompleted) -> SessionState:
    """Let the target own the session, and the sender hold it; the former owner is to clean up."""
    target = fact.migration.target_service
    owned = change_owner(row, target, fact.agent_id, fact.producer_id, fact.at_ms)
    completed = next_number(owned._replace(migration=fact.migration._replace(step="completed")))
    return add_cleanup(completed, fact.at_ms, row.owner_service, row.epoch, CLEANUP_REASON, CLEANUP_ACTIONS)


def abort_migration(row: SessionState, fact: MigrationAborted) -> SessionState:
    """End the migration; the row says why until there is another one."""
    ended = fact.migration._replace(step="aborted", reason_code=fact.reason_code)
    return next_number(row._replace(migration=ended))


ReportedFact = MigrationMoved | MigrationCompleted | MigrationAborted


def migration_records(
    record: AuditRecord, row: SessionState, after: SessionState, fact: ReportedFact
) -> list[AuditRecord | CleanupRequest | MigrationRequest]:
    """Return the records of a fact. `record` has what all audit records of the session have."""
    migration = fact.migration
    record = record._replace(
        migration_id=migration.migration_id,
        from_service=row.owner_service,
        to_service=migration.target_service,
        user_id=after.user_id if record.event_id is None else record.user_id,
    )
    if isinstance(fact, MigrationMoved):
        reported = _reported(record, migration.step, migration.step, fact.reason)
        return [reported, migration_request(after, migration, fact.at_ms)]
    if isinstance(fact, MigrationAborted):
        reported = _reported(record, "aborted", fact.reason_code, fact.reason)
        return [reported if fact.due_ms is None else at_due_time(reported, fact.due_ms, fact.at_ms)]
    reason = f"{migration.target_service} owns the session, after {row.owner_service}"
    cleanup = cleanup_request(after, after.cleanups[-1], reason)
    reported = _reported(record, "completed", CLEANUP_REASON, reason)
    return [reported._replace(cleanup_id=cleanup.cleanup_id, cleanup_actions=cleanup.actions), cleanup]


def _reported(record: AuditRecord, step: str, reason_code: str, reason: str) -> AuditRecord:
    event_type = f"session_migration_{step}"
    return record._replace(event_type=event_type, migration_step=step, reason_code=reason_code, reason=reason)


def cleanup_request(row: SessionState, cleanup: Cleanup, reason: str) -> CleanupRequest:
    """Return the request for a clean-up that the row holds; `reason` is for people."""
    return CleanupRequest(
        cleanup_id=cleanup.cleanup_id,
        tenant_id=row.tenant_id,
        session_id=row.session_id,
        service_id=cleanup.service_id,
        epoch=cleanup.epoch,
        reason_code=cleanup.reason_code,
        reason=reason,
        actions=cleanup.actions,
        requested_at=cleanup.requested_at * 1000,
        context_bytes=row.context_bytes,
    )


def migration_request(after: SessionState, migration: Migration, at_ms: int) -> MigrationRequest:
    """Return the request to the target of a migration for its next step."""
    return MigrationRequest(
        migration_id=migration.migration_id,
        tenant_id=after.tenant_id,
        session_id=after.session_id,
        service_id=migration.target_service,
        from_service=after.owner_service,
        step=migration.step,
        user_id=after.user_id,
        epoch=after.epoch,
        version=after.version,
        data_classes=after.data_classes,
        expires_at=migration.expires_at * 1000,
        requested_at=at_ms * 1000,
    )


class MigrationJudgement(NamedTuple):
    """The outcome of an event: a fact or an objection, and the facts after or before it.

    `further` are facts after the first one; of an objection, facts that hold although the event is
    rejected.
    """

    first: SessionFact | Objection
    further: Sequence[SessionFact] = ()


def object_to_migration_sender(row: SessionState, event: Event) -> Objection | None:
    """Judge who may send an event of a migration: the owner, the target or an operator."""
    envelope = event.envelope
    name, service = envelope.event_type, envelope.service_id
    if name == "session_migration_completed":
        return Objection("processor_only", f"{name} is a processor's to say")
    migration = open_migration(row)
    target = None if migration is None else migration.target_service
    if name == "session_migration_offered":
        is_allowed, whose = service == row.owner_service, row.owner_service
    elif name == "session_migration_aborted":
        is_allowed, whose = service in (row.owner_service, target), row.owner_service
    else:
        is_allowed, whose = target in (None, service), target or ""
    if is_allowed or is_by_operator(event):
        return None
    return Objection("not_owner", f"{name} is {whose}'s to say, not {service}'s")


def judge_migration(row: SessionState, event: Event, arrival: Arrival) -> MigrationJudgement:
    """Judge an event of a migration, whose sender may send it."""
    return _JUDGES[type(event.payload)](row, event, arrival)


def open_migration(row: SessionState) -> Migration | None:
    """Return a session's migration if it is neither completed nor aborted, else None."""
    migration = row.migration
    return migration if migration is not None and migration.is_open else None


def object_to_content(row: SessionState, event_type: str) -> Objection | None:
    """Object to content while the target proves that it has the same: its head must not move."""
    if event_type not in CONTENT or row.migration is None or not row.migration.is_prepared:
        return None
    return Objection("illegal_transition", f"{event_type} is not possible while a migration is prepared")


def facts_of_change(row: SessionState, fact: SessionFact, now_ms: int) -> Sequence[SessionFact]:
    """Return the facts of a change of the session for its open migration: its end, or none."""
    migration = open_migration(row)
    if migration is None:
        return ()
    if isinstance(fact, TakenOver):
        return _abort(migration, now_ms, "taken_over", f"{fact.service_id} took the session over")
    if not isinstance(fact, Transitioned) or fact.transition.target == "Paused":
        return ()
    if fact.transition.target == "Terminated":
        return (MigrationAborted(now_ms, migration, "session_ended", f"the session ended: {fact.reason_code}"),)
    if migration.is_prepared:  # a clock of the session ended the hold
        return (MigrationAborted(now_ms, migration, "session_resumed", f"the session went on: {fact.reason_code}"),)
    return ()


def facts_of_expiry(migration: Migration, now_ms: int) -> Sequence[SessionFact]:
    """Return the facts of a migration whose time is over; the reason depends on its step."""
    limit, due_ms = format_seconds(migration.ttl_ms), migration.expires_at
    if migration.step == "offered":
        reason = f"{migration.target_service} has not loaded the session within {limit}"
        return _abort(migration, now_ms, "target_silent", reason, due_ms)
    return _abort(migration, now_ms, "expired", f"not completed within {limit}", due_ms)


def _offer(row: SessionState, event: Event, arrival: Arrival) -> MigrationJudgement:
    payload = event.payload
    assert isinstance(payload, SessionMigrationOffered)
    if row.state not in OFFER_STATES:
        return _reject("illegal_transition", f"{event.envelope.event_type} is not possible in {row.state}")
    if row.state == "Timeout" and (too_late := object_to_duration(row, arrival.now_ms)):
        return MigrationJudgement(too_late)  # it could be prepared, and never accepted
    if (migration := open_migration(row)) is not None:
        detail = f"migration {migration.migration_id} to {migration.target_service} is not over"
        return _reject("migration_open", detail)
    if not valid_name(payload.target_service):
        return _reject("invalid_value", f"target_service {payload.target_service!r} is no name")
    if payload.target_service == row.owner_service:
        return _reject("invalid_value", f"target_service: {row.owner_service} owns the session already")
    if not payload.migration_id:
        return _reject("invalid_value", "migration_id is empty")
    if row.migration is not None and row.migration.migration_id == payload.migration_id:
        return _reject("invalid_value", f"migration {payload.migration_id} is over: give each an id of its own")
    if not MIGRATION_TTL_MS_MIN <= payload.ttl_ms <= MIGRATION_TTL_MS_MAX:
        detail = f"ttl_ms is {payload.ttl_ms}; use {MIGRATION_TTL_MS_MIN} to {MIGRATION_TTL_MS_MAX}"
        return _reject("invalid_value", detail)
    offered = Migration(
        payload.migration_id, payload.target_service, "offered", arrival.now_ms, payload.ttl_ms, row.state
    )
    reason = payload.reason or f"offered by {event.envelope.service_id}"
    return MigrationJudgement(MigrationMoved(arrival.now_ms, offered, reason))


def _load(row: SessionState, event: Event, arrival: Arrival) -> MigrationJudgement:
    payload, now_ms = event.payload, arrival.now_ms
    assert isinstance(payload, SessionMigrationLoaded)
    migration = open_migration(row)
    if migration is None or migration.migration_id != payload.migration_id:
        return _reject_unknown(payload.migration_id)
    if migration.step != "offered" or row.state not in OFFER_STATES:
        detail = f"{event.envelope.event_type} is not possible in {row.state} while a migration is {migration.step}"
        return _reject("illegal_transition", detail)
    prepared = migration._replace(step="prepared", from_state=row.state)
    moved = MigrationMoved(now_ms, prepared, f"{migration.target_service} has loaded the session")
    if row.state != "Active":
        return MigrationJudgement(moved)
    reason = f"held for its migration to {migration.target_service}"
    held = Transitioned(HELD, now_ms, "migration", reason)
    return MigrationJudgement(held, (moved,))


def _accept(row: SessionState, event: Event, arrival: Arrival) -> MigrationJudgement:
    payload, envelope, now_ms = event.payload, event.envelope, arrival.now_ms
    assert isinstance(payload, SessionMigrationAccepted)
    migration = open_migration(row)
    if migration is None or migration.migration_id != payload.migration_id:
        return _reject_unknown(payload.migration_id)
    if not migration.is_prepared or envelope.service_id != payload.target_service:
        return _reject("illegal_transition", f"migration {migration.migration_id} is {migration.step}")
    if migration.from_state == "Timeout" and (too_late := object_to_duration(row, now_ms)):
        return MigrationJudgement(too_late)
    if payload.version != row.version or payload.content_hash != content_hash(row.state_json):
        return _reject_state(row, migration, payload, now_ms)
    completed = MigrationCompleted(now_ms, migration, envelope.agent_id, envelope.producer_id)
    transition = TAKEN.get(migration.from_state)
    if transition is None:
        return MigrationJudgement(completed)
    reason = f"migrated from {row.owner_service} to {migration.target_service}"
    return MigrationJudgement(completed, (Transitioned(transition, now_ms, CLEANUP_REASON, reason),))


def _reject_state(
    row: SessionState, migration: Migration, payload: SessionMigrationAccepted, now_ms: int
) -> MigrationJudgement:
    """Reject a target with another state than the session's; the third time ends the migration."""
    detail = f"the target has version {payload.version} of the state, the session has {row.version}"
    if payload.version == row.version:
        detail = f"the target's version {row.version} of the state has another hash than the session's"
    objection = Objection("migration_moved", detail)
    counted = migration._replace(mismatches=migration.mismatches + 1)
    if counted.mismatches < MISMATCHES_MAX:
        return MigrationJudgement(objection, (StateDiffered(counted),))
    return MigrationJudgement(objection, _abort(counted, now_ms, "state_differs", detail))


def _call_off(row: SessionState, event: Event, arrival: Arrival) -> MigrationJudgement:
    payload, service = event.payload, event.envelope.service_id
    assert isinstance(payload, SessionMigrationAborted)
    migration = open_migration(row)
    if migration is None or migration.migration_id != payload.migration_id:
        return _reject_unknown(payload.migration_id)
    is_target = service == migration.target_service and not payload.as_operator
    code: AbortReason = "declined" if is_target else "called_off"
    first, *further = _abort(migration, arrival.now_ms, code, payload.reason or f"by {service}")
    return MigrationJudgement(first, further)


def _abort(
    migration: Migration, now_ms: int, code: AbortReason, reason: str, due_ms: int | None = None
) -> Sequence[SessionFact]:
    """Return the end of a migration, and that of the hold it caused."""
    aborted = MigrationAborted(now_ms, migration, code, reason, due_ms)
    if not migration.holds_session:
        return (aborted,)
    reported = f"its migration to {migration.target_service} was aborted: {code}"
    return aborted, Transitioned(LET_GO, now_ms, "migration_aborted", reported, due_ms=due_ms)


def _reject(reason: Any, detail: str) -> MigrationJudgement:
    return MigrationJudgement(Objection(reason, detail))


def _reject_unknown(migration_id: str | None) -> MigrationJudgement:
    return _reject("unknown_migration", f"migration {migration_id} is not open")


_JUDGES: dict[type[Any], Callable[[SessionState, Event, Arrival], MigrationJudgement]] = {
    SessionMigrationAborted: _call_off,
    SessionMigrationAccepted: _accept,
    SessionMigrationLoaded: _load,
    SessionMigrationOffered: _offer,
}
