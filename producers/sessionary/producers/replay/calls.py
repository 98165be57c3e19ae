"""The calls in a session's record: their keys, and which of them the record can answer. Pure."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sessionary.producers.context.captured_call import CUT_MARK, cut_arguments, is_cut
from sessionary.producers.durable.call_keys import canonical_text
from sessionary.producers.durable.large_values import VALUE_BYTES_MAX, reference_in
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import any_json_text, json_value
from sessionary.schemas.codec import Event
from sessionary.schemas.events import (
    StepFailed,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.types import ErrorInfo

CallPlace = tuple[str | None, str | None]
CallKind = Literal["tool", "step", "traced", "client"]
_SHOWN = 300  # characters of a call's parameters, in errors
# Steps of the client itself, which it does again: a question in a run, and the loop over a list.
_QUESTION = re.compile(r"(.*/)?ask \[[0-9a-f]+\]( #\d+)?")
_ADDRESS = re.compile(r'(?<= at 0x)[0-9a-fA-F]+(?=[^"]*", ?"type": ?")')
_LIST_INPUT = '{"items":true}'


def call_key(name: str, parameters: Json) -> str:
    """Return the key by which a call finds its answer: the same in each process.

    SHA-256, as 64 hex digits, over the canonical JSON of the tool's name and its parameters, with
    sorted keys. A step has the step's name. Addresses in memory do not count.
    """
    parts = {"tool_name": name, "parameters": parameters}
    try:
        text = canonical_text(parts)
    except Invalid:  # a number beyond doubles, which only reported calls may have
        text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(without_addresses(text).encode()).hexdigest()


def without_addresses(text: str) -> str:
    """Return JSON without the addresses in what it could hold only as text with its type.

    Those of another process are others: `<Client object at 0x7f2759a4fd90>`.
    """
    return _ADDRESS.sub("", text) if " at 0x" in text else text


def parameters_of(text: str | None) -> Json:
    """Return a call's parameters by their JSON; None if the record does not have them.

    Of large ones, of which the record may have a reference only, that is their SHA-256.
    """
    if text is None:
        return None
    value = json.loads(text)
    reference = reference_in(value)
    if reference is not None:  # '' of those that were not kept
        return {"sha256": reference.rpartition(":")[2]} if reference else None
    if len(text.encode()) > VALUE_BYTES_MAX:
        return {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    return _without_types(value) if CUT_MARK in text else value


def _without_types(parameters: Any) -> Any:
    """Return parameters without the types of cut ones, which a replay knows as JSON has them."""
    if not isinstance(parameters, dict):
        return parameters
    return {
        name: {"text": value["text"], "bytes": value["bytes"]} if is_cut(value) else value
        for name, value in parameters.items()
    }


def given_parameters(given: Mapping[str, Any]) -> Json:
    """Return the parameters of a call that is made now, as `parameters_of` those of the record."""
    return parameters_of(any_json_text(json_value(dict(given)), "parameters"))


def cut_parameters(given: Mapping[str, Any]) -> Json:
    """Return the parameters of a call that is made now, as the record has those that it cut."""
    held = json_value(dict(given))
    return _without_types(cut_arguments(held, held))


def describe_call(name: str, parameters: Json) -> str:
    """Return a call for people: its name with its parameters."""
    if parameters is None:
        return f"{name}(…)"
    text = json.dumps(parameters, ensure_ascii=False)
    return f"{name}({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


class RecordedCall(NamedTuple):
    """One try of a call, or one attempt at a step, with its outcome.

    Attributes:
        kind: `tool`: a call of a tool; `step`: a step of a run; `traced`: reported work;
            `client`: a step of the client's own, which it does again.
        name: The tool's, or the step's.
        parameters: As `parameters_of` returns them; None: the record does not have them.
        offset: Of the event that began it.
        result_json: The result's JSON, or a reference of the artifact that has it.
        error: The failure, if it failed.
        is_known: The record has its outcome, with the result if it succeeded.
        runs: It is answered by the calls in it, which the record has: its own code runs again.
        place: The run and the step in which it was made; None: outside of any.
    """

    kind: CallKind
    name: str
    parameters: Json
    offset: int
    result_json: str | None = None
    error: ErrorInfo | None = None
    is_known: bool = False
    runs: bool = False
    place: CallPlace = (None, None)

    @property
    def key(self) -> str:
        """The key by which calls find it."""
        return call_key(self.name, self.parameters)

    def __str__(self) -> str:
        return f"{describe_call(self.name, self.parameters)} at offset {self.offset}"


class FoundCalls(NamedTuple):
    """The calls of a record in their order, and what happened inside those that are answered whole.

    `inside`: offsets of the events that the answered calls sent. Their code does not run again, so
    a replay does not send them. `unended`: those of the events that began a call which no replay
    asks for, as it has no end: its process died.
    """

    calls: Sequence[RecordedCall]
    inside: frozenset[int]
    unended: frozenset[int]


def find_calls(events: Sequence[tuple[int, Event]]) -> FoundCalls:
    """Return the calls of a session's events, which are given with their offsets, in order."""
    return _CallFinder(events).find()


class _CallFinder:
    """Pairs the beginnings of calls with their ends, and finds which call is in which."""

    def __init__(self, events: Sequence[tuple[int, Event]]) -> None:
        self._events = events
        self._open: dict[tuple[str, str], str] = {}  # event ids of beginnings
        self._calls: dict[str, RecordedCall] = {}  # by the id of the event that began it
        self._outer: dict[str, str] = {}  # by the id of an event, the call that it happened in
        self._children: dict[str, list[str]] = {}
        self._ends: dict[int, str] = {}  # by the offset of an end, the id of its beginning
        self._over: set[str] = set()  # event ids of the beginnings that have an end
        self._running: set[str] = set()  # those of the calls that the calls in them answer

    def find(self) -> FoundCalls:
        for offset, event in self._events:
            self._note_cause(event)
            self._note_call(offset, event)
        for event_id in self._calls:
            self._children.setdefault(self._outer.get(event_id, ""), []).append(event_id)
        for event_id in reversed(self._calls):  # the calls in a call began after it
            if self._runs(event_id):
                self._running.add(event_id)
        calls, inside, unended = list[RecordedCall](), set[int](), set[int]()
        for offset, event in self._events:
            event_id = event.envelope.event_id
            if self._is_inside(self._ends.get(offset, event_id)):
                inside.add(offset)
            elif event_id in self._calls and self._is_asked(event_id):
                place = event.envelope.run_id, self._step_of(event_id)
                calls.append(self._calls[event_id]._replace(runs=event_id in self._running, place=place))
            elif event_id in self._calls and event_id not in self._over:
                unended.add(offset)
        return FoundCalls(calls, frozenset(inside), frozenset(unended))

    def _note_cause(self, event: Event) -> None:
        cause = event.envelope.causation_id
        if cause is None:
            return
        outer = cause if cause in self._calls else self._outer.get(cause)
        if outer is not None:
            self._outer[event.envelope.event_id] = outer

    def _note_call(self, offset: int, event: Event) -> None:
        payload, envelope = event.payload, event.envelope
        step_id = envelope.step_id or ""
        if isinstance(payload, ToolCallStarted):
            self._open[payload.tool_call_id, f"{payload.try_number}"] = envelope.event_id
            self._open[payload.tool_call_id, ""] = envelope.event_id
            parameters = parameters_of(payload.args_json)
            self._calls[envelope.event_id] = RecordedCall("tool", payload.tool_name, parameters, offset)
        elif isinstance(payload, StepStarted):
            self._open[step_id, payload.name] = envelope.event_id
            kind: CallKind = "step" if payload.attempt else "traced"
            if payload.attempt and (payload.input_json == _LIST_INPUT or _QUESTION.fullmatch(payload.name)):
                kind = "client"
            parameters = parameters_of(payload.input_json)
            self._calls[envelope.event_id] = RecordedCall(kind, payload.name, parameters, offset)
        elif isinstance(payload, ToolCallSucceeded):
            self._end(offset, (payload.tool_call_id, f"{payload.try_number}"), payload.result_json, None)
        elif isinstance(payload, ToolCallFailed):
            self._end(offset, (payload.tool_call_id, f"{payload.try_number}"), None, payload.error)
        elif isinstance(payload, ToolCallResolved) and payload.outcome == "succeeded":
            self._end(offset, (payload.tool_call_id, ""), payload.result_json or "null", None)
        elif isinstance(payload, StepSucceeded):
            self._end(offset, (step_id, payload.name), payload.output_json, None)
        elif isinstance(payload, StepFailed):
            self._end(offset, (step_id, payload.name), None, payload.error)

    def _end(self, offset: int, key: tuple[str, str], result_json: str | None, error: ErrorInfo | None) -> None:
        event_id = self._open.get(key)
        if event_id is None:
            return
        self._ends[offset] = event_id
        call = self._calls[event_id]
        is_known = error is not None or (result_json is not None and not _is_cut(result_json))
        # A failure of work that is not captured tells nothing of its arguments.
        is_known = is_known and (call.parameters is not None or call.kind != "traced")
        self._calls[event_id] = call._replace(result_json=result_json, error=error, is_known=is_known)
        self._over.add(event_id)

    def _is_asked(self, event_id: str) -> bool:
        """Return whether a replay asks for a call: one with an end, or the step of the end."""
        call = self._calls[event_id]
        if event_id in self._over or call.kind != "step":
            return event_id in self._over and call.kind != "client"
        later = (self._calls[each] for each in self._over)
        return event_id in self._running and all(each.offset < call.offset or each.key != call.key for each in later)

    def _runs(self, event_id: str) -> bool:
        """Return whether the calls in a call answer it: there are some, and all can be answered."""
        call = self._calls[event_id]
        if call.kind == "tool" or (call.kind == "traced" and call.is_known):
            return False
        inner = self._inner(event_id)
        return bool(inner) and all(map(self._is_answered, inner))

    def _is_answered(self, event_id: str) -> bool:
        if self._calls[event_id].kind == "client":
            return all(map(self._is_answered, self._inner(event_id)))
        return self._calls[event_id].is_known or event_id in self._running

    def _inner(self, event_id: str) -> list[str]:
        return [each for each in self._children.get(event_id, ()) if each in self._over]

    def _step_of(self, event_id: str) -> str | None:
        """Return the name of the step in which a call was made. That of a step says it itself."""
        if self._calls[event_id].kind == "step":
            return None
        outer = self._outer.get(event_id)
        while outer is not None and self._calls[outer].kind != "step":
            outer = self._outer.get(outer)
        return None if outer is None else self._calls[outer].name

    def _is_inside(self, event_id: str) -> bool:
        """Return whether an event happened in a call that is answered whole."""
        outer = self._outer.get(event_id)
        while outer is not None:
            call = self._calls[outer]
            if call.kind != "client" and call.is_known and outer not in self._running:
                return True
            outer = self._outer.get(outer)
        return False


def _is_cut(result_json: str) -> bool:
    """Return whether a captured result is the beginning of a value only."""
    if CUT_MARK not in result_json:
        return False
    value = json.loads(result_json)
    if isinstance(value, list):
        last = value[-1] if value else None
        return isinstance(last, str) and last.startswith(f"{CUT_MARK} ") and last.endswith(" more")
    return is_cut(value)
