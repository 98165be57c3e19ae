"""One tool call in the order that survives a crash: reserve its key, call, record the outcome."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from sessionary.producers.context.error_info import to_error_info
from sessionary.producers.context.scope import current_scope
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import (
    ResultTooLarge,
    ToolCallFailed,
    ToolCallInProgress,
    ToolCallOverdue,
    ToolCallUnresolved,
)
from sessionary.producers.durable.flow import Call, Do, Flow, Wait
from sessionary.producers.durable.large_values import (
    TOOL_RESULT,
    StoredText,
    load_value,
    lost_text,
    store_value,
)
from sessionary.producers.durable.recorder import Judged, Recorder, wait_recorded
from sessionary.producers.errors import Invalid, NotAllowed, Rejected, SessionaryError, Unavailable
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import any_json_text, text_with_type
from sessionary.producers.run_ports import CallView, LogPosition
from sessionary.schemas.events import Payload, ToolCallResolved, ToolCallStarted, ToolCallSucceeded
from sessionary.schemas.events import ToolCallFailed as ToolCallFailedEvent
from sessionary.schemas.ids import content_hash, derived_id
from sessionary.schemas.types import ErrorInfo, ToolExecution

# The number of retries of a failed call, the waits between them, and the rate of calls. Pure.


class Retry(NamedTuple):
    """The retries of a failure that may pass by itself: with growing waits that are spread.

    Attributes:
        retries: How often; a call is made once more at most.
        base_ms: The wait after the first failure, in ms; it doubles with each further one.
        max_ms: The longest wait, in ms, before it is spread.
        jitter: How far a wait is spread: by up to this part of it, up or down.
        deadline_ms: How long after the first failure the last try may begin, in ms. A service that
            asks for a longer wait (`Retry-After`) gets it if it ends by then and is shorter than
            the session's `idle_ms`; else the call fails at once, and its error says why.
    """

    retries: int = 5
    base_ms: int = 500
    max_ms: int = 10_000
    jitter: float = 0.2
    deadline_ms: int = 300_000

    def wait_ms(self, failures: int, chance: float) -> int:
        """Return the wait after the last of so many failures, in ms; `chance` is from 0 to 1."""
        longest = min(self.max_ms, self.base_ms << min(failures - 1, 32))
        return max(0, math.floor(longest + longest * self.jitter * (2 * chance - 1)))


class CallRate:
    """Spreads the calls of a tool so that no more than some begin in a second. Thread-safe."""

    def __init__(self, calls_per_s: float) -> None:
        self._interval_s = 1 / calls_per_s
        self._lock = Lock()
        self._free_s = -math.inf

    def take_turn(self, now_s: float) -> float:
        """Take the next turn; return how long to wait for it, in seconds."""
        with self._lock:
            # A clock that went back, as that of another test does, delays no call.
            turn_s = max(now_s, self._free_s if self._free_s - now_s < self._interval_s * 10_000 else now_s)
            self._free_s = turn_s + self._interval_s
            return turn_s - now_s


_POLL_S = 0.5
_GIVEN_UP_MAX = 2
_INLINE_CHARACTERS = 16 << 10  # of arguments and result in a snapshot
# Rejections of a reservation that are answers: the call's record says what to do.
_ANSWERS = frozenset({"call_in_progress", "call_succeeded", "call_unresolved", "not_retryable", "invalid_value"})


class TookEffect(NamedTuple):
    """The answer of a tool's query if the call took effect: the result of the call."""

    result: Json = None


Query = Callable[[str], Any]
"""Asks a tool whether the call of a key took effect: `TookEffect`, or None. May be a coroutine."""


ArgumentsText = Callable[[EnvelopeFields], str]
"""Returns a call's arguments as its event has them, for events with such fields. May block."""


class ToolPolicy(NamedTuple):
    """The policy for the calls of one tool; see `tool`."""

    name: str
    side_effect: bool
    queryable: bool
    query: Query | None
    limit_ms: int | None
    retry: Retry
    rate: CallRate | None
    wait_s: float
    is_repeatable: bool  # A call that may have taken effect may be made again under its key
    snapshots: bool | None = None  # None: as the run or the session says


class CallPlan(NamedTuple):
    """One call to be made: its place, its key, and its arguments."""

    run_id: str | None
    step_id: str | None
    key: str
    arguments: ArgumentsText
    call: Callable[[], Any]
    inside: Callable[[str], AbstractContextManager[None]]
    known: CallView | None = None  # the record of the key when its run was resumed
    save_border: Callable[[str], None] | None = None  # Takes `before` or `after`; saves a checkpoint of the run
    look_first: bool = False  # the key may have a record: it is read, so that a repeat is not rejected
    until_answered: Callable[[], Flow[bool]] | None = None  # waits while a person is asked
    snapshots: bool = False  # one before and one after the call

    def reach_border(self, policy: ToolPolicy, side: str) -> Flow[None]:
        """Save a checkpoint before or after a call with an effect, if it belongs to a run."""
        if self.save_border is not None and policy.side_effect:
            yield Do(partial(self.save_border, side))


class _Stored(NamedTuple):
    """The result of a call that succeeded before."""

    result: Json


def recorded_call(policy: ToolPolicy, recorder: Recorder, plan: CallPlan) -> Flow[Any]:
    """Make a call and return its result, or the stored one. Raises as `tool` describes it."""
    call = ReservedCall(policy, recorder, plan.run_id, plan.step_id, plan.key, plan.arguments)
    if not plan.snapshots:
        return (yield from _make_call(call, policy, plan))
    try:
        result = yield from _make_call(call, policy, plan)
    except BaseException as error:
        yield Do(partial(call.snapshot_failure, error))
        raise
    yield Do(call.snapshot_result)
    return result


def _make_call(call: "ReservedCall", policy: ToolPolicy, plan: CallPlan) -> Flow[Any]:
    failures = 0
    call.known = plan.known
    if plan.until_answered is not None:
        call.until_answered = plan.until_answered
    if plan.look_first and call.known is None:
        call.known = yield Do(call.fetch_judged)
    while True:
        stored = yield from call.reserve()
        if stored is not None:
            return stored.result
        if not failures:
            yield from plan.reach_border(policy, "before")
            if plan.snapshots:
                yield Do(call.snapshot_before)
        if not (yield from call.may_be_made()):
            continue
        try:
            with plan.inside(call.reservation):
                result = yield Call(plan.call)
        except Exception as error:
            info = to_error_info(error)
            failures += 1
            if info.error_class == "retryable" and policy.side_effect and policy.query is not None:
                stored, failures = yield from call.ask_after_failure(error, failures)
                if stored is not None:
                    yield from plan.reach_border(policy, "after")
                    return stored.result
            elif info.error_class == "retryable" and not (policy.is_repeatable or _was_not_sent(error)):
                # Not recorded as a failure: the processor's clock makes the outcome unknown.
                why = f"{error!r} does not show whether it did"
                raise ToolCallUnresolved(policy.name, plan.key, why) from error
            wait_s, why = call.plan_retry(error, failures) if info.error_class == "retryable" else (None, "")
            if why:
                error.add_note(why)
                info = info._replace(message=f"{info.message} ({why})")
            recorded = yield Do(partial(call.record_failure, info))
            if not recorded or wait_s is None:
                raise
            yield Wait(wait_s)
        except BaseException as error:
            if not policy.side_effect:  # else it is unknown: the processor's clock finds that out
                yield Do(partial(call.record_failure, to_error_info(error)))
            raise
        else:
            yield Do(partial(call.record_result, result))
            yield from plan.reach_border(policy, "after")
            return result


def _was_not_sent(error: Exception) -> bool:
    from sessionary.producers.context.failure_class import outcome_of  # a failure needs it first

    return outcome_of(error) == "not_sent"


def _inline_or_reference(text: str, call_id: str) -> str:
    """Return a value's JSON as a snapshot has it: a large one is in the events of its call."""
    if len(text) <= _INLINE_CHARACTERS:
        return text
    return any_json_text({"tool_call_ref": call_id, "sha256": content_hash(text), "bytes": len(text.encode())}, "value")


class ReservedCall:
    """The reservation of one key, and the events about it."""

    def __init__(
        self,
        policy: ToolPolicy,
        recorder: Recorder,
        run_id: str | None,
        step_id: str | None,
        key: str,
        arguments: ArgumentsText = lambda _: "{}",
    ) -> None:
        self.known: CallView | None = None
        self.until_answered = recorder.until_answered
        self.reservation = ""  # Id of the event that the try was granted to
        self._policy = policy
        self._recorder = recorder
        self._run_id = run_id
        self._key = key
        self._arguments = arguments
        self._args_json: str | None = None  # not asked for yet
        self._try_number = 1
        decision = current_scope().decision_in(recorder.key.session_id)
        self._fields = EnvelopeFields(run_id=run_id, step_id=step_id, causation_id=decision)
        self._call_id = derived_id(*recorder.key, run_id or "", key)
        self._granted_s = 0.0
        self._asked_s = 0.0  # before the try was asked for, so before its limit began
        self._given_up = 0
        self._first_failed_s: float | None = None
        self._reason: str | None = None  # why the next try is one
        self._result_json: str | None = None  # as the call's event has it
        self._is_snapshot_open = False  # taken before the call, and not yet after it
        self._duration_ms: int | None = None

    def reserve(self) -> Flow[_Stored | None]:
        """Reserve the key for the next try; return the stored result if there is one already."""
        while True:
            if self.known is not None:
                known, self.known = self.known, None
                stored = yield from self._settle(known)
                if stored is not None:
                    return stored
            if self._policy.rate is not None:
                yield Wait(self._policy.rate.take_turn(self._recorder.waits.now_s()))
            try:
                self.known = yield Do(self._ask_reservation)
            except NotAllowed as refused:  # another task may have asked a person
                if not self._recorder.was_asking(refused) and not (yield from self.until_answered()):
                    raise
                continue
            if self.known is None:
                return None

    def may_be_made(self) -> Flow[bool]:
        """Return whether the try is still this process's; ask if its limit may be over.

        Only for a call with an effect: another one may be made twice. Between this look and the
        call, the process may still be stopped. If False, the key can be reserved again. Raises
        `Unavailable` if that happens a third time.
        """
        if not self._is_overdue():
            return True
        known = yield Do(self.fetch)
        if known is not None and known.state == "running" and known.reservation == self.reservation:
            return True  # the processor counts from the record's arrival, and not during an outage
        error = ErrorInfo("retryable", "overdue", "the call was not made: its reservation was too old")
        failed = ToolCallFailedEvent(self._call_id, self._policy.name, self._key, error, self._try_number, 0)
        judged = yield Do(partial(self._ask_about, failed))
        if judged.rejection is None:
            self._try_number += 1
        elif isinstance(judged.record, CallView):
            self._recorder.keep_rejection(judged.event_id, judged.rejection)
            self.known = judged.record
        self._given_up += 1
        if self._given_up > _GIVEN_UP_MAX:
            raise Unavailable(
                f"tool call {self._key} of {self._policy.name} was not made: the limit of {self._limit_ms()} ms was "
                f"over {self._given_up} times between its reservation and the call. Give the tool a longer deadline",
                1.0,
            )
        return False

    def resolve(self, known: CallView) -> Flow[_Stored | None]:
        """Find out the outcome of a call whose outcome is unknown, and record it.

        Returns the call's result if it took effect, else None. Raises `ToolCallUnresolved`.
        """
        policy = self._policy
        if policy.query is None:
            raise ToolCallUnresolved(known.tool_name, self._key)
        try:
            answer = yield Call(self._query)
        except Exception as error:
            raise ToolCallUnresolved(known.tool_name, self._key, f"asking the tool failed ({error!r})") from error
        result_json = None
        if answer is not None:
            result_json = (yield Do(partial(self._store_result, self._check_answer(answer).result))).text
            self._result_json = result_json
        outcome = ToolCallResolved(
            self._call_id,
            known.tool_name,
            self._key,
            "failed" if answer is None else "succeeded",
            result_json,
            f"query of {policy.name}",
        )
        yield Do(lambda: self._recorder.send_acknowledged(outcome, self._fields))
        return None if answer is None else _Stored(answer.result)

    def ask_after_failure(self, error: Exception, failures: int) -> Flow[tuple[_Stored | None, int]]:
        """Ask the tool whether a failed try took effect after all, until it answers.

        Returns the result if it did, and the number of failures so far.
        """
        while True:
            try:
                answer = yield Call(self._query)
            except Exception as silence:  # noqa: BLE001 - the query is the user's
                failures += 1
                wait_s, why = self.plan_retry(silence, failures)
                if wait_s is None:
                    why = f"asking the tool failed ({silence!r}{why and '; '}{why})"
                    raise ToolCallUnresolved(self._policy.name, self._key, why) from error
                yield Wait(wait_s)
                continue
            if answer is None:
                return None, failures
            result = self._check_answer(answer).result
            yield Do(partial(self.record_result, result))
            return _Stored(result), failures

    def plan_retry(self, error: Exception, failures: int) -> tuple[float | None, str]:
        """Return the wait for the next try after so many failures, in seconds; None: there is none.

        If only the time forbids another try, the text says so.
        """
        from sessionary.producers.context.failure_class import asked_wait_s  # a failure needs it first

        retry, waits = self._policy.retry, self._recorder.waits
        if self._first_failed_s is None:
            self._first_failed_s = waits.now_s()
        if failures > retry.retries:
            return None, ""
        own_s, asked_s = retry.wait_ms(failures, waits.uniform()) / 1_000, asked_wait_s(error, time.time()) or 0.0
        wait_s = max(own_s, asked_s)
        what = "the next wait is" if asked_s < wait_s else "the service asks for a wait of"
        what, idle_ms = f"not tried again: {what} {wait_s:g} s", self._recorder.limits().idle_ms
        if waits.now_s() + wait_s > self._first_failed_s + retry.deadline_ms / 1_000:
            return None, f"{what}, and the last try may begin {retry.deadline_ms / 1_000:g} s after the first failure"
        if wait_s * 1_000 >= idle_ms:
            return None, f"{what}, and the session's idle_ms is {idle_ms / 1_000:g} s"
        kind = "exponential back-off" if asked_s < wait_s else "a wait that the service asked for,"
        self._reason = f"retry {failures} of {retry.retries}, after {kind} of {wait_s:.3g} s"
        return wait_s, ""

    def record_result(self, result: Json) -> None:
        """Record that the try succeeded.

        Raises `Unavailable`; `ResultTooLarge` of a call without effect; `ToolCallOverdue` if it is
        rejected after the limit of the try.
        """
        stored = StoredText(None)
        try:
            stored = stored if result is None else self._store_result(result)
        except ResultTooLarge as error:
            if not self._policy.side_effect:  # it can be called again once there is a library
                self.record_failure(to_error_info(error))
                raise
            stored = StoredText(lost_text(error, TOOL_RESULT))
            self._recorder.on_error(error)
        # The call took effect in any case: it must not be repeated.
        self._result_json, self._duration_ms = stored.text, self._took_ms()
        done = ToolCallSucceeded(
            self._call_id,
            self._policy.name,
            self._key,
            stored.text,
            stored.artifact_id,
            self._try_number,
            self._took_ms(),
        )
        if self._is_overdue():
            self._record_overdue(done, result)
        else:
            self._recorder.send_acknowledged(done, self._fields)

    def record_failure(self, error: ErrorInfo) -> bool:
        """Record that the try failed; return whether that is certain to be recorded."""
        failed = ToolCallFailedEvent(
            self._call_id, self._policy.name, self._key, error, self._try_number, self._took_ms()
        )
        try:
            self._recorder.send_acknowledged(failed, self._fields)
        except SessionaryError as lost:  # the caller must see the tool's own error
            self._recorder.on_error(lost)
            return False
        self._try_number += 1
        return True

    # Snapshots

    def snapshot_before(self) -> None:
        """Take the snapshot before the call, unless a former attempt has taken it."""
        self._is_snapshot_open = True
        self._recorder.snapshot_call(self._execution(None, None), self._fields)

    def snapshot_result(self) -> None:
        """Take the snapshot after a call that succeeded, or was found to have succeeded."""
        self._snapshot_after("succeeded", self._result_json or "null")

    def snapshot_failure(self, error: BaseException) -> None:
        """Take the snapshot after a call that failed."""
        if not isinstance(error, ToolCallInProgress):
            info = error.error if isinstance(error, ToolCallFailed) else to_error_info(error)
            self._snapshot_after("failed", any_json_text(info._asdict(), "error"))

    def _snapshot_after(self, status: str, data_json: str) -> None:
        """Take the snapshot after the call if the one before it was taken, here or earlier."""
        if self._is_snapshot_open or self._recorder.open_snapshot_call() == self._call_id:
            self._is_snapshot_open = False
            self._recorder.snapshot_call(self._execution(status, data_json), self._fields)

    def _execution(self, status: str | None, data_json: str | None) -> ToolExecution:
        given = _inline_or_reference(self._args_json or "{}", self._call_id)
        data = None if data_json is None else _inline_or_reference(data_json, self._call_id)
        duration_ms = self._duration_ms if status == "succeeded" else None if status is None else self._took_ms()
        return ToolExecution(self._call_id, self._policy.name, given, status, data, duration_ms)

    def _is_overdue(self) -> bool:
        """Return whether the limit of a try with an effect may be over."""
        return self._policy.side_effect and (self._recorder.waits.now_s() - self._asked_s) * 1_000 >= self._limit_ms()

    def _record_overdue(self, done: ToolCallSucceeded, result: Json) -> None:
        recorder = self._recorder
        sent = recorder.send(done, self._fields)
        log_position = wait_recorded(sent, sent.event_type, recorder.timeout_s)
        try:
            judged = recorder.find_judged(sent, log_position, self._fetch_after)
        except SessionaryError:
            return  # the outcome is in the log, and its verdict is not known here
        if judged.rejection is None:
            return
        recorder.keep_rejection(judged.event_id, judged.rejection)
        state = judged.record.state if isinstance(judged.record, CallView) else None
        raise ToolCallOverdue(self._policy.name, self._key, self._limit_ms(), judged.rejection, state, result)

    def _limit_ms(self) -> int:
        return self._recorder.limits().tool_ms if self._policy.limit_ms is None else self._policy.limit_ms

    def fetch(self) -> CallView | None:
        """Return the present record of the key."""
        return self._fetch_after(None)

    def fetch_judged(self) -> CallView | None:
        """Return the record of the key once the session's earlier events are judged."""
        return self._fetch_after(self._recorder.wait_sent(self._recorder.timeout_s))

    def _store_result(self, result: Json) -> StoredText:
        """Return a result as an event has it: as text with its type if JSON cannot hold it.

        Raises `ResultTooLarge`.
        """
        what = f"the result of {self._policy.name}"
        try:
            return store_value(self._recorder, result, what, TOOL_RESULT, self._fields)
        except ResultTooLarge:
            raise
        except Invalid:
            return store_value(self._recorder, text_with_type(result), what, TOOL_RESULT, self._fields)

    def _ask_reservation(self) -> CallView | None:
        """Ask for the next try; return None if it is granted, else the record of the key."""
        policy, recorder = self._policy, self._recorder
        if self._args_json is None:
            self._args_json = self._arguments(self._fields)
        started = ToolCallStarted(
            self._call_id,
            policy.name,
            self._key,
            self._args_json,
            self._try_number,
            side_effect=policy.side_effect,
            queryable=policy.queryable,
            limit_ms=policy.limit_ms,
            reason=self._reason,
        )
        self._asked_s = recorder.waits.now_s()
        judged = self._ask_about(started)
        if judged.rejection is None:
            self.reservation, self._granted_s = judged.event_id, time.monotonic()
            return None
        if judged.rejection not in _ANSWERS or not isinstance(judged.record, CallView):
            raise Rejected("tool_call_started", judged.rejection)
        recorder.keep_rejection(judged.event_id, judged.rejection)
        return judged.record

    def _ask_about(self, payload: Payload) -> Judged:
        """Send an event about the call, and return the call's record once the event is judged."""
        return self._recorder.ask(payload, self._fields, self._fetch_after)

    def _fetch_after(self, log_position: LogPosition | None) -> CallView | None:
        recorder = self._recorder
        return recorder.known.fetch_call(
            recorder.key.session_id, self._run_id, self._key, log_position, recorder.timeout_s
        )

    def _settle(self, known: CallView) -> Flow[_Stored | None]:
        """Act on the record of the key; return None if the next try may be requested."""
        if known.tool_name != self._policy.name:
            raise Invalid(
                "invalid_value", f"the key {self._key} is one of the tool {known.tool_name}, not of {self._policy.name}"
            )
        known = yield from self._outwait(known)
        if known.state == "succeeded":
            full = known if known.result_json is not None else (yield Do(self.fetch)) or known
            self._result_json = full.result_json
            return _Stored((yield Do(partial(load_value, self._recorder.artifacts, full.result_json))))
        if known.state == "failed":
            if known.error is not None and known.error.error_class != "retryable":
                raise ToolCallFailed(known.tool_name, self._key, known.error)
        elif known.side_effect or self._policy.side_effect:
            stored = yield from self.resolve(known)
            if stored is not None:
                return stored
        self._try_number = known.try_number + 1
        why = "" if known.error is None else f": {known.error.code} ({known.error.error_class})"
        self._reason = f"try {known.try_number} is {known.state}{why}"
        return None

    def _outwait(self, known: CallView) -> Flow[CallView]:
        """Return the call once it is not running, or raise `ToolCallInProgress`."""
        waits = self._recorder.waits
        deadline_s = waits.now_s() + self._policy.wait_s
        while known.state == "running":
            left_s = deadline_s - waits.now_s()
            if left_s <= 0:
                raise ToolCallInProgress(known.tool_name, self._key)
            yield Wait(min(_POLL_S, left_s))
            known = (yield Do(self.fetch)) or known
        return known

    def _query(self) -> Any:
        assert self._policy.query is not None
        return self._policy.query(self._key)

    def _check_answer(self, answer: Any) -> TookEffect:
        if not isinstance(answer, TookEffect):
            raise Invalid(
                "invalid_value",
                f"the query of {self._policy.name} returned a value of type {type(answer).__name__}: return "
                "TookEffect(result) if the call took effect, else None",
            )
        return answer

    def _took_ms(self) -> int:
        return max(round((time.monotonic() - self._granted_s) * 1_000), 0)
