"""Scripted sessions: together they take every transition in every way, and provoke every rejection.

A script is a generator: it sends, and yields what it waits for. Its copies `n` differ in details.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.limits import TRANSACTIONS_MAX
from sessionary.schemas.records import Tombstone
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import CleanupAction, ErrorInfo, Limits
from sessionary.stream_processors.core.sequencing import FORGOTTEN_MAX, PRODUCERS_MAX
from tests.core.random_agents import BAD_KEYS, FIELDS, INVALID_ENVELOPES
from tests.core.run_moves import AGENT_WAY, ARTIFACT_WAY, CALL_WAY, WORK
from tests.recorded.actors import STEADY, TRACEPARENT, Actor, Headers, Script
from tests.recorded.coverage import COUNT_MIN
from tests.support.event_factory import TICK, snapshot, snapshot_id

COPIES = 28
_CLASSES = (
    ("personal",),
    ("financial",),
    ("medical",),
    ("medical", "personal"),
    ("financial", "medical"),
    ("none",),
    (),
)
_SERVICES = ("billing", "research")
_LONG_COPIES = 3
_CROWDED_COPY = 20  # not among the first sessions, which are stored in full
_FATAL = ErrorInfo("fatal", "broken", "cannot be mended")
_UNCLASSED = ErrorInfo("UNKNOWN", "odd", "of no class")
_RESOLVED: dict[str, Any] = {"tool_call_id": "own", "tool_name": "order", "outcome": "succeeded", "resolved_by": "ops"}
_TOMBSTONE = encode_record(Tombstone("acme", "x", (), "closed", 1, 1, 1))
# Headers that a client of ours would not send.
_ODD_HEADERS: tuple[Headers, ...] = (
    (),
    (("traceparent", TRACEPARENT.encode()),),
    (("x", b""), ("x", b"again")),
    (("empty", None), ("ü", "ü".encode())),
    (("content-type", b"application/json"), ("ce_id", b"other"), ("ce_time", b"never")),
    (("raw", bytes(range(256))),),
)
_BROKEN: tuple[bytes | None, ...] = (None, b"", b"no Avro", b"\xc3\x01", b"\xc3\x01short", b"\x00\x00\x00\x00\x07x")
_WRONG_KEYS = [key for key in BAD_KEYS if key is not None]


def _ends(actor: Actor, n: int) -> Script:
    """T13 with each reason; the clean-up is confirmed twice, or by the loss of its host."""
    actor.begin()
    actor.say("heartbeat")
    reason = ("closed", "completed", "cancelled", "abnormal_termination")[n % 4]
    actor.say("session_terminated", reason=reason, snapshot=snapshot("last") if n % 3 == 0 else None)
    yield actor.asked()
    if n % 2:
        actor.say("session_phase_changed", phase="clearing")
    actor.confirm(host_lost=n % 5 == 0, bytes_released=None if n % 3 else 4_096)
    actor.confirm()  # already_released
    actor.say("session_activity")  # illegal_transition
    yield actor.reached("Archived")
    actor.say("session_activity")  # session_archived
    actor.say("heartbeat")
    actor.say("session_activity", {"producer_seq": 2})  # a duplicate
    actor.agent.seq += 2
    actor.say("session_created")  # archived, with a gap


def _fails_to_start(actor: Actor, n: int) -> Script:
    """T03 by the client, after reasons that are not its to give."""
    actor.say("session_created", limits=STEADY._replace(model_ms=30_000 + n, override=n % 2 == 0))
    actor.say("session_phase_changed", phase="connecting")  # phase_order
    actor.say("session_started")  # phase_order
    actor.say("session_start_failed", reason="init_timeout")  # processor_only
    actor.say("session_start_failed", reason="UNKNOWN")  # invalid_reason
    actor.say("session_start_failed", reason=("invalid_config", "connection_failed")[n % 2])
    yield actor.asked()
    if n % 3:
        actor.confirm(actions=[CleanupAction("close_connection", True, 1)])
    yield actor.reached("Archived")


def _never_starts(actor: Actor, n: int) -> Script:
    """T03 by the clock."""
    actor.say("session_created", limits=STEADY._replace(init_ms=1_200 + n))
    actor.say("heartbeat")
    yield actor.asked()
    if n % 2:
        actor.confirm()


def _times_out(clock: str, **limits: int) -> Callable[[Actor, int], Script]:
    """T06 by one of its clocks, then T07 or T08, with and without a confirmed clean-up."""

    def script(actor: Actor, n: int) -> Script:
        resumes = n % 2 == 0
        grace_ms = 20_000 if clock == "max_duration" else 90_000 if resumes else 1_500
        actor.begin(**limits, grace_ms=grace_ms)
        yield 0.3
        actor.say("session_activity")
        if clock == "idle":
            yield 0.5
            actor.say("heartbeat")  # a sign of life, but no work
        yield actor.reached("Timeout")
        yield actor.asked()
        actor.say("session_activity")  # late
        actor.say("message_appended")  # late, audited once
        actor.say("usage_recorded")
        if clock == "max_duration":
            actor.say("session_resumed", snapshot_id=None)  # max_duration_exceeded
        elif resumes:
            actor.confirm()
            actor.resume()
            actor.say("session_activity", {"epoch": 1})  # stale_epoch
            actor.say("session_terminated", reason="completed")
            yield actor.asked(2)
            actor.confirm()
        elif n % 4 == 1:
            actor.confirm()
        yield actor.reached("Archived")

    return script


def _times_out_often(actor: Actor, n: int) -> Script:
    """T06 and T07 more often than a session remembers clean-ups; a few copies only: it is long."""
    if n >= _LONG_COPIES:
        return
    actor.begin(model_ms=500, tool_ms=400, network_ms=300)
    for times in range(1, 11):
        yield actor.asked(times)
        actor.resume()
    actor.confirm(0)  # unknown_cleanup: forgotten
    actor.confirm()
    actor.say("session_terminated", reason="closed")


def _pauses(actor: Actor, n: int) -> Script:
    """T04, T05 and T09 by the clock and by the client."""
    actor.begin(hold_ms=1_500 if n % 3 == 0 else 60_000)
    actor.say("session_paused", snapshot=None)  # missing_snapshot
    actor.say("session_paused", kind=("manual", "review")[n % 2])
    actor.say("session_activity")  # illegal_transition
    actor.say("usage_recorded")
    actor.say("session_resumed", snapshot_id=snapshot_id("another"))  # version_conflict
    actor.resume(snapshot_id("paused") if n % 2 else None)
    actor.say("session_activity", {"epoch": 1})  # stale_epoch
    actor.say("session_paused", kind="UNKNOWN", reason=None, snapshot=snapshot("paused again"))
    actor.say("session_terminated", reason="closed")  # invalid_reason
    if n % 3 == 1:
        actor.say("session_terminated", reason="cancelled")
    elif n % 3 == 2:
        yield 0.6
        actor.resume()
        actor.say("session_terminated", reason="closed")
    yield actor.asked()
    if n % 2:
        actor.confirm()


def _asks(actor: Actor, n: int) -> Script:
    """T05 by an operator's answer, and by the clock; what is no answer."""
    actor.begin()
    operator = actor.beside("desk", "people")
    actor.say("session_paused", kind="review", question="Send it?", answer_ms=1_000 + n if n % 2 else None)
    actor.say("session_resumed")  # question_open
    actor.say("session_resumed", approved=True)  # operator_only
    answer: dict[str, Any] = {"approved": n % 4 == 0, "as_operator": True}
    operator.say("session_resumed", {"actor": "ops"}, **answer, question_id="another")  # no_question
    if n % 2 == 0:
        operator.say("session_resumed", {"actor": "ops"}, **answer, message="looks right")
    yield actor.took("T05")
    actor.agent.epoch += 1
    actor.say("session_activity")
    operator.agent.epoch += 1
    operator.say("session_terminated", {"actor": "ops"}, reason="cancelled", as_operator=True)
    yield actor.asked()


def _goes_back(actor: Actor, n: int) -> Script:
    """Rollbacks and transactions, and those that are refused; one copy opens too many."""
    actor.begin()
    actor.say("snapshot_created", snapshot=snapshot("kept"))
    actor.say("snapshot_created", snapshot=snapshot("kept"))  # snapshot_exists
    actor.say("state_updated")
    actor.say(
        "session_rolled_back", snapshot_id=snapshot_id("another"), base_version=2, new_version=3
    )  # unknown_snapshot
    actor.say("session_rolled_back", snapshot_id=snapshot_id("kept"), base_version=2, new_version=3)
    actor.say("txn_begun", transaction_id="t1")
    actor.say("txn_begun", transaction_id="t2")
    actor.say("txn_committed", transaction_id="t1", base_version=3, new_version=4)
    actor.say("txn_committed", transaction_id="t2", base_version=3, new_version=4)  # version_conflict
    actor.say("txn_rolled_back", transaction_id="t2")
    actor.say("txn_rolled_back", transaction_id="t1")  # unknown_transaction
    if n == _CROWDED_COPY:
        for number in range(TRANSACTIONS_MAX + COUNT_MIN + 4):  # the last ones: too_many_transactions
            actor.say("txn_begun", transaction_id=f"many-{number}")
            if number % 64 == 0:
                yield 0.1
    actor.say("session_terminated", reason="closed")
    yield actor.asked()


def _works(actor: Actor, n: int) -> Script:
    """A run with a plan, a step and a reserved call; an artifact and an agent of the session."""
    actor.begin()
    of_run = {"run_id": f"run-{n}"}
    actor.say("run_running", of_run, progress=None)  # unknown_run
    if n % 2:
        actor.say("run_queued", of_run)
    actor.say("run_started", of_run, plan_json=None)
    actor.say("run_running", of_run, progress=0.5)
    actor.say("plan_recorded", of_run)
    yield 0.1
    actor.say("tool_call_succeeded", of_run, idem_key="early")  # unknown_call
    for event_type, fields in CALL_WAY:  # call_in_progress, call_succeeded
        actor.say(event_type, of_run, **fields, idem_key=f"order-{n}")
    actor.say("tool_call_started", of_run, **CALL_WAY[0][1] | {"idem_key": "slow", "limit_ms": 500})
    yield 3.0
    actor.say("run_resumed", of_run)  # call_unresolved
    actor.say("tool_call_resolved", of_run, **_RESOLVED, idem_key="slow")
    for event_type, fields in ARTIFACT_WAY:
        actor.say(event_type, of_run, artifact_id="report", **fields)
    for event_type, fields in AGENT_WAY:  # task_done
        actor.say(event_type, agent_id="writer", **fields)
    actor.say(("run_completed", "run_failed", "run_cancelled", "run_paused")[n % 4], of_run)
    actor.say("session_terminated", reason="completed")
    yield actor.asked()


def _errs(actor: Actor, n: int) -> Script:
    """T10, T11 as often as it may be, T12 by the client with each reason."""
    actor.begin()
    actor.say("session_errored", error=_UNCLASSED)  # missing_error_class
    for attempt in range(6):
        actor.say("session_errored")
        if attempt == n % 6:
            actor.say("session_recovered")  # phase_order
        actor.say("session_phase_changed", phase="recovery")
        actor.say("session_recovered")  # the last one: retries_exhausted
        actor.agent.epoch += attempt < 5
        yield 0.0
    actor.say("session_terminated", reason=("forced", "unrecoverable", "recovery_failed")[n % 3])
    yield actor.asked()


def _fails_fatally(actor: Actor, n: int) -> Script:
    """T12 by the clock, after an error that no recovery mends."""
    actor.begin(recovery_ms=1_300)
    actor.say("session_errored", error=_FATAL)
    actor.say("session_phase_changed", phase="recovery")
    actor.say("session_recovered")  # not_retryable
    if n % 4 == 0:
        actor.say("session_phase_changed", phase="cleanup")
    yield actor.asked()
    if n % 2:
        actor.confirm()


def _misbehaves(actor: Actor, n: int) -> Script:
    """What an Active session rejects, any sender's event."""
    odd = _ODD_HEADERS[n % len(_ODD_HEADERS)]
    actor.begin()
    actor.say("session_created", headers=odd)  # session_exists
    actor.say("session_started")  # illegal_transition
    actor.say("session_activity", {"epoch": 9})  # future_epoch
    actor.say("session_activity", {"epoch": 0}, headers=odd)  # stale_epoch
    for name in ("session_timed_out", "session_archived", "tool_call_unknown"):
        actor.say(name)  # processor_only
    actor.say("session_terminated", reason="timeout_cleanup")  # processor_only
    actor.say("session_terminated", reason="UNKNOWN")  # invalid_reason
    actor.beside("p2", "other").say("session_paused", headers=odd)  # not_owner
    actor.say("state_updated", base_version=7, new_version=8)  # version_conflict
    actor.say("state_updated", base_version=1, new_version=2)
    actor.say("state_updated", base_version=2, new_version=3, state_json="x" * (VALUE_BYTES_MAX + 1 + n))  # too large
    actor.say("resources_released", cleanup_id=f"of no one {n}")  # unknown_cleanup
    actor.say("session_phase_changed", phase="persisting")  # phase_order
    for bent in ({"producer_seq": 0}, {"epoch": -1}, {"service_id": "a b"}, {"agent_id": ""}, {"producer_id": "/"}):
        actor.say("session_activity", bent, headers=odd)  # invalid_value
    actor.say("heartbeat", {"epoch": 5}, headers=odd)  # rejected without an audit record
    yield 0.0
    _intrudes(actor, n, odd)
    if n % 2:
        actor.say("session_terminated", reason="closed")


def _intrudes(actor: Actor, n: int, odd: Headers) -> None:
    """Records that are no event of this session."""
    actor.say("session_activity", {"tenant_id": "evil", "producer_seq": 1}, headers=odd)  # foreign_tenant
    actor.say("session_activity", {"session_id": "another", "producer_seq": 1})  # key_mismatch
    actor.say("session_activity", {"producer_seq": 1}, key=_WRONG_KEYS[n % len(_WRONG_KEYS)])  # bad_key
    value, usual = actor.made("session_activity", {"producer_seq": 1})
    actor.throw(value, odd, key=None, partition=n % 2)  # bad_key: no tick
    actor.throw(TICK, odd)  # bad_key: a tick has no key
    actor.throw(TICK, key=None, partition=n % 2)
    actor.throw(_BROKEN[n % len(_BROKEN)], odd)  # undecodable
    actor.throw(value[: -1 - n], usual)  # undecodable
    actor.throw(b"\xc3\x01" + bytes([n]) * 8 + b"body", odd)  # unknown_schema
    actor.throw(_TOMBSTONE, odd)  # unknown_event_type
    misnamed, headers = actor.made("session_activity", {"producer_seq": 1})
    actor.throw(misnamed.replace(b"session_activity", b"session_activist"), headers)  # unknown_event_type


def _is_not_known(actor: Actor, n: int) -> Script:
    """What is rejected before there is a session."""
    odd = _ODD_HEADERS[n % len(_ODD_HEADERS)]
    actor.say("session_activity", headers=odd)  # unknown_session
    actor.say("heartbeat")  # the same, without an audit record
    actor.say("session_created", partition=actor.wrong_partition(), headers=odd)  # wrong_partition
    actor.say("session_created", {"user_id": None})  # invalid_value
    invalid: tuple[dict[str, Any], ...] = ({"grace_ms": 0}, {"hold_ms": -1}, {"idle_ms": 10**14})
    actor.say("session_created", limits=STEADY._replace(**invalid[n % 3]), headers=odd)  # invalid_limits
    actor.say("session_created", limits=Limits(model_ms=29_999))  # invalid_limits
    actor.say(
        "session_created",
        limits=Limits(init_ms=1_000),
        parent_session_id="parent",
        restored_from_snapshot_id=snapshot_id("first"),
    )
    yield actor.asked()


def _loses_events(actor: Actor, n: int) -> Script:
    """Gaps, more than a ledger holds; late fillers, duplicates, a second producer."""
    actor.begin()
    second = actor.beside("p2")
    for _ in range(2 + n):
        actor.agent.seq += 1 + n % 3
        actor.say("message_appended")
        second.say("tool_call_succeeded")
        yield 0.0
    actor.say("progress_reported", {"producer_seq": 5})  # late_filler
    actor.say("progress_reported", {"producer_seq": actor.agent.seq - 1})  # late_filler
    actor.say("progress_reported", {"producer_seq": actor.agent.seq})  # a duplicate
    second.say("progress_reported", {"producer_seq": 1})  # a duplicate
    second.agent.seq += 5
    second.say("session_terminated", reason="completed")
    yield actor.asked()
    if n % 2:
        second.confirm()


def _does_everything(actor: Actor, n: int) -> Script:
    """Every type of event, with context sizes around the limit."""
    actor.begin(context_limit_bytes=1_000)
    sizes = (999, 1_000, 1_001, 5_000, None, 10)
    for place, name in enumerate(sorted(PAYLOADS)):
        if name.startswith("session_") and place % COPIES != n:
            continue
        actor.say(name, {"context_bytes": sizes[(place + n) % len(sizes)]})
    yield 0.2
    actor.classes = ("financial", "medical", "personal")
    actor.say("snapshot_created")
    actor.say("session_terminated", reason="closed")


def _strays(actor: Actor, n: int) -> Script:
    """Events of any kind in any state, drawn by chance."""
    rng = Random(n)
    actor.begin(model_ms=900, tool_ms=900, network_ms=700, hold_ms=2_000, recovery_ms=2_000, grace_ms=2_000)
    names = [*sorted(PAYLOADS), *WORK * 3, *sorted(FIELDS) * 2]
    for _ in range(40):
        name = rng.choice(names)
        drawn = {field: rng.choice(options) for field, options in FIELDS.get(name, {}).items()}
        bent = rng.choice(INVALID_ENVELOPES) if rng.random() < 0.15 else {"epoch": rng.choice((1, 1, 1, 2))}
        actor.agent.seq += rng.random() < 0.05
        actor.say(name, bent, headers=rng.choice((None, None, *_ODD_HEADERS)), **drawn)
        yield rng.choice((0.0, 0.0, 0.1, 0.4))


def _is_crowded(actor: Actor, n: int) -> Script:
    """More producers than a session's ledger lists and remembers; one copy only: it is long."""
    if n != _CROWDED_COPY:
        return
    actor.begin()
    for other in range(PRODUCERS_MAX + FORGOTTEN_MAX + COUNT_MIN + 4):  # the last ones: too_many_producers
        actor.beside(f"many-{other}").say("session_activity")
        if other % 64 == 0:
            yield 0.1
    actor.beside("many-more").say("heartbeat")
    actor.say("session_terminated", reason="closed")


SCRIPTS: dict[str, Callable[[Actor, int], Script]] = {
    "ends": _ends,
    "fails to start": _fails_to_start,
    "never starts": _never_starts,
    "inactive": _times_out("inactivity", model_ms=500, tool_ms=400, network_ms=300),
    "idle": _times_out("idle", idle_ms=1_300),
    "too long": _times_out("max_duration", max_duration_ms=1_300),
    "times out often": _times_out_often,
    "pauses": _pauses,
    "asks": _asks,
    "goes back": _goes_back,
    "works": _works,
    "errs": _errs,
    "fails fatally": _fails_fatally,
    "misbehaves": _misbehaves,
    "is not known": _is_not_known,
    "loses events": _loses_events,
    "does everything": _does_everything,
    "strays": _strays,
    "is crowded": _is_crowded,
}


def classes_of(n: int) -> tuple[str, ...]:
    """Return the data classes of the n-th session."""
    return _CLASSES[n % len(_CLASSES)]


def service_of(n: int) -> str:
    """Return the owner of the n-th session."""
    return _SERVICES[n % len(_SERVICES)]
