"""The runs of a session, and its tasks for workers."""

import uuid
from collections.abc import Mapping, Sequence
from functools import partial

from sessionary.producers.context.run_beats import RunBeats
from sessionary.producers.context.scope import EventMetadata, current_scope, envelope_fields
from sessionary.producers.durable.call_keys import checked_text
from sessionary.producers.durable.flow import Do, Flow, Send
from sessionary.producers.durable.run_block import Run, RunStart, check_expected
from sessionary.producers.errors import Invalid, RunGone, StateMismatch, Unavailable
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import to_json_text
from sessionary.producers.run_ports import ArtifactView, ExecutionView
from sessionary.producers.session.conversation import Questions
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.schemas.events import RunQueued, RunStarted
from sessionary.schemas.ids import content_hash, new_task_id
from sessionary.schemas.limits import with_defaults
from sessionary.schemas.types import RunMode

_TASKS_MAX = 1_000  # positions of tasks that a client remembers


class Runs:
    """The runs and tasks of one session. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def run(
        self,
        task_type: str,
        mode: RunMode,
        expected_ms: int | None,
        given: tuple[Json, Json, Mapping[str, str]],
        resume: bool,
        quota_wait_s: float | None,
        snapshots: bool | None,
        metadata: EventMetadata,
    ) -> Run:
        """Return a run, which begins with its block.

        `given`: its input, its plan, and the versions of its prompts.
        """
        if resume and not metadata.get("run_id"):
            raise Invalid("invalid_value", "resume=True needs the run_id of the run")
        check_expected(mode, expected_ms, with_defaults(self._core.view.limits))
        answers = self._core.services.answers
        run_id = metadata.get("run_id") or str(uuid.uuid4())
        texts = zip(given[:2], ("input", "plan"), strict=True)
        input_json, plan_json = (None if value is None else to_json_text(value, name) for value, name in texts)
        if answers is not None and not metadata.get("run_id"):
            run_id = answers.take_run_id(task_type, input_json, run_id)
        started = RunStarted(mode, task_type, input_json, plan_json, dict(given[2]))
        return self._new_run(run_id, started, metadata, resume=resume, wait_s=quota_wait_s, snapshots=snapshots)

    def resume_run(
        self, run_id: str, from_checkpoint: str | None, snapshots: bool | None, metadata: EventMetadata
    ) -> Run:
        """Return a run that has begun before."""
        return self._new_run(run_id, None, metadata, resume=True, from_checkpoint=from_checkpoint, snapshots=snapshots)

    def start_task(self, task_type: str, given: Json, timeout_s: float, metadata: EventMetadata) -> Flow[str]:
        """Ask the workers for a task; return its id once Kafka has the request.

        A run that is continued asks for each of its tasks once: it finds the one of before.
        """
        key, input_json = self._core.emitter.key, None if given is None else to_json_text(given, "input")
        place = None if self._core.services.runs is None else current_scope().place_in(self._core.session_id)
        if place is None:
            task_id, answers = new_task_id(key), self._core.services.answers
            if answers is not None:
                task_id = answers.take_task_id(task_type, input_json, task_id)
            return (yield from self._request_task(task_id, task_type, input_json, timeout_s, metadata))
        request = f"{place.find_path()} {task_type} {input_json}"
        with place.calls.hold_number(request) as number:
            task_id = new_task_id(key, f"{place.run_id} {number} {request}")
            if not (yield Do(partial(self._is_known, task_id))):
                yield from self._request_task(task_id, task_type, input_json, timeout_s, metadata)
            return task_id

    def _is_known(self, task_id: str) -> bool:
        runs, timeout_s = self._core.services.runs, self._core.services.verdict_timeout_s
        assert runs is not None
        try:
            return runs.fetch_run(self._core.session_id, task_id, None, timeout_s) is not None
        except RunGone:
            return True

    def _request_task(
        self, task_id: str, task_type: str, input_json: str | None, timeout_s: float, metadata: EventMetadata
    ) -> Flow[str]:
        fields = envelope_fields({**metadata, "run_id": task_id})
        queued = RunQueued("detached", task_type, input_json)
        asked = yield Send(partial(self._core.send_awaited, queued, fields))
        yield Do(partial(self._wait_task, task_id, asked, timeout_s))
        return task_id

    def note_task(self, task_id: str, log_position: tuple[int, int] | None) -> None:
        """Remember the place of a task's request: questions about the task wait for its verdict."""
        positions = self._core.services.task_positions
        if log_position is not None:
            positions[task_id] = log_position
        while len(positions) > _TASKS_MAX:
            positions.pop(next(iter(positions)), None)

    def _new_run(
        self,
        run_id: str,
        started: RunStarted | None,
        metadata: EventMetadata,
        *,
        resume: bool,
        wait_s: float | None = None,
        from_checkpoint: str | None = None,
        snapshots: bool | None = None,
    ) -> Run:
        core = self._core
        core.view.require_held()
        checked_text(f"{run_id}", "run_id")
        fields = envelope_fields(metadata)._replace(run_id=run_id)
        recorder = core.recorder()._replace(until_answered=Questions(core).until_answered)
        if snapshots is not None:
            recorder = recorder._replace(snapshots=snapshots)
        beats = RunBeats(
            core.services.heartbeats, core.beats.send_run_beat, lambda: core.emitter.last_seq, recorder.waits.now_s
        )
        wait_s = core.services.quota_wait_s if wait_s is None else wait_s
        return Run(
            core.call_reporter(), recorder, RunStart(run_id, started, fields, resume, wait_s, from_checkpoint), beats
        )

    def _wait_task(self, task_id: str, asked: PendingVerdict, timeout_s: float) -> None:
        """Wait until Kafka has the request for a task."""
        try:
            log_position = asked.wait_position(timeout_s)
        except Unavailable as error:
            raise Unavailable(f"task {task_id}: {error}", error.retry_after_s) from None
        self.note_task(task_id, log_position)


# A session's reads of the processor that it does not adopt: execution, artifacts, its state.


class RecordedReads:
    """The questions about one session. Thread-safe; each waits as `Session.sync` does."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def execution(self) -> ExecutionView:
        """Return the session's open runs, their steps and tool calls."""
        session_id = self._core.session_id
        return self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_execution(session_id, after, timeout_s), ExecutionView((), ())
        )

    def artifacts(self, run_id: str | None) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation."""
        session_id = self._core.session_id
        return self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_artifacts(session_id, run_id, after, timeout_s), ()
        )

    def verify(self) -> None:
        """Compare version and hash of the local state with the processor's."""
        core, mine = self._core, self._core.view
        while True:
            with core.lock:
                known = mine.version, mine.state_json
            view = core.fetch_judged(core.services.control.fetch_session)
            if (view.version, view.state_json) == known:
                return
            if known == (mine.version, mine.state_json):  # else another thread updated it meanwhile
                committed = view.version, content_hash(view.state_json)
                raise StateMismatch(core.session_id, (known[0], content_hash(known[1])), committed)
