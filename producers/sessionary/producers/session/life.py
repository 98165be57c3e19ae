"""The verbs of a session's life: start, pause, resume, recover, end."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, Self, Unpack

from sessionary.producers.context.error_info import error_message, to_error_info
from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.context.scope import SessionBlock, enter_block, leave_block
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.flow import run_flow
from sessionary.producers.errors import (
    SessionaryError,
    SessionEnded,
)
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.session.collaboration.admission import AdmittedSession
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.schemas.events import (
    Payload,
    SessionCreated,
    SessionErrored,
    SessionPaused,
    SessionPhaseChanged,
    SessionRecovered,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTakenOver,
    SessionTerminated,
)
from sessionary.schemas.types import ErrorInfo, PauseKind, Phase, StartFailureReason, TerminationReason

_END_BY_STATE: Mapping[str, TerminationReason] = {"Active": "closed", "Paused": "cancelled", "Error": "unrecoverable"}


Step = Callable[[], object]
"""A step of a session's start; what it raises ends the session."""


class Session(AdmittedSession):
    """One session. Made by `SessionClient`; thread-safe; a context manager.

    Verbs hand an event over and return, without waiting for Kafka. `resume`, `recover` and `sync`
    wait for the processor.

    While the session is Active, or a verb waits for the verdict that makes it so, the client sends
    heartbeats for it, whichever threads use it, until

    - the session ends, pauses, fails or is detached, or the `with` block is left;
    - this object is garbage-collected, or the client is closed;
    - the process exits. A forked child does not beat for its parent's sessions;
    - with `beats_with="thread"` or `"task"`: the thread that created or attached it has died, or
      the asyncio task is done.

    Heartbeats say that the process lives; limits on idle time and duration, that work goes on.

    Leaving the `with` block ends the session with the event that is legal in its state:

    | left by | Active | Paused | Error |
    |---|---|---|---|
    | the end of the block | `closed` | `cancelled` | `unrecoverable` |
    | an exception | an error, then `unrecoverable` | `cancelled` | `unrecoverable` |
    | `KeyboardInterrupt`, `SystemExit` | `abnormal_termination` | `cancelled` | `forced` |

    A session that was detached, or that the processor has timed out, is left as it is. In the block
    the session is the current one: see `current_session`.
    """

    _block: SessionBlock | None = None  # while in `with`

    def start(
        self,
        *,
        validate: Step | None = None,
        connect: Step | None = None,
        quota_wait_s: float | None = None,
        **marks: Unpack[Marks],
    ) -> Self:
        """Start a created session: validate, connect, become Active.

        With quotas (setting `quotas`) it waits for its tenant's before; it beats meanwhile.

        Args:
            validate: Called in phase `validating`. If it raises, the session ends with
                `invalid_config`, and the exception is raised again.
            connect: Called in phase `connecting`. If it raises, the session ends with
                `connection_failed`, and the exception is raised again.
            quota_wait_s: Longest wait for the quota; default: the client's setting.
            marks: As in `emit`; of all events of the start.

        Returns:
            This session.

        Raises:
            QuotaExceeded: The quota rejected it, or it waited for so long. It has ended.
            SessionEnded: It ended while it waited.

        Otherwise raises as `emit` and, with quotas, `sync` do.
        """
        run_flow(self._wait_admitted(quota_wait_s), self._waits.pause)
        self._take_start_step("validating", "invalid_config", validate, marks)
        self._take_start_step("connecting", "connection_failed", connect, marks)
        self._mark_started(marks)
        return self

    def fail_start(self, reason: StartFailureReason, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End a session that was created and could not be started. Raises as `emit` does.

        Args:
            reason: `invalid_config` or `connection_failed`.
            message: Details, for people.
            marks: As in `emit`.
        """
        with self._lock:
            self._send_event(SessionStartFailed(reason, message), envelope_fields(marks))
            self._set_state("Terminated")

    def enter_phase(self, phase: Phase, **marks: Unpack[Marks]) -> None:
        """Set the session's phase, an attribute beside its state. Raises as `emit` does.

        The other verbs send the phases that they need themselves. Only the owning service may
        change the phase; the processor refuses a phase that is out of order.
        """
        self._send_phases(phase, fields=envelope_fields(marks))

    def pause(self, reason: str | None = None, kind: PauseKind = "manual", **marks: Unpack[Marks]) -> str:
        """Pause an Active session, with a snapshot of its content. `resume` continues it.

        A pause may last as long as the limit `hold_ms`; then the processor ends the session.

        Args:
            reason: Why, for people.
            kind: `manual`, `review` or `migration`.
            marks: As in `emit`.

        Returns:
            The snapshot's id. Raises as `emit` does.
        """
        with self._lock:
            snapshot = self._new_snapshot()
            self._send_event(SessionPaused(kind, reason, snapshot), envelope_fields(marks))
            self._snapshot_id = snapshot.snapshot_id
            self._set_state("Paused")
            return snapshot.snapshot_id

    def resume(self, resume_plan: str | None = None, **marks: Unpack[Marks]) -> dict[str, Json]:
        """Make a Paused or timed-out session Active again. Blocks until the processor's verdict.

        Waits for at most the setting `verdict_timeout_s`. After `Unavailable`, call `resume`
        again to go on waiting: nothing is sent twice.

        Args:
            resume_plan: How the work continues, for people.

        Returns:
            The session's content: that of the snapshot after a pause.

        Raises:
            Refused: The processor refused; the session is unchanged.
            Unavailable: There is no verdict yet.
            DeliveryFailed: The event could not be delivered.
            SessionLost: The session does not exist, or is archived.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.

        Otherwise raises as `emit` does.
        """
        return self._await_content(self._ask_resume(resume_plan, marks))

    def error(self, error: BaseException | ErrorInfo, *, retryable: bool | None = None, **marks: Unpack[Marks]) -> None:
        """Report an error from which the agent tries to recover; the session enters state Error.

        `recover` leads back to Active, if the error is retryable. Raises as `emit` does.

        Args:
            error: The exception, or an `ErrorInfo`.
            retryable: None means: time-outs, lost connections and `Unavailable` are retryable.
                Has no effect on an `ErrorInfo`.
            marks: As in `emit`.
        """
        with self._lock:
            self._send_event(SessionErrored(to_error_info(error, retryable=retryable)), envelope_fields(marks))
            self._set_state("Error")

    def recover(self, resume_plan: str | None = None, **marks: Unpack[Marks]) -> dict[str, Json]:
        """Return from state Error to Active. Blocks until the processor's verdict.

        Waits for at most the setting `verdict_timeout_s`. After `Unavailable`, call `recover`
        again to go on waiting: nothing is sent twice.

        Args:
            resume_plan: How the work continues, for people.

        Returns:
            The session's content. Raises as `resume` does.
        """
        return self._await_content(self._ask_recovery(resume_plan, marks))

    def complete(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session because its work is done. Raises as `emit` does."""
        self._send_terminated("completed", message, marks)

    def cancel(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session because its work was called off. Raises as `emit` does."""
        self._send_terminated("forced" if self._local_state == "Error" else "cancelled", message, marks)

    def force_close(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session at once, with the most severe reason that is legal in its state.

        `forced` from Error, `cancelled` from Paused, else `abnormal_termination`. Like `close`, it
        works while a verdict is awaited. Raises as `emit` does.
        """
        with self._lock:
            self._end_despite_verdict(lambda: self._send_forced(message, marks))

    def close(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session with the event that is legal in its state.

        Does nothing if the session has ended, or if the processor has timed it out. Works also
        while a verdict is awaited. Until that is known the session beats, and if it is granted,
        another thread ends it at its new epoch, unless the client is closed. Raises as `emit` does.
        """
        with self._lock:
            self._end_despite_verdict(lambda: self._send_closed(message, marks))

    def detach(self) -> None:
        """Stop the heartbeats without ending the session, as if the agent had died.

        Another agent may `attach` and continue. `resume` starts the heartbeats again. Raises
        `ClientClosed` in a forked child whose parent made the session.
        """
        with self._lock:
            self._detached = True
            self._departures += 1
            self._stop_heartbeats()

    def sync(self) -> SessionView:
        """Read the session from the processor, and adopt its state, epoch, version and content.

        Waits until the processor has judged the last event that this client sent in the session,
        for at most the setting `verdict_timeout_s`. It does not wait for other clients' events.

        Returns:
            The session; its `verdict` is the one on that event.

        Raises:
            Unavailable: The event is not delivered yet, or the control API does not answer.
            SessionLost: The session does not exist, or is archived.
            SessionFenced: Another process took the session over from this object. Its heartbeats
                stop, and all its verbs raise this from now on.
            ClientClosed: This is a forked child, and its parent made the session.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
        """
        return self._sync_unless_left(self._departures)

    def __enter__(self) -> Self:
        self._block = enter_block(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._emitter.is_of_parent:  # which ends it
            return False
        try:
            self._leave_session(error)
        except SessionaryError:
            if error is None:  # else the caller must see what the body raised
                raise
        finally:
            self._leave_heartbeats()
            if self._block is not None:
                leave_block(self._block)
        return False

    # For the client and `AsyncSession`

    def _register_session(
        self, parent_session_id: str | None, restored_from_snapshot_id: str | None, fields: EnvelopeFields
    ) -> None:
        with self._lock:
            snapshot = self._new_snapshot()
            created = SessionCreated(self._limits, snapshot, parent_session_id, restored_from_snapshot_id)
            sent = self._sent_events
            self._created_id = self._send_event(created, fields, None if sent is None else sent.on_creation_receipt)
            self._snapshot_id = snapshot.snapshot_id
            self._is_holder = True

    def _ask_resume(self, resume_plan: str | None, marks: Marks) -> PendingVerdict:
        return self._ask_verdict("resume", [SessionResumed(self._snapshot_id, resume_plan)], envelope_fields(marks))

    def _ask_recovery(self, resume_plan: str | None, marks: Marks) -> PendingVerdict:
        payloads: list[Payload] = [SessionPhaseChanged("recovery"), SessionRecovered(resume_plan)]
        return self._ask_verdict("recover", payloads, envelope_fields(marks))

    def _await_content(self, pending: PendingVerdict) -> dict[str, Json]:
        """Wait for the verdict on `resume` or `recover`; return the content of the session."""
        self._await_verdict(pending)
        return self.state

    def _ask_take_over(self, marks: Marks) -> PendingVerdict:
        """Begin to take the session over, as `SessionClient.attach` describes it."""
        if self._local_state == "Terminated":
            raise SessionEnded(f"session {self.session_id} has ended; create a new one")
        return self._ask_verdict("attach", [SessionTakenOver()], envelope_fields(marks))

    def _await_take_over(self, pending: PendingVerdict) -> None:
        try:
            self._await_verdict(pending)
        except SessionaryError:
            self.detach()
            raise
        with self._lock:
            self._is_holder = True

    def _abandon_session(self) -> None:
        """Leave the session without ending it: the call that opens it failed.

        A verdict that comes later changes nothing.
        """
        with self._lock:
            self._pending = None
            self.detach()

    def _mark_started(self, marks: Marks) -> None:
        """Become Active: the last part of `start`."""
        with self._lock:
            self._send_event(SessionStarted(), envelope_fields(marks))
            self._set_state("Active")

    def _abort_start(self, reason: StartFailureReason, error: BaseException, marks: Marks) -> None:
        self.fail_start(reason, error_message(error), **marks)

    # Inside

    def _take_start_step(self, phase: Phase, failure: StartFailureReason, step: Step | None, marks: Marks) -> None:
        self.enter_phase(phase, **marks)
        if step is None:
            return
        try:
            step()
        except BaseException as error:
            self._abort_start(failure, error, marks)
            raise

    def _leave_session(self, error: BaseException | None) -> None:
        """End the session as leaving a `with` block by `error` does."""
        with self._lock:
            try:
                self._end_despite_verdict(lambda: self._end_after(error))
            finally:
                self._pending = None

    def _end_after(self, error: BaseException | None) -> None:
        if self._detached or self._local_state in ("Terminated", "Timeout"):
            return
        if error is None:
            self._send_closed(None, {})
        elif isinstance(error, Exception):
            if self._local_state == "Active":
                self.error(error)
            self._send_closed(error_message(error), {})
        elif self._local_state == "Idle":
            self._send_closed(type(error).__name__, {})
        else:
            self._send_forced(type(error).__name__, {})

    def _send_closed(self, message: str | None, marks: Marks) -> None:
        if self._local_state == "Idle":
            self.fail_start("connection_failed", message or "closed before it was started", **marks)
        elif self._local_state in _END_BY_STATE:
            self._send_terminated(_END_BY_STATE[self._local_state], message, marks)
        else:
            self.detach()  # Timeout: only the processor ends it; Terminated: it has ended

    def _send_forced(self, message: str | None, marks: Marks) -> None:
        reasons: dict[str, TerminationReason] = {"Error": "forced", "Paused": "cancelled"}
        self._send_terminated(reasons.get(self._local_state, "abnormal_termination"), message, marks)

    def _send_terminated(self, reason: TerminationReason, message: str | None, marks: Marks) -> None:
        with self._lock:
            snapshot = self._new_snapshot()
            self._send_event(SessionTerminated(reason, message, snapshot), envelope_fields(marks))
            self._snapshot_id = snapshot.snapshot_id
            self._set_state("Terminated")


__all__ = ["Session", "Step"]
