"""The verbs for the work in a session.

They hand an event over and return, without waiting for Kafka; only `update_state` waits until Kafka
has it. Under delivery policy `block` they wait for room in the queue.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Unpack

from sessionary.producers.context.marks import NO_FIELDS, BlockMarks, Marks, block_fields, envelope_fields, epoch_us
from sessionary.producers.context.model_call import ModelCall
from sessionary.producers.context.run_beats import RunBeats
from sessionary.producers.context.scope import CallReporter, P, T, added_marks, bind_function
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.run_block import Run, RunStart, check_expected
from sessionary.producers.errors import Invalid, Unavailable
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import to_json_text
from sessionary.producers.session.late_verdict import LateVerdicts
from sessionary.producers.session.pending_verdict import PendingVerdict, wait_acknowledged
from sessionary.producers.session.state_json import canonical_json
from sessionary.schemas.events import (
    Payload,
    ProgressReported,
    RunQueued,
    RunStarted,
    SessionActivity,
    SnapshotCreated,
    StateUpdated,
    UsageRecorded,
)
from sessionary.schemas.ids import new_task_id
from sessionary.schemas.limits import with_defaults
from sessionary.schemas.types import RunMode

_TASKS_MAX = 1_000  # places of tasks that a client remembers


class SessionWork(LateVerdicts):
    """The verbs for the work in a session. Thread-safe."""

    def emit(
        self,
        payload: Payload,
        *,
        occurred_at: datetime | None = None,
        **marks: Unpack[Marks],
    ) -> str:
        """Send an event of any class in `sessionary.schemas.events`.

        Does not change `local_state`: prefer the other verbs for events of the session's life.

        Args:
            payload: The event.
            occurred_at: When it happened; must have a timezone. None means now.
            marks: What else the envelope says, as in `Marks`; every verb takes them.

        Returns:
            The event's id, a UUID.

        Raises:
            Invalid: A value does not fit the event's schema or is out of bounds (a negative count,
                a name of more than 256 characters), the event is larger than 1 MiB, or
                `occurred_at` has no timezone.
            QueueFull: Under delivery policy `block` there was no room in time.
            NotAllowed: The session's state, or its owner, does not allow the event. What another
                process may have made possible is sent.
            SessionEnded: This object has ended the session.
            SessionFenced: Another process took the session over, and `sync` has found out.
            VerdictPending: A verdict is awaited.
            ClientClosed: The client is closed.
        """
        return self._send_event(payload, envelope_fields(marks, None if occurred_at is None else epoch_us(occurred_at)))

    def activity(self, kind: str, text: str | None = None, **marks: Unpack[Marks]) -> str:
        """Report work of some kind (`llm`, `tool`, `user` …). It counts as a sign of life.

        Returns the event's id. Raises as `emit` does.
        """
        return self._send_event(SessionActivity(kind, text), envelope_fields(marks) if marks else NO_FIELDS)

    def info(self, text: str, **marks: Unpack[Marks]) -> str:
        """Report a text for people, as an activity of kind `info`.

        Returns the event's id. Raises as `emit` does.
        """
        return self._send_event(SessionActivity("info", text), envelope_fields(marks) if marks else NO_FIELDS)

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None, **marks: Unpack[Marks]
    ) -> str:
        """Report progress of the current work: `progress` out of `total`, in any unit.

        Returns the event's id. Raises as `emit` does.
        """
        reported = ProgressReported(float(progress), total, message)
        return self._send_event(reported, envelope_fields(marks) if marks else NO_FIELDS)

    def usage(
        self,
        *,
        model: str | None = None,
        tokens_in: int = 0,
        tokens_out: int = 0,
        model_cost_usd_micros: int = 0,
        tool_cost_usd_micros: int = 0,
        is_timeout_retry: bool = False,
        retry_of: str | None = None,
        **marks: Unpack[Marks],
    ) -> str:
        """Report tokens and cost of one call of a model or a tool.

        Args:
            model: Name of the model.
            tokens_in: Tokens of the prompt.
            tokens_out: Tokens of the answer.
            model_cost_usd_micros: Cost of the model, in millionths of a US dollar.
            tool_cost_usd_micros: Cost of the tool, in millionths of a US dollar.
            is_timeout_retry: True if the call repeats one that timed out.
            retry_of: Id of the usage event that this call repeats.
            marks: As in `emit`.

        Returns:
            The event's id. Raises as `emit` does.
        """
        return self._send_event(
            UsageRecorded(
                model, tokens_in, tokens_out, model_cost_usd_micros, tool_cost_usd_micros, is_timeout_retry, retry_of
            ),
            envelope_fields(marks) if marks else NO_FIELDS,
        )

    def update_state(self, state: Mapping[str, Json], *, wait: bool = True, **marks: Unpack[Marks]) -> int:
        """Replace the session's content, and wait until Kafka has the update.

        The processor refuses an update that is based on a version which is no longer the last
        one; `sync` shows what it has. The verb does not wait for that.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.
            wait: Return once the broker has acknowledged the update, so that an answer that is
                given after it cannot be ahead of the recorded content. False: as `emit`, at once.
            marks: As in `emit`.

        Returns:
            The version of the new content; the old one if the session is not Active.

        Raises:
            Invalid: `state` is not a dict, has a key that is not a text, cannot be written as JSON,
                or is too large.
            Unavailable: The broker has not acknowledged the update within `verdict_timeout_s`, or
                it is lost. If it is not lost it is still sent: do not repeat it.

        Otherwise raises as `emit` does.
        """
        sent, version = self._send_update(state, marks)
        if wait:
            self._wait_update(sent, version)
        return version

    def _send_update(self, state: Mapping[str, Json], marks: Marks) -> tuple[PendingVerdict, int]:
        """Send an update of the content; return it, and the version that the content has now."""
        updating_at = _now_us()
        text, fields = canonical_json(state), envelope_fields(marks)
        with self._lock:
            update = StateUpdated(self._version, self._version + 1, text)
            if (bar := self._bars.get(StateUpdated)) is not None:  # before any phase is sent
                self._require_passing(update, bar)
            if self._sends_phases:
                update = update._replace(updating_at=updating_at, persisting_at=_now_us())
            sent = self._send_awaited(update, fields)
            self._phase = "processing"
            if self._local_state == "Active":  # in any other state the processor refuses it
                self._version += 1
                self._state_json = text
            return sent, self._version

    def _wait_update(self, sent: PendingVerdict, version: int) -> None:
        """Wait until Kafka has an update. Raises `Unavailable`."""
        if self._services.runs is not None:  # a client that is turned off has no broker
            wait_acknowledged(sent, f"version {version} of the content", self._services.verdict_timeout_s)

    def snapshot(self, **marks: Unpack[Marks]) -> str:
        """Record a snapshot of the content.

        Returns the snapshot's id. Raises as `emit` does.
        """
        with self._lock:
            snapshot = self._new_snapshot()
            self._send_event(SnapshotCreated(snapshot), envelope_fields(marks))
            self._snapshot_id = snapshot.snapshot_id
            return snapshot.snapshot_id

    def llm(self, model: str, **marks: Unpack[Marks]) -> ModelCall:
        """Return a call of a model, to be used in `with`: it reports duration, usage and error.

            with session.llm("large") as call:
                answer = ask_model(prompt)
                call.tokens_in, call.tokens_out = answer.tokens_in, answer.tokens_out

        Its events are `step_started`, then `step_succeeded` or `step_failed`, and `usage_recorded`;
        they have one step id. A call that raises has a usage only if tokens or cost were set.
        Entering and leaving raise as `emit` does, but never hide what the block raised.

        Args:
            model: Name of the model.
            marks: As in `emit`.
        """
        return ModelCall(self._call_reporter(), model, envelope_fields(marks))

    def run(
        self,
        task_type: str,
        *,
        mode: RunMode = "attached",
        expected_ms: int | None = None,
        input: Json = None,
        plan: Json = None,
        resume: bool = False,
        quota_wait_s: float | None = None,
        **marks: Unpack[Marks],
    ) -> Run:
        """Return a run of a task, to be used in `with`: events in the block belong to it.

            with session.run("report", input={"month": "2026-10"}) as run:
                run.report_progress(0.5)
                run.result = {"pages": 12}

        Its events are `run_started` and `run_running`, then `run_completed`, `run_failed` or
        `run_cancelled`. Entering (`QuotaExceeded` if the tenant's quota rejects it) and leaving
        raise as `emit` does, but never hide what the block raised.

        Args:
            task_type: What kind of task it is.
            mode: An `attached` run lives with its session: it is paused if the session times out,
                fails if it ends, and may take `attached_run_ms`; one that is silent sends a
                heartbeat every five seconds. A `detached` one goes on while the session is held or
                has timed out, and the session is not archived before the run ends.
            expected_ms: How long it is expected to take; `Invalid` if that is more than it may.
            input: What the run is given, as JSON can hold it.
            plan: Its plan, if there is one yet: for a resumption, a list of its steps' names.
            resume: If the session has a run of this `run_id`, go on with it, as `resume_run` does.
            quota_wait_s: Longest wait for the quota; default: the client's setting.
            marks: As in `emit`. `run_id`: the run's own id; by default a new UUID.
        """
        if resume and not marks.get("run_id"):
            raise Invalid("invalid_value", "resume=True needs the run_id of the run")
        check_expected(mode, expected_ms, with_defaults(self._limits))
        run_id = marks.get("run_id") or str(uuid.uuid4())
        input_json = None if input is None else to_json_text(input, "input")
        plan_json = None if plan is None else to_json_text(plan, "plan")
        started = RunStarted(mode, task_type, input_json, plan_json)
        return self._new_run(run_id, started, marks, resume=resume, wait_s=quota_wait_s)

    def resume_run(self, run_id: str, /, **marks: Unpack[Marks]) -> Run:
        """Return a run of this session that has begun before, to be used in `with`: it goes on.

            with session.resume_run("report-7") as run:
                facts = run.step("collect", collect_facts)  # not run again if it has succeeded

        Entering reads the run, its steps and its tool calls. Calls that may have taken effect are
        resolved by asking their tools. Then a run that is paused or has failed is resumed.

        Args:
            run_id: The run's id.
            marks: As in `emit`, of the run's own events. `actor`: a person who lets a run go on
                although it has failed for good.

        Entering the block raises:
            RunNotFound: There is no such run.
            RunOver: It has failed for good, or was cancelled.
            ToolCallUnresolved: A tool call may have taken effect; a person must decide.
            Refused: The processor does not let it go on; else as `sync` and `emit`.
        """
        return self._new_run(run_id, None, marks, resume=True)

    def _new_run(
        self, run_id: str, started: RunStarted | None, marks: Marks, *, resume: bool, wait_s: float | None = None
    ) -> Run:
        fields = envelope_fields(marks)._replace(run_id=run_id)
        recorder = self._recorder()
        beats = RunBeats(
            self._services.heartbeats, self._send_run_beat, lambda: self._emitter.last_seq, recorder.waits.now_s
        )
        wait_s = self._services.quota_wait_s if wait_s is None else wait_s
        return Run(self._call_reporter(), recorder, RunStart(run_id, started, fields, resume, wait_s), beats)

    def start_task(self, task_type: str, input: Json = None, *, timeout_s: float = 1.0, **marks: Unpack[Marks]) -> str:
        """Ask the workers of this session's service to carry out a task; return the task's id.

            task_id = session.start_task("model_training", {"model": "m1", "epochs": 10})

        The task is a detached run: it goes on without this client and its session. Its id is all
        that `SessionClient.check_task_status` and its kin need. With quotas it may have to wait.

        Args:
            task_type: Name of the function, as the workers know it.
            input: What it is given, as JSON can hold it.
            timeout_s: How long Kafka may take to acknowledge the request.
            marks: As in `emit`, but for `run_id`.

        Raises:
            Unavailable: Kafka has not acknowledged the request. It stays queued as other events do.
            DeliveryFailed: The request is lost.
        """
        return self._await_task(self._ask_task(task_type, input, marks), timeout_s)

    def _ask_task(self, task_type: str, input: Json, marks: Marks) -> tuple[str, PendingVerdict]:
        """Send the request for a task; return the task's id, and what its place is asked of."""
        task_id = new_task_id(self._emitter.key)
        input_json = None if input is None else to_json_text(input, "input")
        asked = PendingVerdict("start_task", "run_queued", self._local_state)
        fields = envelope_fields({**marks, "run_id": task_id})
        asked.event_id = self._send_event(RunQueued("detached", task_type, input_json), fields, asked.on_receipt)
        return task_id, asked

    def _await_task(self, sent: tuple[str, PendingVerdict], timeout_s: float) -> str:
        """Wait until Kafka has the request for a task; return the task's id."""
        task_id, asked = sent
        try:
            place = asked.wait_position(timeout_s)
        except Unavailable as error:
            raise Unavailable(f"task {task_id}: {error}", error.retry_after_s) from None
        self._note_task(task_id, place)
        return task_id

    def marks(self, **marks: Unpack[BlockMarks]) -> AbstractContextManager[None]:
        """Return a block in which this session's events carry marks, unless a verb is given others.

            with session.marks(run_id="run-7"):
                session.activity("llm")

        Tasks and threads that begin in the block inherit them.

        Args:
            marks: The marks, as in `BlockMarks`.
        """
        return added_marks(self.session_id, block_fields(marks))

    def bind(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function` with this session as the current one, and with the marks of this call.

        For a plain function that other code will call, in a context that inherits nothing: a
        callback, or a thread pool that is none of `concurrent.futures`.
        """
        return bind_function(self, function)

    def _note_task(self, task_id: str, place: tuple[int, int] | None) -> None:
        """Remember where a task was asked for: questions about it wait until that is judged."""
        places = self._services.task_places
        if place is not None:
            places[task_id] = place
        while len(places) > _TASKS_MAX:
            places.pop(next(iter(places)), None)

    # For `context` and `AsyncSession`

    def _call_reporter(self) -> CallReporter:
        return CallReporter(
            self.session_id,
            self._emitter.may_block,
            lambda: self._local_state == "Active",
            self._send_event,
            self._services.on_error,
        )

    def _recorder(self) -> Recorder:
        services = self._services
        return Recorder(
            self._emitter.key,
            self._send_awaited,
            self._emitter.wait_position,
            self._keep_refusal,
            lambda: self._local_state == "Active",
            services.control,
            services.runs,
            services.verdict_timeout_s,
            self._waits,
            services.on_error,
            lambda: with_defaults(self._limits),
            services.artifacts,
            lambda: self._quotas,
        )


def _now_us() -> int:
    return time.time_ns() // 1_000


__all__ = ["SessionWork"]
