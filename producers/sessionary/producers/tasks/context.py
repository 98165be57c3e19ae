"""What a task's function reports while it works, and the beats that are sent while it is silent."""

import threading
import time
import uuid
from types import TracebackType
from typing import Self

from sessionary.producers.errors import ProducerError
from sessionary.producers.ports import Json, OnError
from sessionary.producers.process.json_text import to_json_text
from sessionary.producers.tasks.sender import TaskSender
from sessionary.schemas.events import (
    CheckpointSaved,
    MessageAppended,
    Payload,
    PlanRecorded,
    ProgressReported,
    RunRunning,
)


class TaskContext:
    """Handed to a task's function. Its methods return at once, and are thread-safe.

    Attributes:
        task_id: The task's id.
        session_id: The session that the task belongs to.
        is_repeated: Another worker began the task before, and was lost.
    """

    def __init__(self, sender: TaskSender, task_id: str, session_id: str, *, is_repeated: bool) -> None:
        self.task_id = task_id
        self.session_id = session_id
        self.is_repeated = is_repeated
        self._sender = sender
        self._progress = 0.0
        self._last_s = time.monotonic()

    def report_progress(self, progress: float, total: float = 1.0, message: str | None = None) -> None:
        """Report that `progress` of `total` is done, with a text for people.

        It is a sign of life too. Raises `Invalid` for a value that no event can carry, and
        `ValueError` unless 0 ≤ progress ≤ total.
        """
        if not 0 <= progress <= total or not total:
            raise ValueError(f"progress is {progress} of {total}: it must be from 0 to the total")
        self._progress = progress / total
        self._send(RunRunning(self._progress))
        self._send(ProgressReported(float(progress), float(total), message))

    def info(self, text: str) -> None:
        """Send a text for people; the task goes on."""
        self._send(MessageAppended("task", text))

    def record_plan(self, plan: Json) -> None:
        """Record the task's plan, once; it can be read while the task runs."""
        self._send(PlanRecorded(to_json_text(plan, "plan")))

    def save_checkpoint(self, data: Json, stage: str | None = None) -> str:
        """Keep an intermediate result in the history, of at most about 1 MiB; return its id."""
        checkpoint_id = str(uuid.uuid4())
        self._send(CheckpointSaved(checkpoint_id, "task", stage, data_json=to_json_text(data, "data")))
        return checkpoint_id

    def _send(self, payload: Payload) -> None:
        self._sender.send(payload)
        self._last_s = time.monotonic()

    def _beat(self, elapsed_s: float) -> None:
        self._send(ProgressReported(self._progress, 1.0, f"at work for {elapsed_s:.1f} s"))

    def _silent_s(self) -> float:
        return time.monotonic() - self._last_s


class TaskBeats:
    """Sends a beat whenever a task has been silent for `interval_s`, while the block runs.

    Leaving the block ends the beats at once, and waits for the last one.
    """

    def __init__(self, context: TaskContext, interval_s: float, on_error: OnError) -> None:
        self._context = context
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
            left_s = self._interval_s - self._context._silent_s()
            if left_s <= 0:
                self._try_beat()
                left_s = self._interval_s

    def _try_beat(self) -> None:
        try:
            self._context._beat(time.monotonic() - self._began_s)
        except ProducerError as error:  # no room, or the client closes: the next beat may find some
            self._on_error(error)


__all__ = ["TaskBeats", "TaskContext"]
