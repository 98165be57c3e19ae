"""Sends the events of one task, in the session that the task belongs to."""

import time
from collections.abc import Callable
from typing import Any

from sessionary.producers.delivery.emitter import Emitter, EnvelopeFields
from sessionary.producers.errors import DeliveryFailed, QueueFull, Unavailable
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.schemas.events import EVENT_TYPES, Payload

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

    def emit(self, payload: Payload, **_marks: Any) -> str:
        """Report an artifact as what the task did."""
        return self.send(payload)

    def deliver(self, payload: Payload, occurred_at: int | None = None) -> tuple[int, int] | None:
        """Send an event until Kafka has it; return its place, (partition, offset), if it is known.

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
