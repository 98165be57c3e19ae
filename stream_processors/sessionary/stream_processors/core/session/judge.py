"""The session's judge: it decides on every event of a session, its runs and their children.

A record is read in this order. A failure is a `Fault`, which becomes a rejection like every other:
numbered, audited, and kept in the session's row if there is one:

    key ─▶ bytes ─▶ bounds ─▶ tenant and session of the key ─▶ signature, if it claims authority

Then it is judged against its session, in a fixed order:

    row ─▶ envelope ─▶ sequence ─▶ payload ─▶ event of the processor only ─▶ epoch ─▶ owner or
    member ─▶ event in its state ─▶ run and child ─▶ size of the row

A rejection before or by the check of the sequence does not move the sender's ledger. A later one
does: otherwise each rejection would look like a gap. Heartbeats have no sequence number, and their
rejections no audit record. `_decide_unknown` has the order for a session without a row.

It is one module because the order of all checks is read in one place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.codec.value_bounds import find_invalid_value, find_long_text
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.events import OPERATORS, RequestsRepeated, SessionCreated, SnapshotCreated
from sessionary.schemas.ids import SessionKey, parse_key, partition_of
from sessionary.schemas.records import QuotaVerdict, RulesActivation, SessionState, Tick, Tombstone
from sessionary.schemas.types import Envelope, ProducerLedger, RuleSet, SessionLimits
from sessionary.stream_processors.core.children.agent import is_member
from sessionary.stream_processors.core.family import ChildFamily, SessionArrival
from sessionary.stream_processors.core.judge import NO_SESSION, Fault, Objection, find_forgery
from sessionary.stream_processors.core.model import (
    Decision,
    Emitted,
    EventLog,
    LogRecord,
    OutputCause,
    Row,
    RowLookup,
    Stream,
)
from sessionary.stream_processors.core.rows import AnyRows, Remains
from sessionary.stream_processors.core.run.changes import awaits_process
from sessionary.stream_processors.core.run.judge import is_of_detached_run
from sessionary.stream_processors.core.run.rows import RunRows
from sessionary.stream_processors.core.run.transitions import RUN_EVENTS
from sessionary.stream_processors.core.sequencing import (
    LogMoment,
    SequenceCheck,
    check_sequence,
    epoch_rejection,
    hash_event_id,
)
from sessionary.stream_processors.core.session.accepted import (
    TOOL_EVENTS,
    decide_replayed,
    end_transactions,
    move_transaction,
    reject_beat,
    roll_back,
    rule_for,
    take_over_session,
    take_turn,
    tool_seen,
)
from sessionary.stream_processors.core.session.admission import used_tokens
from sessionary.stream_processors.core.session.children import (
    NOTHING,
    begin_limits_again,
    change_open_runs,
    decide_quota_verdict,
    find_named_rows,
    judge_children,
    outlives_state,
    with_quota_claim,
)
from sessionary.stream_processors.core.session.effects import SessionRow, apply_fact
from sessionary.stream_processors.core.session.facts import (
    CleanupReleased,
    ContentRestored,
    ContentUpdated,
    Created,
    DataClassified,
    GapFound,
    HeartbeatSeen,
    LimitsOverridden,
    MigrationMoved,
    PhaseMoved,
    Rejected,
    RequestsAsked,
    RunEventTaken,
    SessionFact,
    SnapshotTaken,
    StateHashed,
    TakenOver,
    TransactionMoved,
    Transitioned,
    WorkDone,
)
from sessionary.stream_processors.core.session.migration import (
    MIGRATION_EVENTS,
    MigrationJudgement,
    facts_of_change,
    judge_migration,
    object_to_content,
    object_to_migration_sender,
)
from sessionary.stream_processors.core.session.open_requests import open_requests
from sessionary.stream_processors.core.session.people import is_by_operator, is_operators_cancellation
from sessionary.stream_processors.core.session.report import REPORTED_FACTS, report_fact
from sessionary.stream_processors.core.session.row_size import CONTENT_FACTS, kept_rejection, object_to_size
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS, SessionRows
from sessionary.stream_processors.core.session.snapshots import checked_snapshot, first_snapshot
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    CONTENT_CHANGES,
    MEMBERSHIP,
    OPERATOR_EVENTS,
    OWNER_ONLY,
    TRANSACTIONS,
    TRANSITIONS,
    Transition,
    clock_reasons,
    processor_only,
)
from sessionary.stream_processors.core.session.values import (
    complete_transition,
    facts_of_number,
    invalid_envelope,
    measured_context,
    object_to_age,
    object_to_external_id,
    object_to_number,
    outside_ranges,
    resolved,
)

EventRule = Callable[[SessionState, Any, int], SessionFact | Objection]  # session, payload, log time in ms

# An applied event of which number of its producer leaves a hash of the row.
HASHED_EVERY: Final = 100
DUPLICATE: Final = Decision((), duplicate=True)
_NO_FACTS: Final[Sequence[Any]] = ()
# By these a process is heard of that goes on with its session.
_HEARD: Final[frozenset[type[Any]]] = frozenset(
    {
        CleanupReleased,
        ContentRestored,
        ContentUpdated,
        HeartbeatSeen,
        PhaseMoved,
        SnapshotTaken,
        TakenOver,
        TransactionMoved,
        WorkDone,
    }
)


class SessionRules(NamedTuple):
    """A table of transitions, arranged for judging."""

    creation: Transition  # the one without a source
    by_event: Mapping[tuple[str, str], EventRule]  # state, event type
    processor_only: frozenset[str]
    clock_reasons: Mapping[str, frozenset[str]]


def session_rules(transitions: Sequence[Transition]) -> SessionRules:
    """Arrange a table of transitions. Raises `ValueError` unless exactly one has no source."""
    (creation,) = (transition for transition in transitions if transition.source is None)
    by_event: dict[tuple[str, str], EventRule] = {
        (state, name): rule_for(name) for state, names in ACCEPTED.items() for name in names
    }
    for transition in transitions:
        if transition.source is not None and transition.by != "processor":
            by_event[transition.source, transition.event_type] = _transition_rule(transition)
    return SessionRules(creation, by_event, processor_only(transitions), clock_reasons(transitions))


def _transition_rule(transition: Transition) -> EventRule:
    def judge_transition(state: SessionState, payload: Any, now_ms: int) -> SessionFact | Objection:
        is_foreign = transition.reasons and payload.reason not in transition.reasons
        if is_foreign and not is_operators_cancellation(payload):
            allowed = ", ".join(transition.reasons)
            detail = f"{payload.reason} does not end a session in {transition.source}; {allowed} do"
            return Objection("invalid_reason", detail)
        grounds = transition.guard(state, payload, now_ms)
        if isinstance(grounds, Objection):
            return grounds
        return Transitioned(
            transition,
            now_ms,
            grounds.reason_code,
            grounds.reason,
            snapshot=grounds.snapshot,
            error_class=grounds.error_class,
        )

    return judge_transition


def decide_event(
    rules: SessionRules, row: SessionState | Tombstone | Remains | None, arrival: SessionArrival, rows: RowLookup
) -> Decision:
    """Judge a record against the row of its session."""
    event = arrival.event
    if arrival.fault is not None:
        if isinstance(row, SessionState):
            return _reject_kept(row, event, arrival, Objection(*arrival.fault), ())
        return _reject_unkept(event, *arrival.fault)
    assert event is not None  # without an event there is a fault
    if row is None:
        return _decide_unknown(rules, arrival, event)
    if not isinstance(row, SessionState):
        return _reject_unkept(event, "session_archived", "the session is archived")
    return _decide_known(rules, row, event, arrival, rows)


def _reject_unkept(event: Event | None, reason: Any, detail: str) -> Decision:
    """Reject without a trace in the session but its audit number. Heartbeats are not audited."""
    audited = event is None or event.envelope.event_type != "heartbeat"
    return Decision((Rejected(reason, detail, None, audited),), rejection=reason)


def _decide_unknown(rules: SessionRules, arrival: SessionArrival, event: Event) -> Decision:
    envelope = event.envelope
    home = partition_of(arrival.record.key or b"", arrival.log.partitions)
    if home != arrival.log.partition:
        detail = f"this key belongs to partition {home}: the producer's partitioner is not murmur2"
        return _reject_unkept(event, "wrong_partition", detail)
    if not isinstance(event.payload, SessionCreated):
        return _reject_unkept(event, "unknown_session", f"{envelope.event_type} before session_created")
    if detail := invalid_envelope(envelope) or find_invalid_value(event):
        return _reject_unkept(event, "invalid_value", detail)
    if too_old := object_to_age(envelope.session_id, arrival.now_ms):
        return _reject_unkept(event, *too_old)
    return _decide_creation(rules.creation, arrival, event, event.payload)


def _decide_creation(creation: Transition, arrival: SessionArrival, event: Event, payload: SessionCreated) -> Decision:
    envelope = event.envelope
    if wrong := object_to_external_id(arrival.session, payload):
        return _reject_unkept(event, *wrong)
    try:
        limits = resolved(payload.limits)
    except Invalid as error:
        return _reject_unkept(event, error.reason, error.detail)
    snapshot = first_snapshot(payload)
    if isinstance(snapshot, Objection):
        return _reject_unkept(event, *snapshot)
    payload = payload._replace(snapshot=snapshot)
    at = LogMoment(1, arrival.now_ms, hash_event_id(envelope.event_id), arrival.record.offset)
    sequence = check_sequence((), (), envelope.producer_id, envelope.producer_seq, at)
    row = with_quota_claim(_new_session(creation, arrival, payload, limits, sequence.producers), arrival)
    facts: list[SessionFact] = [Created(creation, row)]
    if sequence.gap is not None:
        facts.append(GapFound(sequence.gap))
    if outside := outside_ranges(limits):
        facts.append(LimitsOverridden("; ".join(outside)))
    facts += measured_context(row, envelope)
    if objection := object_to_size(None, facts, arrival):
        return _reject_unkept(event, *objection)
    return Decision(facts)


def _new_session(
    creation: Transition,
    arrival: SessionArrival,
    payload: SessionCreated,
    limits: SessionLimits,
    producers: Sequence[ProducerLedger],
) -> SessionState:
    assert arrival.event is not None
    session, envelope, now_ms = arrival.session, arrival.event.envelope, arrival.now_ms
    return SessionState(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        user_id=envelope.user_id,
        agent_id=envelope.agent_id,
        owner_service=envelope.service_id,
        state=creation.target,
        phase=creation.phase,
        epoch=1,
        version=1,
        reason_code="created",
        limits=limits,
        created_at=now_ms,
        entered_at=now_ms,
        last_event_at=now_ms,
        last_work_at=now_ms,
        max_due_at=None,
        released_at=None,
        recovery_attempts=0,
        error_class=None,
        state_schema_version=payload.snapshot.schema_version,
        state_json=payload.snapshot.state_json,
        snapshot=payload.snapshot,
        audit_seq=0,
        data_classes=tuple(sorted(set(envelope.data_classes))),
        context_bytes=None,
        context_exceeded=False,
        late_epoch=0,
        parent_session_id=payload.parent_session_id,
        restored_from_snapshot_id=payload.restored_from_snapshot_id,
        external_id=payload.external_id,
        clock_repair=arrival.clock_repair,
        producers=producers,
        holder=envelope.producer_id,
        owner_heard_at=now_ms,
    )


def _decide_known(
    rules: SessionRules, row: SessionState, event: Event, arrival: SessionArrival, rows: RowLookup
) -> Decision:
    envelope = event.envelope
    is_heartbeat = envelope.event_type == "heartbeat"
    sequence: SequenceCheck | None = None
    if detail := invalid_envelope(envelope, row):
        return _reject_kept(row, event, arrival, Objection("invalid_value", detail), ())
    if not is_heartbeat:
        sequence = _check_number(row, envelope, arrival)
        if sequence.duplicate:
            return DUPLICATE
        if sequence.rejection == "late_filler" and (replayed := decide_replayed(row, event, arrival)):
            return replayed
        if sequence.rejection is not None:
            return _reject_kept(row, event, arrival, object_to_number(sequence.rejection, envelope), ())
    judged = (
        _object_to_payload(event)
        or _object_to_sender(rules, row, event, arrival)
        or _judge_in_state(rules, row, event, arrival, rows)
    )
    fact, moved = judged if isinstance(judged, MigrationJudgement) else (judged, _NO_FACTS)
    fact, further = checked_snapshot(row, fact), NOTHING
    if envelope.run_id is not None or arrival.child_key is not None or envelope.event_type in RUN_EVENTS:
        told = Event(envelope, SnapshotCreated(fact.snapshot)) if type(fact) is SnapshotTaken else event
        fact, further = judge_children(row, told, arrival, fact)
    if type(fact) is Transitioned:
        fact = complete_transition(row, event, fact)
    if row.open_runs and row.answers and type(fact) in _HEARD and awaits_process(row):
        further = begin_limits_again(row, arrival.now_ms, rows, further)
    owner_heard: int | None = None
    if envelope.service_id == row.owner_service and type(fact) is not RunEventTaken:
        owner_heard = arrival.now_ms
    if isinstance(fact, Objection):
        return _reject_kept(row, event, arrival, fact, [*facts_of_number(sequence), *moved])
    if sequence is None:
        if type(fact) is HeartbeatSeen:
            fact.owner_heard_at = owner_heard
        return Decision((fact,), writes=further.writes)
    facts: list[Any] = []
    if type(fact) is WorkDone and sequence.gap is None and sequence.forgotten is None:
        fact.producers, fact.owner_heard_at = sequence.producers, owner_heard
    else:
        facts += facts_of_number(sequence, owner_heard)
    if row.migration is not None and not moved:
        moved = facts_of_change(row, fact, arrival.now_ms)
    if row.transactions:
        facts += end_transactions(row, fact, arrival.now_ms)
    if not envelope.data_classes or envelope.data_classes == row.data_classes:
        facts.append(fact)  # as of most events, which declare what the session's first one did
    else:
        facts += _with_classes(fact, envelope, is_move=bool(moved))
    if moved:
        facts += moved
    if envelope.context_bytes is not None:
        facts += measured_context(row, envelope)
    if arrival.rules.token_quotas:
        facts += used_tokens(event, arrival.rules)
    if type(event.payload) in TOOL_EVENTS:
        facts.append(tool_seen(event.payload))
    if type(fact) in CONTENT_FACTS and (objection := object_to_size(row, facts, arrival)):
        return _reject_kept(row, event, arrival, objection, facts_of_number(sequence))
    if row.open_runs and isinstance(fact, Transitioned):
        further = change_open_runs(row, fact, rows)
    if further.facts:
        facts += further.facts
    if envelope.producer_seq % HASHED_EVERY == 0:
        facts.append(StateHashed())
    return Decision(facts, writes=further.writes)


def _with_classes(fact: SessionFact, envelope: Envelope, *, is_move: bool) -> Sequence[Any]:
    classified = DataClassified(envelope.data_classes)
    # The transition's own audit record has the tags of the classes that its event declares.
    return (classified, fact) if is_move or isinstance(fact, (Transitioned, MigrationMoved)) else (fact, classified)


def _check_number(row: SessionState, envelope: Envelope, arrival: SessionArrival) -> SequenceCheck:
    at = LogMoment(row.epoch, arrival.now_ms, hash_event_id(envelope.event_id), arrival.record.offset)
    return check_sequence(row.producers, row.forgotten, envelope.producer_id, envelope.producer_seq, at)


def _reject_kept(
    row: SessionState, event: Event | None, arrival: SessionArrival, why: Objection, facts: Sequence[SessionFact]
) -> Decision:
    """Reject, and keep the verdict in the row for clients that ask.

    Lateness is audited once in an epoch.
    """
    reason, detail = why
    if event is not None and event.envelope.event_type == "heartbeat":
        return reject_beat(row, event, why)
    kept = kept_rejection(row, facts, arrival, why)
    audited = not (reason == "late" and row.late_epoch == row.epoch)
    return Decision((*facts, Rejected(reason, detail, kept, audited)), rejection=reason)


def _object_to_payload(event: Event) -> Objection | None:
    detail = find_invalid_value(event)
    return Objection("invalid_value", detail) if detail else None


def _object_to_sender(
    rules: SessionRules, row: SessionState, event: Event, arrival: SessionArrival
) -> Objection | None:
    """Judge who may send the event at all: the processor, the epoch, the owner."""
    envelope, payload = event.envelope, event.payload
    name = envelope.event_type
    if name in rules.processor_only or (
        name in rules.clock_reasons and getattr(payload, "reason", None) in rules.clock_reasons[name]
    ):
        return Objection("processor_only", f"{name} is a processor's to say")
    reason = epoch_rejection(row.epoch, envelope.epoch, name)
    if reason is not None and not (reason == "stale_epoch" and is_of_detached_run(event, arrival.run)):
        return Objection(reason, f"epoch {envelope.epoch}, but the session is at {row.epoch}")
    if name == "session_created":
        return Objection("session_exists", "a session of this id exists")
    if name in MIGRATION_EVENTS:
        return object_to_migration_sender(row, event)
    if name in OPERATOR_EVENTS:
        return None if is_by_operator(event) else Objection("operator_only", f"{name} is an operator's to say")
    if name in OWNER_ONLY and envelope.service_id != row.owner_service and not is_by_operator(event):
        return Objection("not_owner", f"{name} is {row.owner_service}'s to say, not {envelope.service_id}'s")
    if envelope.service_id != row.owner_service:
        return _object_to_other_service(row, event, arrival)
    return None


def _object_to_other_service(row: SessionState, event: Event, arrival: SessionArrival) -> Objection | None:
    """Judge an event of a service that does not own the session."""
    name, service_id = event.envelope.event_type, event.envelope.service_id
    if name in MEMBERSHIP and not is_by_operator(event):
        return Objection("not_member", f"its members are {row.owner_service}'s to say, not {service_id}'s")
    if name in CONTENT_CHANGES and not is_member(row, service_id) and not is_of_detached_run(event, arrival.run):
        return Objection("not_member", f"the content is {row.owner_service}'s, not {service_id}'s")
    return None


def _judge_in_state(
    rules: SessionRules, row: SessionState, event: Event, arrival: SessionArrival, rows: RowLookup
) -> SessionFact | Objection | MigrationJudgement:
    """Judge an event of the right sender, epoch and owner by the session's state."""
    event_type = event.envelope.event_type
    if arrival.run is not None and outlives_state(row, event, arrival.run):
        return RunEventTaken()
    rule = rules.by_event.get((row.state, event_type))
    if rule is not None:
        if event_type == "session_taken_over":
            return take_over_session(row, event, arrival)
        if isinstance(event.payload, RequestsRepeated):
            return RequestsAsked(open_requests(row, rows.get_row, arrival.now_ms), event.payload.reason)
        if event_type == "session_rolled_back":
            return roll_back(row, event, arrival)
        if event_type in TRANSACTIONS:
            return move_transaction(row, event, arrival.now_ms)
        held = None if row.migration is None else object_to_content(row, event_type)
        fact = held or rule(row, event.payload, arrival.now_ms)
        return take_turn(row, event, fact) if type(fact) is PhaseMoved else fact
    if event_type in MIGRATION_EVENTS:
        return judge_migration(row, event, arrival)
    if row.state == "Timeout" and ("Active", event_type) in rules.by_event:
        return Objection("late", f"{event_type} came after the session timed out; resume it first")
    return Objection("illegal_transition", f"{event_type} is not possible in {row.state}")


class SessionJudge:
    """Implements `Judge`. Holds no state; one instance serves any number of partitions."""

    def __init__(
        self,
        children: Sequence[ChildFamily],
        transitions: Sequence[Transition] = TRANSITIONS,
        tombstone_ms: int = TOMBSTONE_MS,
    ) -> None:
        """Take the families of children, a table of transitions, and how long a tombstone remains.

        `tombstone_ms` is log time. Raises `ValueError` for a table without a beginning, and for
        two families of the same events.
        """
        self.families: Sequence[AnyRows] = (
            SessionRows(transitions, tombstone_ms),
            RunRows(),
            *(family.rows for family in children),
        )
        self.streams: frozenset[Stream] = frozenset({"audit", "rejected", "cleanup", "tasks", "migrations", "quotas"})
        self.reported_facts: frozenset[type[Any]] = REPORTED_FACTS.union(
            *(family.reported_facts for family in children)
        )
        self._by_payload = {payload: family for family in children for payload in family.payloads}
        if len(self._by_payload) != sum(len(family.payloads) for family in children):
            raise ValueError("two families of children are for the same events")
        self._rules = session_rules(transitions)

    def read(
        self,
        record: LogRecord,
        row: Row | None,
        decoder: Decoder,
        log: EventLog,
        now_ms: int,
        rules: RuleSet,
        outage_end_ms: int = 0,
    ) -> SessionArrival | None:
        """Read a record as an event of its key's session; None for a tick.

        Raises `Unavailable` if a schema registry does not answer.
        """
        try:
            if record.key is None:
                value = decoder.decode_event(record.value)
                if fault := _forged_activation(value, record, log):
                    return SessionArrival(record, NO_SESSION, None, fault, log, now_ms, rules)
                if _is_control(value, rules):
                    return None
            session = SessionKey(row.tenant_id, row.session_id) if row is not None else parse_key(record.key)
        except Invalid as error:
            detail = error.detail if record.key is not None else "a record without key is a tick, and this is none"
            beat = _heartbeat_of(record, decoder)
            return SessionArrival(record, NO_SESSION, beat, Fault("bad_key", detail), log, now_ms, rules)
        try:
            event = decoder.decode_event(record.value)
        except DecodeError as error:
            return SessionArrival(record, session, None, Fault(error.reason, error.detail), log, now_ms, rules)
        if isinstance(event, QuotaVerdict):
            fault = _verdict_fault(record, log)
            arrival = SessionArrival(record, session, None, fault, log, now_ms, rules)
            if fault is None:
                arrival.quota, arrival.counts_as_tick = event, True
            return arrival
        if not isinstance(event, Event):
            fault = _forged_activation(event, record, log) or Fault("bad_key", "a tick has no key")
            return SessionArrival(record, session, None, fault, log, now_ms, rules)
        envelope, fault = event.envelope, None
        if long_text := find_long_text(envelope):
            # Without the event nothing repeats its texts but the rejected record's bytes.
            return SessionArrival(record, session, None, Fault("invalid_value", long_text), log, now_ms, rules)
        if envelope.tenant_id != session.tenant_id:
            detail = f"tenant {envelope.tenant_id!r} under the key of {session.tenant_id!r}"
            fault = Fault("foreign_tenant", detail)
        elif envelope.session_id != session.session_id:
            detail = f"session {envelope.session_id!r} under the key of {session.session_id!r}"
            fault = Fault("key_mismatch", detail)
        elif type(event.payload) in OPERATORS and is_by_operator(event) and (forgery := find_forgery(record, log.keys)):
            fault = Fault("bad_signature", f"{envelope.event_type} says that an operator sent it: {forgery}")
        return SessionArrival(record, session, event, fault, log, now_ms, rules, outage_end_ms)

    def decide(self, row: SessionRow | Remains | None, arrival: SessionArrival, rows: RowLookup) -> Decision:
        """Judge a record against its session, and the run and the child that it names."""
        if arrival.quota is not None:
            return decide_quota_verdict(row, arrival, arrival.quota, rows)
        event = arrival.event
        if event is not None and (event.envelope.run_id or type(event.payload) in self._by_payload):
            find_named_rows(arrival, rows, self._by_payload)
        return decide_event(self._rules, row, arrival, rows)

    def evolve(self, row: SessionRow | Remains | None, fact: Any) -> SessionRow | Remains | None:
        """Return the session's row after a fact."""
        return apply_fact(row, fact)

    def report(
        self,
        key: bytes,
        row: SessionRow | Remains | None,
        after: SessionRow | Remains | None,
        fact: Any,
        arrival: SessionArrival | None,
        cause: OutputCause,
    ) -> Sequence[Emitted]:
        """Return the records of a fact, each with its topic and key."""
        return report_fact(key, row, after, fact, arrival, cause)


def _heartbeat_of(record: LogRecord, decoder: Decoder) -> Event | None:
    """Return a record's event if it is a heartbeat, which is never audited; else None."""
    try:
        event = decoder.decode_event(record.value)
    except DecodeError:
        return None
    if not isinstance(event, Event) or event.envelope.event_type != "heartbeat" or find_long_text(event.envelope):
        return None
    return event


def _forged_activation(value: object, record: LogRecord, log: EventLog) -> Fault | None:
    """Return the fault of a record with which rules begin, unless a server role has signed it."""
    forgery = find_forgery(record, log.keys) if isinstance(value, RulesActivation) else None
    return None if forgery is None else Fault("bad_signature", f"a rules_activation is a server role's: {forgery}")


def _verdict_fault(record: LogRecord, log: EventLog) -> Fault | None:
    """Return why a verdict does not count: a client made it, or copied it into another partition.

    Where its session is not, the copy would be answered as if the session had released its slot.
    """
    if (forgery := find_forgery(record, log.keys)) is not None:
        return Fault("bad_signature", f"a quota_verdict is a server role's: {forgery}")
    home = partition_of(record.key or b"", log.partitions)
    if home != log.partition:
        return Fault("wrong_partition", f"this verdict is for a session of partition {home}: it is a copy")
    return None


def _is_control(value: Event | Tick | RulesActivation | QuotaVerdict, rules: RuleSet) -> bool:
    """Return whether a record without a key is a tick, or repeats that rules have begun."""
    return isinstance(value, Tick) or (isinstance(value, RulesActivation) and value.version <= rules.version)
