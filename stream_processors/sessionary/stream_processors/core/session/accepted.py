"""Events that a session accepts without a change of state, and their facts.

A replayed record that fills a gap is one of them. Rejected heartbeats are handled here too.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from sessionary.schemas.codec import Event
from sessionary.schemas.codec.value_bounds import find_invalid_value
from sessionary.schemas.events import (
    MessageAppended,
    SessionRolledBack,
    SessionTakenOver,
    SnapshotCreated,
    StateUpdated,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
    TxnBegun,
    TxnCommitted,
    TxnRolledBack,
)
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.limits import (
    HEARTBEATS_PER_BUDGET,
    TRANSACTION_MS,
    TRANSACTIONS_MAX,
    inactivity_budget_ms,
)
from sessionary.schemas.records import CheckpointState, SessionState
from sessionary.schemas.snapshots import find_state_fault
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import FencedBeats, OpenTransaction
from sessionary.stream_processors.core.children.checkpoint import find_snapshot
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.family import SessionArrival
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.model import Decision
from sessionary.stream_processors.core.run.transitions import RUN_EVENTS
from sessionary.stream_processors.core.sequencing import fill_gap, hash_producer
from sessionary.stream_processors.core.session.admission import used_tokens
from sessionary.stream_processors.core.session.clocks import WAITING
from sessionary.stream_processors.core.session.facts import (
    BeatFenced,
    CleanupReleased,
    ContentRestored,
    ContentUpdated,
    DataClassified,
    GapFilled,
    HeartbeatSeen,
    PhaseMoved,
    Rejected,
    SessionFact,
    SnapshotTaken,
    TakenOver,
    ToolSeen,
    TransactionMoved,
    Transitioned,
    WorkDone,
)
from sessionary.stream_processors.core.session.people import is_by_operator
from sessionary.stream_processors.core.session.snapshots import is_snapshot_known
from sessionary.stream_processors.core.session.transitions import CONTENT_CHANGES, PHASES, WORK

STATE_BYTES_MAX: Final = VALUE_BYTES_MAX
FENCED_KEPT: Final = 16  # producers
TOOL_EVENTS: Final = frozenset({ToolCallStarted, ToolCallSucceeded, ToolCallFailed})
LAST_CHARACTERS: Final = 256  # of a tool's name and of a result, in the session's row
_BEATS_MISSED: Final = 2
_FILLING = WORK - RUN_EVENTS - CONTENT_CHANGES  # work that may fill a gap later
AcceptRule = Callable[[SessionState, Any, int], SessionFact | Objection]  # session, payload, log time in ms


def _move_phase(state: SessionState, payload: Any, now_ms: int) -> SessionFact | Objection:
    if (state.phase, payload.phase) in PHASES[state.state]:
        return PhaseMoved(payload.phase, now_ms, state.turn_by)
    if state.state == "Paused":  # where a turn may end, and nothing else
        return Objection("illegal_transition", "session_phase_changed is not possible in Paused")
    return Objection("phase_order", f"{payload.phase} does not follow {state.phase} in {state.state}")


def take_turn(state: SessionState, event: Event, moved: PhaseMoved) -> PhaseMoved | Objection:
    """Let the sender of a phase begin or end a turn, an exchange with the session's user.

    One process at a time is in a turn. It begins with the phase `processing`, and ends with
    `waiting`; with any other phase it goes on.
    """
    is_begin = moved.phase == "processing" and state.phase in (WAITING, "processing")
    if not is_begin and moved.phase != WAITING:
        return moved
    sender = hash_producer(event.envelope.producer_id)
    if state.turn_by not in (0, sender):
        return Objection("phase_order", f"another process is in a turn: {moved.phase} follows its end")
    return PhaseMoved(moved.phase, moved.at_ms, sender if is_begin else 0)


def _object_to_version(state: SessionState, base: int, new: int) -> Objection | None:
    if base == state.version and new == state.version + 1:
        return None
    return Objection("version_conflict", f"{base} to {new}, but the session is at version {state.version}")


def _update_content(state: SessionState, payload: StateUpdated, now_ms: int) -> SessionFact | Objection:
    if objection := _object_to_version(state, payload.base_version, payload.new_version):
        return objection
    if len(payload.state_json.encode()) > STATE_BYTES_MAX:
        return Objection("state_too_large", f"a state above {STATE_BYTES_MAX} bytes goes by reference")
    if fault := find_state_fault(payload.state_json):
        return Objection("invalid_value", f"state_json {fault}")
    return ContentUpdated(payload.new_version, payload.state_json, now_ms)


def roll_back(state: SessionState, event: Event, arrival: SessionArrival) -> ContentRestored | Objection:
    """Make the content of an older snapshot the session's.

    The processor takes it from its own record. Of a snapshot that it only knows, the owner brings
    the content.
    """
    payload, row = event.payload, arrival.child
    assert isinstance(payload, SessionRolledBack)
    assert row is None or isinstance(row, CheckpointState)
    if objection := _object_to_version(state, payload.base_version, payload.new_version):
        return objection
    text, source = find_snapshot(state, row, payload.snapshot_id), ""
    if text is None and is_snapshot_known(state, payload.snapshot_id):
        text, source = payload.state_json, ", which its owner has brought"
    if text is None:
        return Objection("unknown_snapshot", f"snapshot {payload.snapshot_id} is none of the session's last ones")
    if len(text.encode()) > STATE_BYTES_MAX:
        return Objection("state_too_large", f"a state above {STATE_BYTES_MAX} bytes goes by reference")
    if source and (fault := find_state_fault(text)):
        return Objection("invalid_value", f"state_json {fault}")
    reason = f"version {payload.new_version} has the content of snapshot {payload.snapshot_id}{source}"
    if payload.reason:
        reason += f": {payload.reason}"
    return ContentRestored(ContentUpdated(payload.new_version, text, arrival.now_ms), payload.snapshot_id, reason)


def move_transaction(state: SessionState, event: Event, now_ms: int) -> TransactionMoved | Objection:
    """Begin, commit or roll back a transaction; expired ones count no longer."""
    payload = event.payload
    assert isinstance(payload, (TxnBegun, TxnCommitted, TxnRolledBack))
    txn_id = payload.transaction_id
    open_ones = [each for each in state.transactions if now_ms < each.started_at + TRANSACTION_MS]
    known = next((each for each in open_ones if each.transaction_id == txn_id), None)
    if isinstance(payload, TxnBegun):
        if known is not None or not txn_id:
            return Objection("invalid_value", f"transaction {txn_id!r} is open, or has no id")
        if len(open_ones) >= TRANSACTIONS_MAX:
            return Objection("too_many_transactions", f"the session has {len(open_ones)} open, which is the most")
        begun = OpenTransaction(txn_id, now_ms, event.envelope.agent_id)
        return TransactionMoved("begun", begun, now_ms, "begun", f"begun at version {state.version}")
    if known is None:
        return Objection("unknown_transaction", f"transaction {txn_id} is not open: it never began, or has ended")
    if isinstance(payload, TxnRolledBack):
        return TransactionMoved("rolled_back", known, now_ms, "rolled_back", payload.reason or "rolled back")
    updated = StateUpdated(payload.base_version, payload.new_version, payload.state_json)
    content = _update_content(state, updated, now_ms)
    if isinstance(content, Objection):
        return content
    assert isinstance(content, ContentUpdated)
    return TransactionMoved("committed", known, now_ms, "committed", f"version {content.version}", content)


def end_transactions(state: SessionState, fact: SessionFact, now_ms: int) -> Sequence[TransactionMoved]:
    """Return the ends of transactions that a fact brings: those of its session, or of their time.

    An expired one is rolled back with the next event that begins or ends one.
    """
    if isinstance(fact, TransactionMoved):
        overdue = [each for each in state.transactions if now_ms >= each.started_at + TRANSACTION_MS]
        limit = format_seconds(TRANSACTION_MS)
        return [_end_transaction(each, now_ms, "expired", f"not committed within {limit}") for each in overdue]
    if isinstance(fact, Transitioned) and fact.transition.target == "Terminated":
        reason = f"the session ended: {fact.reason_code}"
        return [_end_transaction(each, now_ms, "session_ended", reason) for each in state.transactions]
    return ()


def _end_transaction(transaction: OpenTransaction, now_ms: int, code: str, reason: str) -> TransactionMoved:
    return TransactionMoved("rolled_back", transaction, now_ms, code, reason, by_event=False)


def _take_snapshot(state: SessionState, payload: SnapshotCreated, now_ms: int) -> SessionFact | Objection:
    return SnapshotTaken(payload.snapshot, now_ms)


def _do_work(state: SessionState, payload: object, now_ms: int) -> SessionFact | Objection:
    return WorkDone(now_ms)


def _see_heartbeat(state: SessionState, payload: object, now_ms: int) -> SessionFact | Objection:
    return HeartbeatSeen(now_ms)


def _release_cleanup(state: SessionState, payload: Any, now_ms: int) -> SessionFact | Objection:
    for cleanup in state.cleanups:
        if cleanup.cleanup_id == payload.cleanup_id:
            if cleanup.released:
                return Objection("already_released", f"clean-up {payload.cleanup_id} was confirmed before")
            return CleanupReleased(payload.cleanup_id, now_ms)
    return Objection("unknown_cleanup", f"nobody asked for clean-up {payload.cleanup_id}")


def tool_seen(payload: Any) -> ToolSeen:
    """Return what the session's row keeps of an event of `TOOL_EVENTS`."""
    if isinstance(payload, ToolCallStarted):
        return ToolSeen(payload.tool_name[:LAST_CHARACTERS], None)
    if isinstance(payload, ToolCallFailed):
        text: str = f"failed: {payload.error.code}: {payload.error.message}"
    else:
        text = payload.result_json or "null"
    return ToolSeen(None, text[:LAST_CHARACTERS])


def take_over_session(state: SessionState, event: Event, arrival: Arrival) -> TakenOver | Objection:
    """Let the sender of an event hold the session.

    Another service has to wait until the owning one has missed two heartbeats, unless an operator
    wants it.
    """
    envelope = event.envelope
    assert isinstance(event.payload, SessionTakenOver)
    if envelope.service_id != state.owner_service and not is_by_operator(event):
        heard_ms = max(state.owner_heard_at, arrival.outage_end_ms)
        limit_ms = _BEATS_MISSED * inactivity_budget_ms(state.limits) // HEARTBEATS_PER_BUDGET
        if arrival.now_ms - heard_ms < limit_ms:
            owner, limit = state.owner_service, format_seconds(limit_ms)
            detail = f"{owner} may be alive; {envelope.service_id} may take over once {owner} is silent for {limit}"
            return Objection("owner_alive", detail)
    sender = envelope.service_id, envelope.agent_id, envelope.producer_id
    return TakenOver(*sender, arrival.now_ms, event.payload.reason)


def decide_replayed(row: SessionState, event: Event, arrival: SessionArrival) -> Decision | None:
    """Let a replayed record fill its own gap; None if it is rejected as any late filler.

    Only events that do not depend on the order may fill a gap: work that would change nothing but
    the clocks, and no step, reserved call, artifact or agent, nor a transaction. The clocks stay,
    because the work was done long ago; for the same reason the session's state and a lower epoch do
    not matter. A message may fill a gap too, so that the conversation has it: it is the next turn,
    as turns are numbered in the log's order.
    """
    envelope = event.envelope
    if envelope.event_type not in _FILLING or envelope.epoch > row.epoch:
        return None
    is_message = isinstance(event.payload, MessageAppended)
    if arrival.child_key is not None and not is_message:
        return None  # an applied reservation would be granted
    if not any(name == REPLAYED_FROM for name, _ in arrival.record.list_headers()) or find_invalid_value(event):
        return None
    producers = fill_gap(row.producers, envelope.producer_id, envelope.producer_seq)
    if producers is None:
        return None
    facts: list[Any] = [GapFilled(producers, envelope.producer_seq)]
    if envelope.data_classes:
        facts.insert(0, DataClassified(envelope.data_classes))
    writes: dict[bytes, Any] = {}
    if is_message and arrival.family is not None and arrival.child_key is not None:
        turn = arrival.family.judge(row, event, arrival)
        if isinstance(turn, Objection):
            return None
        facts += turn.facts
        writes[arrival.child_key] = turn.row
    if arrival.rules.token_quotas:
        facts += used_tokens(event, arrival.rules)
    return Decision(facts, writes=writes)


def reject_beat(row: SessionState, event: Event, why: Objection) -> Decision:
    """Reject a heartbeat; it leaves no audit record, and nothing in the row for clients that ask.

    A fenced client's heartbeats are rejected once in an epoch; further ones are only counted. So a
    process that never learns of its fencing leaves one record, and not one a second. The row has
    room for a few such clients; each heartbeat of any other client is rejected.
    """
    rejected = Rejected(why.reason, why.detail, None, audited=False)
    if why.reason != "stale_epoch":
        return Decision((rejected,), rejection=why.reason)
    id_hash, fenced = hash_producer(event.envelope.producer_id), row.fenced_beats
    known = fenced.id_hashes if fenced is not None and fenced.epoch == row.epoch else ()
    if id_hash in known:
        return Decision((), rejection=why.reason, only_counted=True)
    if len(known) == FENCED_KEPT:
        return Decision((rejected,), rejection=why.reason)
    return Decision((rejected, BeatFenced(FencedBeats(row.epoch, (*known, id_hash)))), rejection=why.reason)


_SPECIAL_RULES: Final[dict[str, AcceptRule]] = {
    "session_phase_changed": _move_phase,
    "state_updated": _update_content,
    "heartbeat": _see_heartbeat,
    "resources_released": _release_cleanup,
    "snapshot_created": _take_snapshot,
}


def rule_for(event_type: str) -> AcceptRule:
    """Return the rule of an accepted event; by default the event is work."""
    return _SPECIAL_RULES.get(event_type, _do_work)
