"""The steps of one run: each is recorded, and one that succeeded before is not run again."""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sessionary.producers.context.call_counts import AttemptCalls
from sessionary.producers.context.error_info import to_error_info
from sessionary.producers.context.scope import AskedCall, ModelShare, WorkContext, added_metadata, current_scope
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.call_keys import checked_text
from sessionary.producers.durable.errors import ResultTooLarge, RunOver
from sessionary.producers.durable.flow import Call, Do, Flow
from sessionary.producers.durable.large_values import (
    STEP_INPUT,
    STEP_OUTPUT,
    is_stored_text,
    load_value,
    lost_text,
    reference_in,
    store_value,
)
from sessionary.producers.durable.recorder import Judged, Recorder, SentEvent
from sessionary.producers.durable.resume_plan import DONE_STATES, describe_retry
from sessionary.producers.durable.run_items import RunProgress
from sessionary.producers.errors import Invalid, ModelTimeout, NotAllowed, Rejected, SessionaryError, Unavailable
from sessionary.producers.process.safe_text import any_json_text, json_value
from sessionary.producers.run_ports import CallView, StepView
from sessionary.schemas.events import StepFailed, StepSkipped, StepStarted, StepSucceeded
from sessionary.schemas.limits import MODEL_LIMIT, NAME_CHARACTERS_MAX
from sessionary.schemas.types import Checkpoint, ErrorInfo


class RunSteps:
    """The known steps of one run."""

    def __init__(self, recorder: Recorder, run_id: str, catch_up: Callable[[], Flow[None]]) -> None:
        """`catch_up` reads the run again, resumes it if it was held, and adopts its records."""
        self._catch_up = catch_up
        self._refused: set[str] = set()  # steps whose beginning was refused, and is tried once more
        self._interrupted: set[str] = set()  # adopted steps that this process has not begun again
        self.is_over = False  # the run is completed: nothing is sent any more
        self.is_detached = False
        self.known_calls: dict[str, CallView] = {}
        self._recorder = recorder
        self._run_id = run_id
        self._known: dict[str, StepView] = {}
        self._open: dict[str, object] = {}  # what began a step, by the step's name and key
        self._ended_calls = set[str]()
        self._outside = AttemptCalls(self._ended_calls)  # the steps that are in no other step
        self.progress = RunProgress(recorder, run_id)
        self._finished_lists: set[str] = set()
        self._done_again: set[str] = set()  # lists of a run that has gone back to a checkpoint of theirs
        self._over: dict[str, dict[str, str]] = {}  # by step: its calls of models that took too long

    def adopt(self, steps: Iterable[StepView], calls: Iterable[CallView], checkpoint: Checkpoint | None) -> None:
        """Adopt the processor's records of a run that is resumed."""
        self.progress.last, self.progress.is_resumed = checkpoint, True
        for step in steps:
            self._known[step.name] = step
            if step.state not in DONE_STATES:
                self._interrupted.add(step.name)
        self.known_calls.update((call.idem_key, call) for call in calls)

    def until_answered(self) -> Flow[bool]:
        """Wait while a person is asked, unless the run goes on without its session; return whether
        one was.
        """
        return not (self.is_detached or self.is_over) and (yield from self._recorder.until_answered())

    def _send(self, send: Callable[[], Any]) -> Flow[Any]:
        """Send an event of the run once no person is asked; another task may ask at any moment."""
        while True:
            yield from self.until_answered()
            try:
                return (yield Do(send))
            except NotAllowed as refused:
                if self.is_detached or not (self._recorder.was_asking(refused) or self._recorder.is_asking()):
                    raise

    def place(self, step_name: str | None = None) -> WorkContext:
        """Return the place of work in the run, or in a new attempt at one of its steps."""
        calls = self._outside if step_name is None else AttemptCalls(self._ended_calls)
        border = self.progress.save_border
        path = partial(self._find_path, step_name)
        parts = self.known_calls, border, calls, path, self.record, self.until_answered
        return WorkContext(self._recorder, self._run_id, step_name, *parts)

    def _find_path(self, step_name: str | None) -> str | None:
        """Return the path of work in a step, and in the item of a list that it works through."""
        # A resumed list begins after the items that are done: each item counts by itself.
        item = self.progress.item_name()
        if item is None or f"/{item}/" in f"/{step_name}/":
            return step_name
        return item if step_name is None else f"{step_name}/{item}"

    def begin_list(self, name: str, saved: int | None) -> Flow[EnvelopeFields | None]:
        """Begin a list as a step; None if it was worked through. Raises as `Run.items` does.

        `saved`: the items that its last checkpoint has. If these are fewer than the step's, the run
        has gone back to that checkpoint, and works through the rest again.
        """
        if name in self._finished_lists:
            raise Invalid("invalid_value", f"the list {name!r} was worked through: give each list a name of its own")
        known = self._known.get(name)
        if known is not None and known.state in DONE_STATES:
            known = yield from self._with_output(known)
            if not self.is_over and saved is not None and saved < _items_in(known):
                self._done_again.add(name)
                return EnvelopeFields(run_id=self._run_id)
            yield from self._skip(known, None)
            self._finished_lists.add(name)
            return None
        attempt, fields = self._new_attempt(known)
        started = StepStarted(_checked_name(name), attempt, '{"items":true}', reason=self._reason_of(known))
        if (yield from self._begin(started, fields)) is None:
            return (yield from self.begin_list(name, saved))
        self._known[name] = StepView(name, "running", attempt)
        return fields

    def finish_list(self, name: str, count: int, fields: EnvelopeFields) -> Flow[None]:
        """Record that a list was worked through. Raises as `Run.items` does."""
        if name in self._done_again:
            self._finished_lists.add(name)
            return
        attempt = self._known[name].attempt
        done = StepSucceeded(name, attempt, f'{{"items":{count}}}')
        yield from self._send(lambda: self._recorder.send_acknowledged(done, fields))
        self._known[name] = StepView(name, "succeeded", attempt, None, done.output_json)
        self._finished_lists.add(name)

    def step(
        self,
        name: str,
        function: Callable[[], Any],
        given: Mapping[str, Any],
        limit_ms: int | None = None,
        key: str | None = None,
    ) -> Flow[Any]:
        """Run a step and return its output; `given` is its input. Raises as `Run.step` does."""
        calls, full_name = self._find_place(_checked_name(name if key is None else f"{name} [{_checked_key(key)}]"))
        with calls.hold_number(full_name) as number:
            if self._open.setdefault(full_name, begun := object()) is not begun:
                raise Invalid(
                    "invalid_value",
                    f"the step {name!r} begins while one of this name and key is open: steps at the same time "
                    "need keys of their own, run.step(..., key=...), by which a resumed run tells them apart",
                )
            try:
                numbered = full_name if number == 1 or key is not None else f"{full_name} #{number}"
                if (answers := self._recorder.answers) is not None:
                    place = self._run_id, None
                    asked = AskedCall("step", numbered, given, writes=False, execute=function, place=place)
                    function = partial(answers.answer, asked)
                return (yield from self._step(_checked_name(numbered), partial(_call, function), given, limit_ms))
            finally:
                del self._open[full_name]

    def record(self, name: str, given: Mapping[str, Any], work: Callable[[str], Flow[Any]]) -> Flow[Any]:
        """Do work of the client as a step at the present place; return its output, as JSON has it.

        `work` gets the step's full name. Equal ones may be open at the same time.
        """
        calls, full_name = self._find_place(name)
        with calls.hold_number(full_name) as number:
            numbered = _checked_name(full_name if number == 1 else f"{full_name} #{number}")
            return (yield from self._step(numbered, lambda _: work(numbered), given, None))

    def _find_place(self, name: str) -> tuple[AttemptCalls, str]:
        """Return what numbers the steps of the present place, and the path of one of them."""
        place = current_scope().place
        if place is not None and place.recorder is self._recorder:
            # A step that is done does not begin its inner steps again: these count by themselves.
            path, calls = place.find_path(), place.calls
        else:
            path, calls = self._find_path(None), self._outside
        return calls, name if path is None else f"{path}/{name}"

    def _step(
        self,
        name: str,
        work: Callable[[ModelTimeout | None], Flow[Any]],
        given: Mapping[str, Any],
        limit_ms: int | None,
    ) -> Flow[Any]:
        known = self._known.get(name)
        if known is not None and known.state in DONE_STATES:
            return (yield from self._skip(known, given))
        attempt, fields = self._new_attempt(known)
        input_json: str | None = yield Do(lambda: self._input_of(given, fields))
        started = StepStarted(name, attempt, input_json, limit_ms, self._reason_of(known))
        event_id = yield from self._begin(started, fields)
        if event_id is None:
            return (yield from self._step(name, work, given, limit_ms))
        self._known[name] = StepView(name, "running", attempt)
        fields = fields._replace(causation_id=event_id)
        late = None if limit_ms is None else ModelTimeout(f"step {name}", limit_ms)
        now_s = self._recorder.waits.now_s
        began_s, place = now_s(), self.place(name)._replace(share=self._share_of(name, known))
        try:
            with added_metadata(self._recorder.key.session_id, fields, place):
                output = yield from work(late)
            if late is not None and (now_s() - began_s) * 1_000 > late.limit_ms:
                raise late
            what = f"the output of step {name}"
            stored = yield Do(lambda: store_value(self._recorder, output, what, STEP_OUTPUT, fields))
        except BaseException as error:
            info = to_error_info(error)
            # At the limit the processor fails the attempt: then it would reject events about the
            # attempt.
            is_judged = late is not None and (error is late or (now_s() - began_s) * 1_000 > late.limit_ms)
            yield Do(lambda: self._fail(name, attempt, info, None if is_judged else fields))
            raise
        done = StepSucceeded(name, attempt, stored.text)
        yield from self._send(lambda: self._recorder.send_acknowledged(done, fields))
        self._known[name] = StepView(name, "succeeded", attempt, None, stored.text, input_json)
        return output

    def _new_attempt(self, known: StepView | None) -> tuple[int, EnvelopeFields]:
        """Return the number of the attempt after `known`, and the fields of its events."""
        if self.is_over:
            raise RunOver(self._run_id, "completed")
        attempt = 1 if known is None else known.attempt + 1
        return attempt, EnvelopeFields(run_id=self._run_id, step_id=str(uuid.uuid4()))

    def _begin(self, started: StepStarted, fields: EnvelopeFields) -> Flow[str | None]:
        """Begin an attempt at a step; return the event's id.

        If another process had begun the step, the event is judged first. Returns None if it was
        refused, and the run goes on now with newer records: it was held meanwhile, as a call of the
        dead process came to its limit, or a person was asked. Raises `Rejected` the second time.
        """
        recorder = self._recorder
        if started.name not in self._interrupted:
            sent: SentEvent = yield from self._send(lambda: recorder.send(started, fields))
            return sent.event_id
        fetch = partial(recorder.fetch_run, self._run_id)
        judged: Judged = yield from self._send(lambda: recorder.ask(started, fields, fetch))
        self._interrupted.discard(started.name)
        if judged.rejection is None:
            return judged.event_id
        if started.name in self._refused:
            raise Rejected("step_started", judged.rejection)
        self._refused.add(started.name)
        recorder.keep_rejection(judged.event_id, judged.rejection)
        yield from self._catch_up()
        return None

    def _reason_of(self, known: StepView | None) -> str | None:
        """Return why a step is tried again after `known`; None if it is not."""
        return None if known is None else describe_retry(known)

    def _skip(self, known: StepView, given: Mapping[str, Any] | None) -> Flow[Any]:
        """Return the stored output of a step; `given`: its input now, None of a list."""
        known = yield from self._with_output(known)
        if given is not None:
            _check_same_input(known, given)
        if not self.is_over:
            reason = f"succeeded in attempt {known.attempt}: its stored output is used"
            if known.state == "skipped":
                reason = "skipped before"
            skipped = StepSkipped(known.name, reason)
            yield from self._send(lambda: self._recorder.send(skipped, EnvelopeFields(run_id=self._run_id)))
        output = yield Do(lambda: load_value(self._recorder.artifacts, known.output_json))
        return output

    def _with_output(self, known: StepView) -> Flow[StepView]:
        if known.state == "succeeded" and known.output_json is None:
            known = yield Do(lambda: self._fetch(known.name))
            self._known[known.name] = known
        return known

    def _input_of(self, given: Mapping[str, Any], fields: EnvelopeFields) -> str | None:
        """Return a step's input as its event has it: what JSON cannot hold as text."""
        try:
            return store_value(self._recorder, json_value(dict(given)), "input", STEP_INPUT, fields).text
        except ResultTooLarge as error:
            return lost_text(error, STEP_INPUT)

    def _fetch(self, name: str) -> StepView:
        recorder = self._recorder
        found = recorder.known.fetch_step(recorder.key.session_id, self._run_id, name, recorder.timeout_s)
        if found is None or found.output_json is None:
            raise Unavailable(f"the output of step {name} of run {self._run_id} is not there", 1.0)
        return found

    def _share_of(self, name: str, known: StepView | None) -> ModelShare:
        """Return the slow calls of models in an attempt; `known`: the one before."""
        over = self._over.setdefault(name, {})
        was_over = known is not None and known.error is not None and known.error.code == MODEL_LIMIT
        return ModelShare(was_over and not over, over)

    def _fail(self, name: str, attempt: int, error: ErrorInfo, fields: EnvelopeFields | None) -> None:
        """Record that an attempt failed, and raise nothing: the caller must see its own error.

        `fields`: those of the event; None: the processor knows it without one.
        """
        self._known[name] = StepView(name, "failed", attempt, error)
        if fields is None or not (self.is_detached or self._recorder.is_active()):
            return  # in any other state the processor would reject it
        try:
            self._recorder.send(StepFailed(name, attempt, error), fields)
        except SessionaryError as lost:
            self._recorder.on_error(lost)


def _call(function: Callable[[], Any], late: ModelTimeout | None) -> Flow[Any]:
    return (yield Call(function, late))


def _items_in(known: StepView) -> int:
    """Return how many items a list had that was worked through."""
    output = json.loads(known.output_json or "{}")
    items = output.get("items") if isinstance(output, dict) else None
    return items if isinstance(items, int) else 0


def _check_same_input(known: StepView, given: Mapping[str, Any]) -> None:
    """Raise `Invalid` if a step was done with another input than it is given now."""
    if known.input_json is None:
        return  # the step was skipped before it began
    plain = dict(given)
    held = json_value(plain)
    text = any_json_text(held, "input")
    if not (is_stored_text(known.input_json, text) if held is plain else _is_alike(known.input_json, text)):
        raise Invalid(
            "invalid_value",
            f"the step {known.name!r} was done with the arguments {known.input_json:.300}, and is given {text:.300}: "
            "its stored output is not that of these. Begin the steps in the same order and with the same arguments as "
            "before, or tell them apart by run.step(..., key=...)",
        )


def _is_alike(stored: str, text: str) -> bool:
    """Return whether two inputs are equal, but for the text of what JSON cannot hold.

    That differs from process to process: its type counts. An artifact is not compared.
    """
    kept = json.loads(stored)
    return reference_in(kept) is not None or _only_types(kept) == _only_types(json.loads(text))


def _only_types(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"text", "type"}:
            return value["type"]
        return {key: _only_types(item) for key, item in value.items()}
    return [_only_types(item) for item in value] if isinstance(value, list) else value


def _checked_key(key: object) -> str:
    if isinstance(key, str) and key:
        return checked_text(key, "the key of a step")
    raise Invalid("invalid_value", f"the key of a step is {key!r:.80}: use a text of at least 1 character")


def _checked_name(name: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX:
        return checked_text(name, "the name of a step")
    raise Invalid("invalid_value", f"a step is named {name!r:.80}: use a text of 1 to {NAME_CHARACTERS_MAX} characters")
