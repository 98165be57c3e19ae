"""The reports of a task's function, and the heartbeats that are sent while it is silent."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.checkpoints import load_checkpoint
from sessionary.producers.durable.errors import TaskStopped
from sessionary.producers.durable.large_values import INTERMEDIATE, ValueKeeper
from sessionary.producers.durable.run_block import Run
from sessionary.producers.errors import DeliveryFailed, Invalid, QueueFull, SessionaryError, SettingsError, Unavailable
from sessionary.producers.ports import Json, OnError
from sessionary.producers.process.safe_text import any_json_text
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.verdicts.local_checks import check_progress
from sessionary.schemas.events import EVENT_TYPES, Payload, ProgressReported, RunRunning

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import Artifact


# Sends the events of one task, in the session that the task belongs to.


_WAIT_S = 1.0
_PAUSE_S = 0.5


class TaskSender:
    """Sends the events of one task, until it is stopped. Thread-safe.

    Attributes:
        core: The session that the task belongs to, as this worker has it.
        progress: The task's progress, as its function reported it last.
        stopped: Why no event of the task counts any more, as `TaskStopped.state`; None while some
            do.
    """

    def __init__(self, core: SessionCore, task_id: str, is_worker_stopped: Callable[[], bool]) -> None:
        """`is_worker_stopped`: whether the worker is to end."""
        self.core = core
        self.progress = 0.0
        self.stopped: str | None = None
        self._emitter = core.emitter
        self._task_id = task_id
        self._is_worker_stopped = is_worker_stopped
        self._last_s = time.monotonic()
        self._on_stop: Callable[[], object] | None = None

    @property
    def producer_id(self) -> str:
        """The id by which the processor knows whose the task is."""
        return self._emitter.producer_id

    @property
    def silent_s(self) -> float:
        """How long ago `send` was called last, in seconds."""
        return time.monotonic() - self._last_s

    def stop(self, state: str) -> None:
        """Let all verbs of the task and its session raise `TaskStopped` from now on."""
        self.stopped = state
        self.core.view.stop(partial(TaskStopped, self._task_id, state))
        if (on_stop := self._on_stop) is not None:
            on_stop()

    def restart(self) -> None:
        """Let the verbs send again: the task may become this worker's once more."""
        self.stopped = self.core.view.stopped = self.core.view.fenced_by = None

    def check(self) -> None:
        """Raise `TaskStopped` if no event of the task counts any more."""
        if self.stopped is not None:
            raise TaskStopped(self._task_id, self.stopped)

    @contextmanager
    def when_stopped(self, call: Callable[[], object]) -> Iterator[None]:
        """Call `call` once if the task is stopped within the block, on any thread."""
        self._on_stop = call
        try:
            self.check()
            yield
        finally:
            self._on_stop = None

    def send(self, payload: Payload) -> str:
        """Send an event and return its id. Raises as `Session.emit` does, and `TaskStopped`."""
        event_id = self.core.send_event(payload, EnvelopeFields(run_id=self._task_id))
        self._last_s = time.monotonic()
        return event_id

    def emit(self, payload: Payload, **_metadata: Any) -> str:
        """Report an artifact as an activity of the task."""
        return self.send(payload)

    def deliver(self, payload: Payload, occurred_at: int | None = None) -> tuple[int, int] | None:
        """Send an event until Kafka has it; return its log position, (partition, offset), if it is
        known.

        Raises `Invalid`, `ClientClosed`, and `Unavailable` if the worker stops.
        """
        while True:
            sent = PendingVerdict("task", EVENT_TYPES[type(payload)], "")
            fields = EnvelopeFields(run_id=self._task_id, occurred_at=occurred_at)
            try:
                sent.event_id = self._emitter.emit(payload, fields, sent.on_receipt)
                return self._wait_place(sent)
            except (DeliveryFailed, QueueFull) as error:
                if self._is_worker_stopped():
                    raise Unavailable(f"the worker stops, and {sent.event_type} is not delivered", 1.0) from error
                time.sleep(_PAUSE_S)

    def _wait_place(self, sent: PendingVerdict) -> tuple[int, int] | None:
        while True:
            try:
                return sent.wait_position(_WAIT_S)
            except Unavailable:
                if self._is_worker_stopped():
                    raise

    def close(self) -> None:
        """Forget the sequence of the session's events once they are delivered."""
        self._emitter.forget_sequence()


_OPERATION = "task"  # of the checkpoints that a task's function saves


class TaskContext:
    """The context of a task's function. Its methods are thread-safe, and return at once.

    Only `save_result` and `save_artifact` wait for the store of artifacts, and `load_checkpoint`
    for the processor. All of them raise
    `TaskStopped` once the task was cancelled, or is another worker's.

    Attributes:
        task_id: The task's id.
        session_id: The session that the task belongs to.
        is_repeated: The function was called for the task before, in a worker that was lost or in
            this one.
        run: The task as a run, for `run.step`, `run.items`, `run.checkpoint` and
            `run.last_checkpoint`. What was done before is answered from the record. The worker
            begins and ends the run: do not enter it.
    """

    def __init__(self, sender: TaskSender, run: Run, keeper: ValueKeeper, *, is_repeated: bool) -> None:
        self.task_id = run.run_id
        self.session_id = sender.core.session_id
        self.is_repeated = is_repeated
        self.run = run
        self._sender = sender
        self._keeper = keeper

    def __repr__(self) -> str:
        return f"<TaskContext of task {self.task_id}>"

    @property
    def is_cancelled(self) -> bool:
        """True once the task was cancelled, or is another worker's: return, nothing more counts.

        The worker asks for it once per beat.
        """
        return self._sender.stopped is not None

    def report_progress(self, progress: float, total: float = 1.0, message: str | None = None) -> None:
        """Report that `progress` of `total` is done, with a text for people.

        The report is a sign of life too. Raises `Invalid` for a value that no event can carry, and
        unless 0 ≤ progress ≤ total.
        """
        check_progress(progress, total)
        self._sender.progress = progress / total
        self._sender.send(RunRunning(self._sender.progress))
        self._sender.send(ProgressReported(float(progress), float(total), message))

    def info(self, text: str) -> None:
        """Send a text for people, with the progress so far; the task continues.

        The text is no turn of the conversation. Raises `Invalid` for more than 16 Ki characters.
        """
        self._sender.send(ProgressReported(self._sender.progress, 1.0, text))

    def record_plan(self, plan: Json) -> None:
        """Record the task's plan; a later one replaces it. It can be read while the task runs."""
        self.run.record_plan(plan)

    def save_checkpoint(self, data: Json, stage: str | None = None) -> str:
        """Keep a checkpoint with `data` of at most about 1 MiB; return its id.

        `load_checkpoint` returns the data, also in the worker that takes the task over. Analysts
        read checkpoints in ClickHouse (`v_checkpoints.data`). For data that other processes of the
        tenant should read, use `save_result`.
        """
        return self.run.checkpoint(None, _OPERATION, stage=stage, data=data)

    def load_checkpoint(self, checkpoint_id: str | None = None) -> Json:
        """Return the data of the task's last checkpoint; None if there is none. Blocks.

        `checkpoint_id`: an older one instead; the last 16 are kept. Waits until the processor has
        judged this worker's events of the session. Raises `Invalid` for a checkpoint that is not
        kept, and as `Session.sync` does.
        """
        self._sender.check()
        return load_checkpoint(self._sender.core.recorder(), self.task_id, _OPERATION, checkpoint_id)

    def save_result(self, name: str, value: Json) -> "Artifact":
        """Keep an intermediate result, as JSON, in the library of artifacts; the last of each name.

        Any process of the tenant that has the library reads it at once, and for as long as the
        task is known: `SessionClient.get_intermediate_results`.

        Args:
            name: 1 to 51 letters, digits, `_`, `.` or `-`.
            value: A value that JSON can hold, of any size.

        Raises `SettingsError` if the worker has no library, `Invalid` for a name or a value that is
        not allowed, and `Unavailable` if the store does not take it.
        """
        if not name:
            raise Invalid(
                "invalid_value", "an intermediate result has no name: use 1 to 51 letters, digits, '_', '.' or '-'"
            )
        return self.save_artifact(any_json_text(value, "value"), f"{INTERMEDIATE}{name}")

    def save_artifact(
        self,
        body: str | bytes,
        artifact_type: str,
        *,
        file_name: str | None = None,
        media_type: str | None = None,
    ) -> "Artifact":
        """Keep a body in the library of artifacts; `artifact.reference` may stand in the result.

        Takes what `ArtifactLibrary.save` takes. Raises as it does, and `SettingsError` if the
        worker has no library.
        """
        library = self._keeper.library
        if library is None:
            raise SettingsError(
                "this worker has no library of artifacts: set SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...)"
            )
        return library.save(self._keeper.reporter, body, artifact_type, file_name=file_name, media_type=media_type)


class TaskBeats:
    """Looks at a task every `interval_s` while the block runs, and sends a beat if it was silent.

    Leaving the block ends the beats at once, and waits for the last one.
    """

    def __init__(self, sender: TaskSender, interval_s: float, look: Callable[[], None], on_error: OnError) -> None:
        """`look`: stops the sender if the task is no longer this worker's."""
        self._sender = sender
        self._interval_s = interval_s
        self._look = look
        self._on_error = on_error
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._send_beats, name="sessionary-task-beats", daemon=True)

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _send_beats(self) -> None:
        left_s = self._interval_s
        while not self._over.wait(left_s) and self._sender.stopped is None:
            self._look()
            left_s = self._interval_s - self._sender.silent_s
            if left_s <= 0 and self._sender.stopped is None:
                self._try_beat()
                left_s = self._interval_s

    def _try_beat(self) -> None:
        try:
            text = f"at work for {time.monotonic() - self._began_s:.1f} s"
            self._sender.send(ProgressReported(self._sender.progress, 1.0, text))
        except SessionaryError as error:  # no room, or the client closes: the next beat may find some
            self._on_error(error)
