"""The steps of one run: each is recorded, and one that succeeded before is not run again."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sessionary.producers.context.error_info import to_error_info
from sessionary.producers.context.scope import ModelShare, WorkContext, added_metadata
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import RunOver
from sessionary.producers.durable.flow import Call, Do, Flow
from sessionary.producers.durable.large_values import STEP_INPUT, STEP_OUTPUT, load_value, store_value
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.resume_plan import DONE_STATES, describe_retry
from sessionary.producers.durable.run_items import RunProgress
from sessionary.producers.errors import Invalid, ModelTimeout, SessionaryError, Unavailable
from sessionary.producers.run_ports import CallView, StepView
from sessionary.schemas.events import StepFailed, StepSkipped, StepStarted, StepSucceeded
from sessionary.schemas.limits import MODEL_LIMIT, NAME_CHARACTERS_MAX
from sessionary.schemas.types import Checkpoint, ErrorInfo


class RunSteps:
    """The known steps of one run. Not for two threads at the same step."""

    def __init__(self, recorder: Recorder, run_id: str) -> None:
        self.is_over = False  # the run is completed: nothing is sent any more
        self.known_calls: dict[str, CallView] = {}
        self._recorder = recorder
        self._run_id = run_id
        self._known: dict[str, StepView] = {}
        self.progress = RunProgress(recorder, run_id)
        self._finished_lists: set[str] = set()
        self._over: dict[str, dict[str, str]] = {}  # by step: its calls of models that took too long

    def adopt(self, steps: Iterable[StepView], calls: Iterable[CallView], checkpoint: Checkpoint | None) -> None:
        """Adopt the processor's records of a run that is resumed."""
        self.progress.last = checkpoint
        self._known.update((step.name, step) for step in steps)
        self.known_calls.update((call.idem_key, call) for call in calls)

    def place(self, step_name: str | None = None) -> WorkContext:
        """Return the place of work in the run, or in one of its steps."""
        return WorkContext(self._recorder, self._run_id, step_name, self.known_calls, self.progress.save_border)

    def begin_list(self, name: str) -> Flow[EnvelopeFields | None]:
        """Begin a list as a step; None if it was worked through. Raises as `Run.items` does."""
        if name in self._finished_lists:
            raise Invalid("invalid_value", f"the list {name!r} was worked through: give each list a name of its own")
        known = self._known.get(name)
        if known is not None and known.state in DONE_STATES:
            yield from self._skip(known)
            self._finished_lists.add(name)
            return None
        attempt, fields = self._new_attempt(known)
        started = StepStarted(_checked_name(name), attempt, '{"items":true}', reason=self._reason_of(known))
        yield Do(lambda: self._recorder.send(started, fields))
        self._known[name] = StepView(name, "running", attempt)
        return fields

    def finish_list(self, name: str, count: int, fields: EnvelopeFields) -> Flow[None]:
        """Record that a list was worked through. Raises as `Run.items` does."""
        attempt = self._known[name].attempt
        done = StepSucceeded(name, attempt, f'{{"items":{count}}}')
        yield Do(lambda: self._recorder.send_acknowledged(done, fields))
        self._known[name] = StepView(name, "succeeded", attempt, None, done.output_json)
        self._finished_lists.add(name)

    def step(
        self, name: str, function: Callable[[], Any], given: Mapping[str, Any], limit_ms: int | None = None
    ) -> Flow[Any]:
        """Run a step and return its output; `given` is its input. Raises as `Run.step` does."""
        known = self._known.get(name)
        if known is not None and known.state in DONE_STATES:
            return (yield from self._skip(known))
        attempt, fields = self._new_attempt(known)
        self._known[name] = StepView(name, "running", attempt)
        input_json = yield Do(lambda: self._input_of(given, fields))
        started = StepStarted(_checked_name(name), attempt, input_json, limit_ms, self._reason_of(known))
        event_id = (yield Do(lambda: self._recorder.send(started, fields))).event_id
        fields = fields._replace(causation_id=event_id)
        late = None if limit_ms is None else ModelTimeout(f"step {name}", limit_ms)
        now_s = self._recorder.waits.now_s
        began_s, place = now_s(), self.place(name)._replace(share=self._share_of(name, known))
        try:
            with added_metadata(self._recorder.key.session_id, fields, place):
                output = yield Call(function, late)
            if late is not None and (now_s() - began_s) * 1_000 > late.limit_ms:
                raise late
            what = f"the output of step {name}"
            stored = yield Do(lambda: store_value(self._recorder, output, what, STEP_OUTPUT, fields))
        except BaseException as error:
            # An interruption of a step is no failure of its work.
            info = to_error_info(error, retryable=None if isinstance(error, Exception) else True)
            # At the limit the processor fails the attempt: then it would reject events about the
            # attempt.
            is_judged = late is not None and (error is late or (now_s() - began_s) * 1_000 > late.limit_ms)
            yield Do(lambda: self._fail(name, attempt, info, None if is_judged else fields))
            raise
        done = StepSucceeded(name, attempt, stored.text)
        yield Do(lambda: self._recorder.send_acknowledged(done, fields))
        self._known[name] = StepView(name, "succeeded", attempt, None, stored.text)
        return output

    def _new_attempt(self, known: StepView | None) -> tuple[int, EnvelopeFields]:
        """Return the number of the attempt after `known`, and the fields of its events."""
        if self.is_over:
            raise RunOver(self._run_id, "completed")
        attempt = 1 if known is None else known.attempt + 1
        return attempt, EnvelopeFields(run_id=self._run_id, step_id=str(uuid.uuid4()))

    def _reason_of(self, known: StepView | None) -> str | None:
        """Return why a step is tried again after `known`; None if it is not."""
        return None if known is None else describe_retry(known)

    def _skip(self, known: StepView) -> Flow[Any]:
        if known.state == "succeeded" and known.output_json is None:
            known = yield Do(lambda: self._fetch(known.name))
            self._known[known.name] = known
        if not self.is_over:
            reason = f"succeeded in attempt {known.attempt}: its stored output is used"
            if known.state == "skipped":
                reason = "skipped before"
            skipped = StepSkipped(known.name, reason)
            yield Do(lambda: self._recorder.send(skipped, EnvelopeFields(run_id=self._run_id)))
        output = yield Do(lambda: load_value(self._recorder.artifacts, known.output_json))
        return output

    def _input_of(self, given: Mapping[str, Any], fields: EnvelopeFields) -> str | None:
        """Return a step's input as its event has it; None if JSON cannot hold it."""
        try:
            return store_value(self._recorder, dict(given), "input", STEP_INPUT, fields).text
        except Invalid:
            return None

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
        if fields is None:
            return
        try:
            self._recorder.send(StepFailed(name, attempt, error), fields)
        except SessionaryError as lost:
            self._recorder.on_error(lost)


def _checked_name(name: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX:
        return name
    raise Invalid("invalid_value", f"a step is named {name!r:.80}: use a text of 1 to {NAME_CHARACTERS_MAX} characters")
