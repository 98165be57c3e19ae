"""What a session's handle is made of: what it knows, the verbs of work, and its beating. `session` adds the life."""

from collections.abc import Mapping
from threading import Thread, current_thread
from typing import NamedTuple

from sessionary.producers.delivery.emitter import NO_MARKS, Emitter, Marks
from sessionary.producers.errors import SessionEnded, VerdictPending
from sessionary.producers.ports import Control, Json, OnReceipt
from sessionary.producers.session.heartbeat import Heartbeats, heartbeat_interval_s
from sessionary.producers.session.pending_verdict import Asked
from sessionary.producers.session.state_json import canonical_json, full_snapshot, parsed_state
from sessionary.schemas.events import (
    Payload,
    ProgressReported,
    SessionActivity,
    SessionPhaseChanged,
    SnapshotCreated,
    StateUpdated,
    UsageRecorded,
)
from sessionary.schemas.types import Limits, Phase, Snapshot

_UPDATE_PHASES: tuple[Phase, ...] = ("updating", "persisting")


class Surroundings(NamedTuple):
    """What every session of a client shares."""

    control: Control
    heartbeats: Heartbeats
    heartbeat_interval_s: float
    verdict_timeout_s: float


class Handle:
    """One session as its agent sees it. Thread-safe."""

    def __init__(
        self,
        emitter: Emitter,
        around: Surroundings,
        *,
        limits: Limits = Limits(),
        state: Mapping[str, Json] | None = None,
        state_schema_version: int = 1,
    ) -> None:
        self._emitter = emitter
        self._lock = emitter.lock
        self._around = around
        self._limits = limits
        self._state_json = canonical_json(state or {})
        self._schema_version = state_schema_version
        self._local: str = "Idle"
        self._phase: str | None = None
        self._leads = True  # phases are the owning service's to say
        self._version = 1
        self._head: str | None = None
        self._asked: Asked | None = None
        self._beat_token: int | None = None
        self._detached = False
        self._user: Thread = current_thread()

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self._emitter.key.session_id

    @property
    def local_state(self) -> str:
        """The state this handle believes in: Idle, Active, Paused, Timeout, Error or Terminated."""
        return self._local

    @property
    def epoch(self) -> int:
        """The ownership epoch this handle sends with."""
        return self._emitter.epoch

    @property
    def version(self) -> int:
        """The version of the content this handle knows."""
        return self._version

    @property
    def state(self) -> dict[str, Json]:
        """A copy of the content this handle knows."""
        return parsed_state(self._state_json)

    @property
    def context_bytes(self) -> int | None:
        """Size of the session's context as reported with every further event."""
        return self._emitter.context_bytes

    @context_bytes.setter
    def context_bytes(self, value: int | None) -> None:
        self._emitter.context_bytes = value

    def emit(
        self,
        payload: Payload,
        *,
        run_id: str | None = None,
        run_seq: int | None = None,
        step_id: str | None = None,
        causation_id: str | None = None,
        actor: str | None = None,
        traceparent: str | None = None,
        occurred_at: int | None = None,
    ) -> str:
        """Send any payload, return the event's id. Does not move the local state. Raises `Invalid`, `QueueFull`."""
        return self._emit(payload, Marks(run_id, run_seq, step_id, causation_id, actor, traceparent, occurred_at))

    # Work

    def activity(self, kind: str, text: str | None = None) -> str:
        """Report work of a kind (`llm`, `tool`, `user` …); moves the activity clocks."""
        return self._emit(SessionActivity(kind, text))

    def info(self, text: str) -> str:
        """Report something worth reading."""
        return self._emit(SessionActivity("info", text))

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> str:
        """Report progress of the work at hand."""
        return self._emit(ProgressReported(float(progress), total, message))

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
    ) -> str:
        """Report tokens and cost of one call, in millionths of a US dollar."""
        return self._emit(
            UsageRecorded(
                model, tokens_in, tokens_out, model_cost_usd_micros, tool_cost_usd_micros, is_timeout_retry, retry_of
            )
        )

    def update_state(self, state: Mapping[str, Json]) -> int:
        """Replace the content, return its new version. Raises `Invalid` for what JSON cannot hold."""
        text = canonical_json(state)
        with self._lock:
            if self._leads:
                # A refused update leaves the phase where it was: go on from there.
                reached = _UPDATE_PHASES.index(self._phase) + 1 if self._phase in _UPDATE_PHASES else 0
                self._phases(*_UPDATE_PHASES[reached:])
            self._emit(StateUpdated(self._version, self._version + 1, text))
            self._phase = "processing"
            if self._local == "Active":  # elsewhere the judge refuses it
                self._version += 1
                self._state_json = text
            return self._version

    def snapshot(self) -> str:
        """Add a snapshot of the content to the chain, return its id."""
        with self._lock:
            snapshot = self._new_snapshot()
            self._emit(SnapshotCreated(snapshot))
            self._head = snapshot.snapshot_id
            return snapshot.snapshot_id

    def beat(self) -> bool:
        """Send a heartbeat if the session is Active and its agent lives; False where it will not beat again."""
        # Never wait for a busy session: its events are signs of life themselves.
        if not self._lock.acquire(blocking=False):
            return True
        try:
            if self._local != "Active" or self._detached or not self._user.is_alive():
                self._beat_token = None
                return False
            if self._asked is None:
                self._emitter.beat()
            return True
        finally:
            self._lock.release()

    def adopt_thread(self) -> None:
        """Tie the beating to the calling thread: it ends when that thread dies. Every verb does this."""
        self._user = current_thread()
        if self._local == "Active" and self._beat_token is None and not self._detached:
            self._start_beating()

    def _emit(self, payload: Payload, marks: Marks = NO_MARKS, on_receipt: OnReceipt | None = None) -> str:
        if self._asked is not None:
            raise VerdictPending(self._asked.verb)
        if self._local == "Terminated":
            raise SessionEnded(f"session {self.session_id} has ended")
        self.adopt_thread()
        return self._emitter.emit(payload, marks, on_receipt)

    def _phases(self, *phases: Phase) -> None:
        for phase in phases:
            self._emit(SessionPhaseChanged(phase))
            self._phase = phase

    def _new_snapshot(self) -> Snapshot:
        return full_snapshot(self._state_json, self._schema_version, self._head)

    def _enter(self, state: str) -> None:
        self._local = state
        if state != "Active":
            self._stop_beating()
        elif self._beat_token is None and not self._detached:
            self._start_beating()

    def _start_beating(self) -> None:
        interval_s = heartbeat_interval_s(self._limits, self._around.heartbeat_interval_s)
        self._beat_token = self._around.heartbeats.add(self, interval_s)

    def _stop_beating(self) -> None:
        if self._beat_token is not None:
            self._around.heartbeats.remove(self._beat_token)
            self._beat_token = None


__all__ = ["Handle", "Surroundings"]
