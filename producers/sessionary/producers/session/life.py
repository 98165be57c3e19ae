"""The handle of one session: the verbs of its life.

The handle tracks the state it believes in only to choose the legal last event and to know when to beat; the judge is
the processor. Verbs do not wait, but for `resume`, `recover` and `sync`, which ask the control API.

    leaving `with client.session()`   Active                              Paused      Error
    normally                          terminated closed                   cancelled   terminated unrecoverable
    by an exception                   errored, terminated unrecoverable   cancelled   terminated unrecoverable
    by KeyboardInterrupt, SystemExit  terminated abnormal_termination     cancelled   terminated forced
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

from sessionary.producers.delivery.emitter import NO_MARKS
from sessionary.producers.errors import (
    DeliveryFailed,
    Invalid,
    Refused,
    SessionaryError,
    SessionLost,
    VerdictPending,
)
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.session.handle import Handle
from sessionary.producers.session.pending_verdict import MESSAGE_LENGTH_MAX, Asked, error_info
from sessionary.schemas.events import (
    EVENT_TYPES,
    Payload,
    SessionCreated,
    SessionErrored,
    SessionPaused,
    SessionPhaseChanged,
    SessionRecovered,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTerminated,
)
from sessionary.schemas.types import ErrorInfo, PauseKind, Phase, StartFailureReason, TerminationReason

_END_BY_STATE: Mapping[str, TerminationReason] = {"Active": "closed", "Paused": "cancelled", "Error": "unrecoverable"}
_EPOCH_PAUSE_S = 0.1

Step = Callable[[], object]


class Session(Handle):
    """One session, made by `SessionClient`. Thread-safe; a context manager that ends it with the legal event."""

    def register(self, parent_session_id: str | None = None, restored_from_snapshot_id: str | None = None) -> None:
        """T01: make the session known. `SessionClient.create` has done this."""
        with self._lock:
            snapshot = self._new_snapshot()
            self._emit(SessionCreated(self._limits, snapshot, parent_session_id, restored_from_snapshot_id))
            self._head = snapshot.snapshot_id

    def start(self, *, validate: Step | None = None, connect: Step | None = None) -> Self:
        """T02: validate, connect, be Active. What a step raises ends the session (T03) and is raised on."""
        with self.starting("validating", "invalid_config"):
            if validate is not None:
                validate()
        with self.starting("connecting", "connection_failed"):
            if connect is not None:
                connect()
        self.started()
        return self

    @contextmanager
    def starting(self, phase: Phase, failure: StartFailureReason) -> Iterator[None]:
        """Enter a phase of the start; what the body raises ends the session with `failure`."""
        self.enter_phase(phase)
        try:
            yield
        except BaseException as error:
            self.fail_start(failure, f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH_MAX])
            raise

    def started(self) -> None:
        """T02: the connection is made; the last word of `start`."""
        with self._lock:
            self._emit(SessionStarted())
            self._enter("Active")

    def fail_start(self, reason: StartFailureReason, message: str | None = None) -> None:
        """T03: the session never becomes Active."""
        with self._lock:
            self._emit(SessionStartFailed(reason, message))
            self._enter("Terminated")

    def enter_phase(self, phase: Phase) -> None:
        """S01: move the phase only. The verbs send the phases they need by themselves."""
        self._phases(phase)

    def pause(self, reason: str | None = None, kind: PauseKind = "manual") -> str:
        """T04: hold the session with a full snapshot; return the snapshot's id."""
        with self._lock:
            snapshot = self._new_snapshot()
            self._emit(SessionPaused(kind, reason, snapshot))
            self._head = snapshot.snapshot_id
            self._enter("Paused")
            return snapshot.snapshot_id

    def resume(self, resume_plan: str | None = None) -> dict[str, Json]:
        """T05, T07: be Active again; wait for the verdict, return the content: the snapshot's after a pause.

        Raises `Refused`, `SessionLost`, `DeliveryFailed`, `AuthenticationFailed`, and `Unavailable` while there is no
        verdict yet: call again to go on waiting; nothing is sent twice.
        """
        paused = self._local == "Paused"
        view = self._ask("resume", [SessionResumed(self._head, resume_plan)])
        if paused and view.snapshot_state_json is not None:
            self._state_json = view.snapshot_state_json
        return self.state

    def error(self, error: BaseException | ErrorInfo, *, retryable: bool | None = None) -> None:
        """T10: report an error under treatment; only a retryable one can be recovered from."""
        with self._lock:
            self._emit(SessionErrored(error_info(error, retryable=retryable)))
            self._enter("Error")

    def recover(self, resume_plan: str | None = None) -> dict[str, Json]:
        """T11: go back to Active; wait for the verdict, return the content. Raises as `resume` does."""
        self._ask("recover", [SessionPhaseChanged("recovery"), SessionRecovered(resume_plan)])
        return self.state

    def complete(self, message: str | None = None) -> None:
        """T13: end with the work done."""
        self._terminate("completed", message)

    def cancel(self, message: str | None = None) -> None:
        """T09, T13: end with the work called off."""
        self._terminate("forced" if self._local == "Error" else "cancelled", message)

    def force_close(self, message: str | None = None) -> None:
        """T12 from Error; from elsewhere the hardest end that is legal there."""
        reasons: dict[str, TerminationReason] = {"Error": "forced", "Paused": "cancelled"}
        self._terminate(reasons.get(self._local, "abnormal_termination"), message)

    def close(self, message: str | None = None) -> None:
        """End with the event that is legal in the state the handle believes in; nothing if it has ended."""
        with self._lock:
            if self._local == "Idle":
                self.fail_start("connection_failed", message or "closed before it was started")
            elif self._local in _END_BY_STATE:
                self._terminate(_END_BY_STATE[self._local], message)
            else:
                self.detach()  # Timeout: only the processor ends it; Terminated: it has ended

    def detach(self) -> None:
        """Stop beating without a word, as an agent that dies. `resume` takes it up again."""
        with self._lock:
            self._detached = True
            self._stop_beating()

    def sync(self) -> SessionView:
        """Adopt what the processor knows: state, epoch, version, content. Raises as `resume` does but `Refused`."""
        view = self._around.control.session(self.session_id, None, self._around.verdict_timeout_s)
        with self._lock:
            self._adopt(view)
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            self._leave(error)
        except SessionaryError:
            if error is None:  # else what the body raised is what the caller must see
                raise
        finally:
            self._stop_beating()
        return False

    def _leave(self, error: BaseException | None) -> None:
        with self._lock:
            self._asked = None
            if self._detached or self._local in ("Terminated", "Timeout"):
                return
            if error is None:
                self.close()
            elif isinstance(error, Exception):
                if self._local == "Active":
                    self.error(error)
                self.close(f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH_MAX])
            elif self._local == "Idle":
                self.close(type(error).__name__)
            else:
                self.force_close(type(error).__name__)

    def _terminate(self, reason: TerminationReason, message: str | None) -> None:
        with self._lock:
            snapshot = self._new_snapshot()
            self._emit(SessionTerminated(reason, message, snapshot))
            self._head = snapshot.snapshot_id
            self._enter("Terminated")

    def _ask(self, verb: str, payloads: list[Payload]) -> SessionView:
        """Send `payloads`, wait for the verdict on the last, adopt it."""
        deadline = time.monotonic() + self._around.verdict_timeout_s
        with self._lock:
            asked = self._asked
            if asked is None:
                self._around.control.check()
                for payload in payloads[:-1]:
                    self._emit(payload)
                asked = Asked(verb, EVENT_TYPES[type(payloads[-1])])
                asked.event_id = self._emit(payloads[-1], NO_MARKS, asked.on_receipt)
                self._asked = asked
            elif asked.verb != verb:
                raise VerdictPending(asked.verb)
        try:
            view = self._judged(asked, deadline)
        except (DeliveryFailed, SessionLost, Invalid):
            self._asked = None
            raise
        with self._lock:
            self._asked = None
            self._detached = False
            self._adopt(view)
        if view.verdict is not None and not view.verdict.applied:
            raise Refused(asked.event_type, view.verdict.reason or "UNKNOWN")
        return view

    def _judged(self, asked: Asked, deadline: float) -> SessionView:
        """Wait for the judge. Without a place there is no verdict to ask for, but what was applied raised the epoch."""
        place = asked.place(deadline - time.monotonic())
        while True:
            view = self._around.control.session(self.session_id, place, max(deadline - time.monotonic(), 0.1))
            if place is not None or view.epoch > self.epoch:
                return view
            if time.monotonic() + _EPOCH_PAUSE_S >= deadline:
                raise DeliveryFailed(asked.event_id, "its place in the log is unknown, and it did not raise the epoch")
            time.sleep(_EPOCH_PAUSE_S)

    def _adopt(self, view: SessionView) -> None:
        self._emitter.epoch = view.epoch
        self._version = view.version
        self._phase = view.phase
        self._leads = view.owner_service == self._emitter.service_id
        self._state_json = view.state_json
        self._schema_version = view.state_schema_version
        self._head = view.snapshot_id
        self._limits = view.limits
        self._enter("Terminated" if view.state == "Archived" else view.state)


__all__ = ["Session", "Step"]
