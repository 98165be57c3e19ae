"""The effect of each fact on a session's row.

An effect never rejects and sees no clock but the fact's own time.
"""

from collections.abc import Callable
from typing import Any, Final

from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.records import SessionState, Tombstone
from sessionary.stream_processors.core.rows import Remains
from sessionary.stream_processors.core.run.changes import REJECTIONS_KEPT, close_run, keep_rejection
from sessionary.stream_processors.core.run.transitions import QUOTA_GRANTED
from sessionary.stream_processors.core.session.clocks import WAITING, continue_duration, stop_duration
from sessionary.stream_processors.core.session.facts import (
    BeatFenced,
    Buried,
    ClaimRejected,
    CleanupReleased,
    ContentRestored,
    ContentUpdated,
    ContextExceeded,
    ContextMeasured,
    Created,
    DataClassified,
    GapFilled,
    GapFound,
    HeartbeatSeen,
    LimitsOverridden,
    MigrationAborted,
    MigrationCompleted,
    MigrationMoved,
    PhaseMoved,
    Rejected,
    RequestsAsked,
    RunClosed,
    RunEventTaken,
    RunOpened,
    SequenceMoved,
    SessionAdmitted,
    SnapshotTaken,
    StateDiffered,
    StateHashed,
    TakenOver,
    TokensUsed,
    ToolSeen,
    TransactionMoved,
    Transitioned,
    WorkDone,
)
from sessionary.stream_processors.core.session.migration import (
    CLEANUPS_KEPT,
    abort_migration,
    add_cleanup,
    change_owner,
    complete_migration,
    count_difference,
    held_migration,
    move_migration,
)
from sessionary.stream_processors.core.session.people import kept_answers
from sessionary.stream_processors.core.session.snapshots import kept_ids
from sessionary.stream_processors.core.trail import next_number

SessionRow = SessionState | Tombstone

_replace_activity: Final = make_replacer(SessionState, "last_event_at", "last_work_at")
_replace_work: Final = make_replacer(SessionState, "last_event_at", "last_work_at", "producers")
_replace_owners_work: Final = make_replacer(
    SessionState, "last_event_at", "last_work_at", "producers", "owner_heard_at"
)
_replace_owner_heard: Final = make_replacer(SessionState, "owner_heard_at")
_replace_last_event: Final = make_replacer(SessionState, "last_event_at")
_replace_owners_beat: Final = make_replacer(SessionState, "last_event_at", "owner_heard_at")
_replace_entered: Final = make_replacer(
    SessionState,
    "state",
    "phase",
    "entered_at",
    "last_event_at",
    "last_work_at",
    "reason_code",
    "snapshot",
    "error_class",
)
_replace_phase: Final = make_replacer(SessionState, "phase", "last_event_at", "last_work_at")
_replace_content: Final = make_replacer(SessionState, "version", "state_json", "phase", "last_event_at", "last_work_at")
_replace_snapshot: Final = make_replacer(SessionState, "snapshot", "snapshot_ids", "last_event_at", "last_work_at")
_replace_producers: Final = make_replacer(SessionState, "producers")
_replace_last_tool: Final = make_replacer(SessionState, "last_tool")
_replace_last_result: Final = make_replacer(SessionState, "last_result")
_replace_sender: Final = make_replacer(SessionState, "producers", "owner_heard_at")


def _create_session(row: None, fact: Created) -> SessionState:
    return next_number(fact.row)


def _move_sequence(row: SessionState, fact: SequenceMoved) -> SessionState:
    if fact.forgotten is not None:
        row = row._replace(forgotten=fact.forgotten)
    if fact.owner_heard_at is None:
        return _replace_producers(row, fact.producers)
    return _replace_sender(row, fact.producers, fact.owner_heard_at)


def _reject_event(row: SessionState | Remains | None, fact: Rejected) -> SessionState | Remains | None:
    if isinstance(row, Remains):
        return row
    if fact.kept is not None:
        assert row is not None
        row = row._replace(rejections=(*row.rejections, fact.kept)[-REJECTIONS_KEPT:])
        if fact.reason == "late":
            row = row._replace(late_epoch=row.epoch)
    return next_number(row) if fact.audited and row is not None else row


def _fill_gap(row: SessionState, fact: GapFilled) -> SessionState:
    return next_number(_replace_producers(row, fact.producers))


def _number_only(row: SessionState, fact: object) -> SessionState:
    return next_number(row)


def _do_work(row: SessionState, fact: WorkDone) -> SessionState:
    at_ms: object = fact.at_ms  # twice the same object
    if fact.producers is None:
        return _replace_activity(row, at_ms, at_ms)
    if fact.owner_heard_at is None:
        return _replace_work(row, at_ms, at_ms, fact.producers)
    return _replace_owners_work(row, at_ms, at_ms, fact.producers, fact.owner_heard_at)


def _see_heartbeat(row: SessionState, fact: HeartbeatSeen) -> SessionState:
    if row.state != "Active":
        return row if fact.owner_heard_at is None else _replace_owner_heard(row, fact.owner_heard_at)
    if fact.owner_heard_at is None:
        return _replace_last_event(row, fact.at_ms)
    return _replace_owners_beat(row, fact.at_ms, fact.owner_heard_at)


def _fence_beat(row: SessionState, fact: BeatFenced) -> SessionState:
    return row._replace(fenced_beats=fact.beats)


def _take_over(row: SessionState, fact: TakenOver) -> SessionState:
    return next_number(change_owner(row, fact.service_id, fact.agent_id, fact.producer_id, fact.at_ms))


def _move_phase(row: SessionState, fact: PhaseMoved) -> SessionState:
    before, now_ms = row.phase, fact.at_ms
    if fact.phase == WAITING:  # a turn has ended
        stopped = row if row.state == "Paused" else stop_duration(row, now_ms)  # a pause has stopped it
        return stopped._replace(
            phase=WAITING, exchanges=row.exchanges + 1, turn_by=0, last_event_at=now_ms, last_work_at=now_ms
        )
    row = _replace_phase(row, fact.phase, now_ms, now_ms)
    if before == WAITING:
        row = continue_duration(row, now_ms)
    return row if row.turn_by == fact.turn_by else row._replace(turn_by=fact.turn_by)


def _update_content(row: SessionState, fact: ContentUpdated) -> SessionState:
    phase = WAITING if row.phase == WAITING else "processing"
    return _replace_content(row, fact.version, fact.state_json, phase, fact.at_ms, fact.at_ms)


def _restore_content(row: SessionState, fact: ContentRestored) -> SessionState:
    return next_number(_update_content(row, fact.content))


def _move_transaction(row: SessionState, fact: TransactionMoved) -> SessionState:
    others = tuple(each for each in row.transactions if each.transaction_id != fact.transaction.transaction_id)
    after = row._replace(transactions=(*others, fact.transaction) if fact.step == "begun" else others)
    if fact.content is not None:
        after = _update_content(after, fact.content)
    elif fact.by_event:
        after = _replace_activity(after, fact.at_ms, fact.at_ms)
    return next_number(after)


def _take_snapshot(row: SessionState, fact: SnapshotTaken) -> SessionState:
    return _replace_snapshot(row, fact.snapshot, kept_ids(row), fact.at_ms, fact.at_ms)


def _release_cleanup(row: SessionState, fact: CleanupReleased) -> SessionState:
    cleanups = tuple(
        cleanup._replace(released=True) if cleanup.cleanup_id == fact.cleanup_id else cleanup
        for cleanup in row.cleanups
    )
    after = row._replace(cleanups=cleanups, last_event_at=fact.at_ms, last_work_at=fact.at_ms)
    if row.state == "Timeout":
        after = after._replace(phase="released", released_at=row.released_at or fact.at_ms)
    elif row.state == "Terminated":
        after = after._replace(released_at=row.released_at or fact.at_ms)
    return next_number(after)


def _move_state(row: SessionState, fact: Transitioned) -> SessionState:
    transition, now_ms = fact.transition, fact.at_ms
    snapshot, error_class = fact.snapshot or row.snapshot, fact.error_class or row.error_class
    phase = transition.phase
    if row.phase == WAITING and "Paused" in (transition.target, row.state) and transition.target != "Terminated":
        phase = WAITING  # through a pause, and after it
    entered = (transition.target, phase, now_ms, now_ms, now_ms, fact.reason_code)
    moved = _replace_entered(row, *entered, snapshot, error_class)
    if snapshot is not row.snapshot:
        moved = moved._replace(snapshot_ids=kept_ids(row))
    if row.phase == WAITING and transition.target == "Error":
        moved = continue_duration(moved, now_ms)
    after = next_number(transition.effect(moved, now_ms))
    if fact.question is not None or row.question is not None:
        after = after._replace(question=fact.question, answers=kept_answers(row, fact.answer))
    if fact.hold is not None or row.hold is not None:
        after = after._replace(hold=fact.hold, migration=held_migration(after) if fact.hold else after.migration)
    if fact.fences:
        after = after._replace(holder_epoch=after.epoch, turn_by=0 if fact.ends_turn else after.turn_by)
    if row.quota is not None and transition.target == "Terminated":
        after = after._replace(quota=None)
    actions = requested_actions(after, fact)
    if not actions:
        return after
    return add_cleanup(after, now_ms, after.owner_service, after.epoch, fact.reason_code, actions)


def requested_actions(after: SessionState, fact: Transitioned) -> tuple[str, ...]:
    """Return the clean-up actions that a transition asks for; `after` is the session after it."""
    released = after.released_at is not None
    return fact.transition.cleanup.actions_for(fact.reason_code, released=released)


def _bury_session(row: SessionState, fact: Buried) -> Tombstone:
    return Tombstone(
        tenant_id=row.tenant_id,
        session_id=row.session_id,
        producers=tuple(ledger._replace(recent_ids=None, offsets=()) for ledger in row.producers),
        reason_code=row.reason_code,
        epoch=row.epoch,
        audit_seq=row.audit_seq,
        expires_at=fact.expires_ms,
    )


def _add_classes(row: SessionState, fact: DataClassified) -> SessionState:
    known = set(row.data_classes)
    if known.issuperset(fact.data_classes):
        return row
    return row._replace(data_classes=tuple(sorted(known.union(fact.data_classes))))


def _measure_context(row: SessionState, fact: ContextMeasured) -> SessionState:
    return row._replace(context_bytes=fact.size_bytes, context_exceeded=fact.exceeded)


def _keep_row(row: SessionState, fact: RunEventTaken | TokensUsed) -> SessionState:
    return row


def _see_tool(row: SessionState, fact: ToolSeen) -> SessionState:
    if fact.tool_name is not None:
        return _replace_last_tool(row, fact.tool_name)
    return _replace_last_result(row, fact.result)


def _open_run(row: SessionState, fact: RunOpened) -> SessionState:
    return row._replace(open_runs=(*row.open_runs, fact.run))


def _close_run(row: SessionState, fact: RunClosed) -> SessionState:
    return close_run(row, fact.run_id)


def _keep_claims_rejection(row: SessionState, fact: ClaimRejected) -> SessionState:
    return keep_rejection(row, fact.rejection)


def _admit_session(row: SessionState, fact: SessionAdmitted) -> SessionState:
    assert row.quota is not None
    admitted = row._replace(entered_at=fact.at_ms, reason_code=QUOTA_GRANTED, quota=row.quota._replace(granted=True))
    return next_number(admitted)


_EFFECTS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    BeatFenced: _fence_beat,
    Buried: _bury_session,
    ClaimRejected: _keep_claims_rejection,
    CleanupReleased: _release_cleanup,
    ContentRestored: _restore_content,
    ContentUpdated: _update_content,
    ContextExceeded: _number_only,
    ContextMeasured: _measure_context,
    Created: _create_session,
    DataClassified: _add_classes,
    GapFilled: _fill_gap,
    GapFound: _number_only,
    HeartbeatSeen: _see_heartbeat,
    LimitsOverridden: _number_only,
    MigrationAborted: abort_migration,
    MigrationCompleted: complete_migration,
    MigrationMoved: move_migration,
    PhaseMoved: _move_phase,
    Rejected: _reject_event,
    RequestsAsked: _number_only,
    RunClosed: _close_run,
    RunEventTaken: _keep_row,
    RunOpened: _open_run,
    SequenceMoved: _move_sequence,
    SessionAdmitted: _admit_session,
    SnapshotTaken: _take_snapshot,
    StateDiffered: count_difference,
    StateHashed: _number_only,
    TakenOver: _take_over,
    TokensUsed: _keep_row,
    ToolSeen: _see_tool,
    TransactionMoved: _move_transaction,
    Transitioned: _move_state,
    WorkDone: _do_work,
}


def apply_fact(row: SessionRow | Remains | None, fact: Any) -> SessionRow | Remains | None:
    """Return the row after a fact; the same object if the fact changes nothing.

    `fact` is a `SessionFact`, or a fact that applies itself (`ChildFact`).
    """
    effect = _EFFECTS.get(type(fact))
    after: SessionRow | Remains | None = fact.apply(row) if effect is None else effect(row, fact)
    return after


__all__ = [
    "CLEANUPS_KEPT",
    "REJECTIONS_KEPT",
    "SessionRow",
    "apply_fact",
    "requested_actions",
]
