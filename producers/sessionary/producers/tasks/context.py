"""The reports of a task's function, and the heartbeats that are sent while it is silent."""

import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sessionary.producers.delivery.emitter import Emitter, EnvelopeFields
from sessionary.producers.durable.large_values import INTERMEDIATE, ValueKeeper
from sessionary.producers.errors import DeliveryFailed, Invalid, ProducerError, QueueFull, SettingsError, Unavailable
from sessionary.producers.ports import Json, OnError
from sessionary.producers.process.safe_text import any_json_text, to_json_text
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.verdicts.begun_work import BegunWork
from sessionary.producers.verdicts.local_checks import check_progress
from sessionary.schemas.events import (
    EVENT_TYPES,
    CheckpointSaved,
    Payload,
    PlanRecorded,
    ProgressReported,
    RunRunning,
)

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import Artifact


# Sends the events of one task, in the session that the task belongs to.


_WAIT_S = 1.0
_PAUSE_S = 0.5


def now_us() -> int:
    """Return the time in µs since the epoch."""
    return time.time_ns() // 1_000


class TaskSender:
    """Sends the events of one task. Thread-safe."""

    def __init__(self, emitter: Emitter, task_id: str, is_stopped: Callable[[], bool]) -> None:
        self._emitter = emitter
        self._task_id = task_id
        self._is_stopped = is_stopped
        self._begun = BegunWork(emitter.key.session_id)
        self.progress = 0.0  # of the task, as its function reported it last
        self._last_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        """How long ago `send` was called last, in seconds."""
        return time.monotonic() - self._last_s

    def send(self, payload: Payload, occurred_at: int | None = None) -> str:
        """Send an event and return its id; `occurred_at` is in µs since the epoch.

        Raises as `Session.emit` does.
        """
        event_id = self._emitter.emit(payload, EnvelopeFields(run_id=self._task_id, occurred_at=occurred_at))
        self._last_s = time.monotonic()
        return event_id

    def emit(self, payload: Payload, **_metadata: Any) -> str:
        """Report an artifact as an activity of the task."""
        with self._emitter.lock:
            self._begun.check(payload, self._task_id)
            event_id = self.send(payload)
            self._begun.note(payload, self._task_id)
        return event_id

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
                if self._is_stopped():
                    raise Unavailable(f"the worker stops, and {sent.event_type} is not delivered", 1.0) from error
                time.sleep(_PAUSE_S)

    def _wait_place(self, sent: PendingVerdict) -> tuple[int, int] | None:
        while True:
            try:
                return sent.wait_position(_WAIT_S)
            except Unavailable:
                if self._is_stopped():
                    raise

    def close(self) -> None:
        """Forget the sequence of the session's events once they are delivered."""
        self._emitter.forget_sequence()


class TaskContext:
    """The context of a task's function. Its methods are thread-safe, and return at once.

    Only `save_result` and `save_artifact` wait for the store of artifacts.

    Attributes:
        task_id: The task's id.
        session_id: The session that the task belongs to.
        is_repeated: Another worker began the task before, and was lost.
    """

    def __init__(
        self,
        sender: TaskSender,
        task_id: str,
        session_id: str,
        keeper: ValueKeeper,
        *,
        is_repeated: bool,
    ) -> None:
        self.task_id = task_id
        self.session_id = session_id
        self.is_repeated = is_repeated
        self._sender = sender
        self._keeper = keeper

    def __repr__(self) -> str:
        return f"<TaskContext of task {self.task_id}>"

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
        """Record the task's plan, once; it can be read while the task runs."""
        self._sender.send(PlanRecorded(to_json_text(plan, "plan")))

    def save_checkpoint(self, data: Json, stage: str | None = None) -> str:
        """Keep a checkpoint in the history, with `data` of at most about 1 MiB; return its id.

        Analysts read checkpoints in ClickHouse (`v_checkpoints.data`). For data that other
        processes of the tenant should read, use `save_result`.
        """
        checkpoint_id = str(uuid.uuid4())
        self._sender.send(CheckpointSaved(checkpoint_id, "task", stage, data_json=to_json_text(data, "data")))
        return checkpoint_id

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
    """Sends a beat whenever a task has been silent for `interval_s`, while the block runs.

    Leaving the block ends the beats at once, and waits for the last one.
    """

    def __init__(self, sender: TaskSender, interval_s: float, on_error: OnError) -> None:
        self._sender = sender
        self._interval_s = interval_s
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
        while not self._over.wait(left_s):
            left_s = self._interval_s - self._sender.silent_s
            if left_s <= 0:
                self._try_beat()
                left_s = self._interval_s

    def _try_beat(self) -> None:
        try:
            text = f"at work for {time.monotonic() - self._began_s:.1f} s"
            self._sender.send(ProgressReported(self._sender.progress, 1.0, text))
        except ProducerError as error:  # no room, or the client closes: the next beat may find some
            self._on_error(error)
