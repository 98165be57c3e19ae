"""Answers the calls of a replay from the record, by name and input, in their order.

Nothing is executed, unless it is a fork: that makes what the record does not have, in a session of
its own, and blocks what would have an effect.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import inf
from threading import RLock
from typing import Any, Final, Literal, NamedTuple

from sessionary.producers.client_core.sessions import KnownSession
from sessionary.producers.context.scope import AskedCall
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json, Origin
from sessionary.producers.replay.calls import (
    CallPlace,
    RecordedCall,
    call_key,
    cut_parameters,
    describe_call,
    given_parameters,
)
from sessionary.producers.replay.errors import (
    NotReplayable,
    ReplayBlocked,
    ReplayError,
    ReplayMiss,
    recorded_failure,
)
from sessionary.producers.replay.kept_texts import restore_value
from sessionary.producers.replay.record import Point, SessionRecord
from sessionary.producers.replay.script import Script
from sessionary.producers.session.view import parsed_state
from sessionary.schemas.events import RunQueued, RunStarted
from sessionary.schemas.ids import SessionId

ReplayMode = Literal["strict", "stub", "fork"]
"""What becomes of a call that the record does not have."""
_MODES: Final = ("strict", "stub", "fork")
_CAPTURE = (
    "the record has no result of it: decorate the function with @traced(..., capture=True), or make the call in a "
    "step of a run, and record the session anew"
)


class MissedCall(NamedTuple):
    """A call that the record does not have, for `stub`.

    Attributes:
        kind: `tool`, `step`, or `traced` for reported work such as a call of a model.
        name: Name of the tool or the step.
        parameters: The arguments by name, as JSON has them.
    """

    kind: str
    name: str
    parameters: Json


ReplayStub = Callable[[MissedCall], Json]
"""Returns the result of a call that the record does not have, or raises as the call would."""


class ReplayPlan(NamedTuple):
    """The parameters of a replay, as `SessionClient.replay` takes them."""

    session: SessionId | KnownSession
    at: Point = None
    mode: ReplayMode = "strict"
    stub: ReplayStub | None = None
    allow: Collection[str] = ()
    timeout_s: float = 30.0

    def check(self, baseline: object) -> None:
        """Raise `Invalid` for parameters of a wrong type, or that make no sense together."""
        wrong = self._wrong_value()
        if wrong is not None:
            pass
        elif baseline is not None and not callable(baseline):
            wrong = f"baseline is {baseline!r:.80}: pass the unchanged agent, a function that takes a replay"
        elif (self.mode == "stub") is not (self.stub is not None):
            wrong = "a stub is for mode='stub', which needs one"
        elif self.allow and self.mode != "fork":
            wrong = "allow is for mode='fork': no other replay makes a call"
        elif baseline is not None and self.mode != "fork":
            wrong = "a baseline is for mode='fork': any other replay is itself compared with the record"
        if wrong is not None:
            raise Invalid("invalid_value", wrong)

    def _wrong_value(self) -> str | None:
        at, timeout_s, names = self.at, self.timeout_s, self.allow
        if isinstance(at, bool) or not isinstance(at, int | str | None) or at == "":
            return f"at is {at!r:.80}: use an offset, the id of an event or a snapshot, or None"
        if self.mode not in _MODES:
            return f"mode is {self.mode!r:.80}: use 'strict', 'stub' or 'fork'"
        if self.stub is not None and not callable(self.stub):
            return f"stub is {self.stub!r:.80}: pass a function that takes a MissedCall and returns its result"
        is_list = isinstance(names, Collection) and not isinstance(names, str | bytes)
        if not is_list or not all(isinstance(name, str) for name in names):
            return f"allow is {names!r:.80}: pass a list of names of tools, such as ['pay']"
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < inf:
            return f"timeout_s is {timeout_s!r:.80}: pass a number of seconds above 0"
        return None


class _Begun(NamedTuple):
    """A run or a task of the record."""

    run_id: str
    input_json: str | None


class ReplayCounts(NamedTuple):
    """How many calls a replay answered from the record, and what became of the others."""

    served: int = 0
    missed: int = 0
    blocked: int = 0
    executed: int = 0

    def __str__(self) -> str:
        return f"served {self.served}, missed {self.missed}, blocked {self.blocked}, executed {self.executed}"


class Answers:
    """`CallAnswers` of one replay. Thread-safe.

    Attributes:
        counts: What was answered so far.
        failure: The first error by which the replay stopped a call, if there was one.
    """

    def __init__(
        self,
        record: SessionRecord,
        script: Script,
        mode: ReplayMode,
        stub: ReplayStub | None,
        allow: Collection[str],
        load: Callable[[str | None], Json],
    ) -> None:
        """`load`: returns the value of an event's JSON; large ones are read only here."""
        self.counts = ReplayCounts()
        self.failure: ReplayError | None = None
        self._record, self._script, self._mode = record, script, mode
        self._stub, self._allow, self._load = stub, allow, load
        self._lock = RLock()
        self._left: dict[str, dict[CallPlace, deque[RecordedCall]]] = {}  # none is empty
        for call in record.calls:
            self._left.setdefault(call.key, {}).setdefault(call.place, deque()).append(call)
        self._run_ids: dict[str, list[_Begun]] = {}
        self._task_ids: dict[str, list[_Begun]] = {}
        tasks = set[str]()
        for each in record.events:
            payload, run_id = each.event.payload, each.event.envelope.run_id
            if not each.is_own or run_id is None:
                continue
            if isinstance(payload, RunQueued) and payload.mode == "detached":
                self._task_ids.setdefault(payload.task_type, []).append(_Begun(run_id, payload.input_json))
                tasks.add(run_id)
            elif isinstance(payload, RunStarted) and run_id not in tasks:
                self._run_ids.setdefault(payload.task_type, []).append(_Begun(run_id, payload.input_json))
        self._recorded_ids: dict[str, str] = {}
        self._names_parent = False  # whether a fork's session has named its parent

    # What `CallAnswers` says

    def recorded_id(self, new_id: str) -> str:
        """Return the id that a session or run has in the record."""
        return self._recorded_ids.get(new_id, new_id)

    def now_us(self) -> int:
        """Return when the last event occurred that was sent again, in µs since the epoch."""
        return self._script.now_us

    def take_session_id(self, new_id: str) -> str:
        """Return the id of the session that is replayed, once; a fork has an id of its own."""
        with self._lock:
            if self._script.session_id is not None:
                return new_id
            recorded = self._record.key.session_id
            self._script.session_id = new_id if self._mode == "fork" else recorded
            self._recorded_ids[self._script.session_id] = recorded
            return self._script.session_id

    def take_parent(self, parent_id: str | None) -> str | None:
        """Return the parent of a new session: a fork names the session that it is one of."""
        with self._lock:
            recorded = self._record.key.session_id
            if self._mode != "fork":
                self._script.session_id = self._script.session_id or recorded
                return parent_id
            is_first, self._names_parent = not self._names_parent, True
            return recorded if is_first else parent_id

    def recorded_origin(self, session_id: str) -> Origin | None:
        """Return what the replayed session started with from a session's snapshot; None: ask.

        The other session has gone on since. A fork starts as any new session does.
        """
        creation = self._record.creation
        snapshot_id = creation.restored_from_snapshot_id
        if self._mode == "fork" or snapshot_id is None or session_id != creation.parent_session_id:
            return None
        first = creation.snapshot
        classes = self._record.events[0].event.envelope.data_classes
        return Origin(session_id, snapshot_id, parsed_state(first.state_json), first.schema_version, classes)

    def take_run_id(self, task_type: str, input_json: str | None, new_id: str) -> str:
        """Return the id of the next run of a kind and an input; a fork has its own."""
        return self._take_id(self._run_ids.get(task_type), input_json, new_id)

    def take_task_id(self, task_type: str, input_json: str | None, new_id: str) -> str:
        """Return the id of the next task alike: so its worker's events are done again."""
        return self._take_id(self._task_ids.get(task_type), input_json, new_id)

    def _take_id(self, waiting: "list[_Begun] | None", input_json: str | None, new_id: str) -> str:
        with self._lock:
            if not waiting:
                return new_id
            same = (place for place, begun in enumerate(waiting) if begun.input_json == input_json)
            recorded = waiting.pop(next(same, 0)).run_id
            run_id = new_id if self._mode == "fork" else recorded
            self._recorded_ids[run_id] = recorded
            return run_id

    def answer(self, call: AskedCall) -> Any:
        """Answer a call. Raises `ReplayError`, and what the call raised in the record."""
        self._script.check_target()
        parameters = None if call.given is None else given_parameters(call.given)
        with self._lock:
            found = self._take(call, parameters)
            if found is not None and not found.runs:
                self.counts = self.counts._replace(served=self.counts.served + 1)
        if found is None:
            return self._miss(call, parameters)
        if found.runs:
            return call.execute()
        if found.error is not None:
            raise recorded_failure(found.error)
        result = self._load(found.result_json)
        return result if call.kind == "step" else restore_value(result, partial(self._stop_for_text, found))

    def _take(self, call: AskedCall, parameters: Json) -> RecordedCall | None:
        """Return the next equal call of the record that can be answered; None if there is none."""
        key = call_key(call.name, parameters)
        if key not in self._left and call.given is not None:  # perhaps too large to be kept whole
            key = call_key(call.name, cut_parameters(call.given))
        if key not in self._left and call.kind in ("tool", "step"):  # perhaps not kept: then any will do
            key = call_key(call.name, None)
        equal = self._left.get(key)
        if equal is None:
            return None
        place = self._nearest_place(call, equal)
        waiting = equal[place]
        if not ((waiting[0].is_known and call.kind != "block") or waiting[0].runs):
            return None
        found = waiting.popleft()
        if not waiting:
            del equal[place]
        if not equal:
            del self._left[key]
        return found

    def _nearest_place(self, call: AskedCall, equal: Mapping[CallPlace, deque[RecordedCall]]) -> CallPlace:
        """Return the place whose next call answers: that of the call, one in its run, or any one.

        Runs and steps may be at work at the same time, and each has its own answers.
        """
        run_id, step = call.place
        recorded = None if run_id is None else self.recorded_id(run_id)
        if (recorded, step) in equal:
            return recorded, step
        near = [place for place in equal if place[0] == recorded]
        return min(near or equal, key=lambda place: equal[place][0].offset)

    def _list_next(self) -> list[RecordedCall]:
        """Return the next call of each kind, input and place that is left."""
        return [waiting[0] for equal in self._left.values() for waiting in equal.values()]

    def _miss(self, call: AskedCall, parameters: Json) -> Any:
        came = describe_call(call.name, parameters)
        with self._lock:
            self.counts = self.counts._replace(missed=self.counts.missed + 1)
            unknown = call.given is None or any(
                not each.is_known and not each.runs and each.name == call.name
                for equal in self._left.values()
                for waiting in equal.values()
                for each in waiting
            )
            expected = min(self._list_next(), key=lambda each: each.offset, default=None)
            is_blocked = call.writes and call.name not in self._allow
            if self._mode == "fork":
                made = {"blocked": self.counts.blocked + 1} if is_blocked else {"executed": self.counts.executed + 1}
                self.counts = self.counts._replace(**made)
        if self._mode == "fork":
            if is_blocked:
                raise self._stop(ReplayBlocked(call.name, came))
            return call.execute()
        if self._mode == "stub" and self._stub is not None and call.kind != "block":
            return self._stub(MissedCall(call.kind, call.name, parameters))
        self._script.check_end()
        if unknown:
            raise self._stop(NotReplayable(f"{came} is not replayable: {_CAPTURE}"))
        session_id = self._record.key.session_id
        raise self._stop(ReplayMiss(session_id, None if expected is None else f"{expected}", came))

    def _stop_for_text(self, call: RecordedCall, kind: str) -> ReplayError:
        detail = (
            f"the record has the result of {call} as text only, as JSON cannot hold a {kind}: let the function return "
            "what JSON can hold, such as the result's fields, and record the session anew"
        )
        return self._stop(NotReplayable(detail))

    def _stop(self, error: ReplayError) -> ReplayError:
        self.failure = self.failure or error
        return error
