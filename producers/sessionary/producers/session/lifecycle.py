"""The life of a session: its start, with the wait for a quota, its pauses, errors and end."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sessionary.producers.context.error_info import CANCELLED, ending_of, error_message, to_error_info
from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.durable.errors import QuotaExceeded
from sessionary.producers.durable.flow import Call, Do, Flow, Send, Wait
from sessionary.producers.errors import SessionaryError, SessionEnded, SessionLost, Unavailable
from sessionary.producers.ports import Json, OnReceipt, Receipt, SessionView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.session.verdicts import Verdicts
from sessionary.producers.session.view import WAITING, parsed_state
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
    SessionTerminated,
)
from sessionary.schemas.types import ErrorInfo, PauseKind, Phase, StartFailureReason, TerminationReason

LIMIT: Final = "live_sessions"
_QUOTA_REASON: Final = "quota_exceeded"
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0
_END_BY_STATE: Mapping[str, TerminationReason] = {"Active": "closed", "Paused": "cancelled", "Error": "unrecoverable"}
_FORCED_BY_STATE: Mapping[str, TerminationReason] = {"Error": "forced", "Paused": "cancelled"}
Step = Callable[[], object]
"""A step of a session's start; what it raises ends the session."""


class Lifecycle:
    """The life of one session. Thread-safe."""

    __slots__ = ("_core", "_verdicts")

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._verdicts = Verdicts(core)

    # The start

    def register(
        self,
        parent_session_id: str | None,
        restored_from_snapshot_id: str | None,
        external_id: str | None,
        fields: EnvelopeFields,
        on_receipt: OnReceipt | None = None,
    ) -> None:
        """Send the session's first event."""
        core, view = self._core, self._core.view
        with core.lock:
            snapshot = view.new_snapshot()
            created = SessionCreated(view.limits, snapshot, parent_session_id, restored_from_snapshot_id, external_id)
            takers = [on_receipt] if view.sent_events is None else [view.sent_events.on_creation_receipt, on_receipt]

            def on_both(receipt: Receipt) -> None:
                for take in takers:
                    if take is not None:
                        take(receipt)

            view.created_id = core.send_event(created, fields, on_both)
            view.snapshot_id = snapshot.snapshot_id
            view.held_as = core.emitter.producer_id

    def start(
        self, validate: Step | None, connect: Step | None, quota_wait_s: float | None, metadata: EventMetadata
    ) -> Flow[None]:
        """Wait for the quota, validate, connect, become Active."""
        yield from self._wait_admitted(quota_wait_s)
        yield from self._take_start_step("validating", "invalid_config", validate, metadata)
        yield from self._take_start_step("connecting", "connection_failed", connect, metadata)
        yield Send(partial(self.mark_started, metadata))

    def mark_started(self, metadata: EventMetadata) -> None:
        """Become Active: the last part of `start`."""
        with self._core.lock:
            self._core.send_event(SessionStarted(), envelope_fields(metadata))
            self._core.set_state("Active")

    def fail_start(self, reason: StartFailureReason, message: str | None, metadata: EventMetadata) -> None:
        """End a session that was created and could not be started."""
        with self._core.lock:
            self._core.send_event(SessionStartFailed(reason, message), envelope_fields(metadata))
            self._core.set_state("Terminated")

    def enter_phase(self, phase: Phase, metadata: EventMetadata) -> None:
        """Set the session's phase."""
        core = self._core
        with core.lock:
            core.send_phases(phase, fields=envelope_fields(metadata))
            if phase != WAITING and core.view.local_state == "Active":
                core.beats.start()  # they end in that phase

    # States

    def pause(self, reason: str | None, kind: PauseKind, metadata: EventMetadata) -> str:
        """Pause the session; return the snapshot's id."""
        core, view = self._core, self._core.view
        with core.lock:
            snapshot = core.next_snapshot()
            core.send_event(SessionPaused(kind, reason, snapshot), envelope_fields(metadata))
            view.snapshot_id = snapshot.snapshot_id
            core.set_state("Paused")
            return snapshot.snapshot_id

    def resume(self, resume_plan: str | None, metadata: EventMetadata) -> Flow[dict[str, Json]]:
        """Make the session Active again; return its content."""
        # Sent before anything is waited for. With asyncio, under policy `block`, a thread sends it,
        # which a cancelled call does not stop; once the session has ended it raises there.
        pending: PendingVerdict = yield Send(partial(self._ask_resume, resume_plan, metadata))
        content: dict[str, Json] = yield Do(partial(self._wait_content, pending))
        return content

    def error(self, error: BaseException | ErrorInfo, retryable: bool | None, metadata: EventMetadata) -> None:
        """Report an error; the session enters state Error."""
        with self._core.lock:
            payload = SessionErrored(to_error_info(error, retryable=retryable))
            self._core.send_event(payload, envelope_fields(metadata))
            self._core.set_state("Error")

    def recover(self, resume_plan: str | None, metadata: EventMetadata) -> Flow[dict[str, Json]]:
        """Return from state Error to Active; return the session's content."""
        pending: PendingVerdict = yield Send(partial(self._ask_recovery, resume_plan, metadata))
        content: dict[str, Json] = yield Do(partial(self._wait_content, pending))
        return content

    # The end

    def complete(self, message: str | None, metadata: EventMetadata) -> None:
        """End the session because its work is done."""
        self._send_terminated("completed", message, metadata)

    def cancel(self, message: str | None, metadata: EventMetadata) -> None:
        """End the session because its work was called off."""
        self._send_terminated("forced" if self._core.view.local_state == "Error" else "cancelled", message, metadata)

    def force_close(self, message: str | None, metadata: EventMetadata) -> None:
        """End the session at once, with the most severe reason that is legal in its state."""
        with self._core.lock:
            self._verdicts.end_despite(lambda: self._send_forced(message, metadata))

    def close(self, message: str | None, metadata: EventMetadata) -> None:
        """End the session with the event that is legal in its state."""
        with self._core.lock:
            self._verdicts.end_despite(lambda: self._send_closed(message, metadata))

    def leave(self, error: BaseException | None) -> None:
        """End the session as a `with` block does that is left by `error`.

        Raises as `close` does, unless `error` is given: the caller must see that error.
        """
        core = self._core
        if core.emitter.is_of_parent:  # which ends it
            return
        try:
            with core.lock:
                try:
                    self._verdicts.end_despite(lambda: self._end_after(error))
                finally:
                    core.view.pending = None
        except SessionaryError:
            if error is None:
                raise
        finally:
            core.beats.leave()

    # Inside

    def _take_start_step(
        self, phase: Phase, failure: StartFailureReason, step: Step | None, metadata: EventMetadata
    ) -> Flow[None]:
        yield Send(partial(self.enter_phase, phase, metadata))
        if step is None:
            return
        try:
            yield Call(step)
        except BaseException as error:
            self.fail_start(failure, error_message(error), metadata)  # in place: a cancelled task must still send it
            raise

    def _ask_resume(self, resume_plan: str | None, metadata: EventMetadata) -> PendingVerdict:
        payload = SessionResumed(self._core.view.snapshot_id, resume_plan)
        return self._verdicts.ask("resume", [payload], envelope_fields(metadata))

    def _ask_recovery(self, resume_plan: str | None, metadata: EventMetadata) -> PendingVerdict:
        payloads: list[Payload] = [SessionPhaseChanged("recovery"), SessionRecovered(resume_plan)]
        return self._verdicts.ask("recover", payloads, envelope_fields(metadata))

    def _wait_content(self, pending: PendingVerdict) -> dict[str, Json]:
        self._verdicts.wait(pending)
        return parsed_state(self._core.view.state_json)

    def _end_after(self, error: BaseException | None) -> None:
        view = self._core.view
        if view.detached or view.has_ended:
            return
        if view.question is not None:
            self._core.detach()  # a person is asked: the question stays open, and another process takes the answer
            return
        ending, message = ending_of(error), None if error is None else type(error).__name__
        if ending == "done":
            self._send_closed(None, {})
        elif ending == "cancelled":
            end = self.cancel if view.local_state in _END_BY_STATE else self._send_closed
            end(f"{CANCELLED} by {message}", {})
        elif isinstance(error, Exception):
            if view.local_state == "Active":
                self.error(error, None, {})
            self._send_closed(error_message(error), {})
        elif view.local_state == "Idle":
            self._send_closed(message, {})
        else:
            self._send_forced(message, {})

    def _send_closed(self, message: str | None, metadata: EventMetadata) -> None:
        state = self._core.view.local_state
        if state == "Idle":
            self.fail_start("connection_failed", message or "closed before it was started", metadata)
        elif state in _END_BY_STATE:
            self._send_terminated(_END_BY_STATE[state], message, metadata)
        else:
            self._core.detach()  # Timeout: only the processor ends it; Terminated: it has ended

    def _send_forced(self, message: str | None, metadata: EventMetadata) -> None:
        reason = _FORCED_BY_STATE.get(self._core.view.local_state, "abnormal_termination")
        self._send_terminated(reason, message, metadata)

    def _send_terminated(self, reason: TerminationReason, message: str | None, metadata: EventMetadata) -> None:
        core, view = self._core, self._core.view
        with core.lock:
            snapshot, is_asking = core.next_snapshot(), view.question is not None
            sent = core.send_awaited(SessionTerminated(reason, message, snapshot), envelope_fields(metadata))
            view.snapshot_id = snapshot.snapshot_id
            core.set_state("Terminated")
            if is_asking:  # perhaps a person has just answered: then the epoch is another one
                self._verdicts.end_again(sent, lambda: self._send_terminated("cancelled", message, metadata))

    # The quota

    def _wait_admitted(self, wait_s: float | None) -> Flow[None]:
        """Wait until the tenant's quota admits the session, if the client knows of quotas.

        Meanwhile the session sends heartbeats, so that the processor knows that it is wanted.
        `wait_s`: the longest wait; None: the client's setting. Raises as `Session.start` does; then
        the session has ended.
        """
        core = self._core
        if not core.services.quotas:
            return
        wait_s = core.services.quota_wait_s if wait_s is None else wait_s
        try:
            admitted = yield from self._poll_admission(wait_s)
        except (QuotaExceeded, SessionEnded):
            raise
        except BaseException:
            yield Do(partial(self._stop_waiting, "its client stopped waiting for the quota"))
            raise
        finally:
            self._beat_in_queue(on=False)
        if not admitted:
            yield Do(partial(self._stop_waiting, f"it waited {wait_s:g} s for the quota"))
            raise QuotaExceeded(None, LIMIT, core.emitter.key.tenant_id, wait_s, session_id=core.session_id)

    def _poll_admission(self, wait_s: float) -> Flow[bool]:
        """Return True once the session is admitted, False after `wait_s`."""
        core = self._core
        waits, pause_s = core.waits, _PAUSE_S
        timeout_s, fetch = core.services.verdict_timeout_s, core.services.control.fetch_session
        deadline_s = waits.now_s() + wait_s
        log_position: tuple[int, int] | None = None  # of the event that created it
        while True:
            try:
                if log_position is None:
                    log_position = yield Do(partial(core.emitter.wait_position, timeout_s))
                view: SessionView = yield Do(partial(fetch, core.session_id, log_position, timeout_s))
            except Unavailable:
                if waits.now_s() >= deadline_s:
                    raise
            except SessionLost:  # without a reported place, the creation may not be judged yet
                if log_position is not None or waits.now_s() >= deadline_s:
                    raise
            else:
                if view.state in ("Terminated", "Archived"):
                    self._leave_rejected(view)
                if not view.awaits_quota:
                    return True
            self._beat_in_queue(on=True)
            left_s = deadline_s - waits.now_s()
            if left_s <= 0:
                return False
            yield Wait(min(pause_s, left_s))
            pause_s = min(1.5 * pause_s, _PAUSE_S_MAX)

    def _leave_rejected(self, view: SessionView) -> None:
        """Raise why the session has ended before it started."""
        core = self._core
        with core.lock:
            core.set_state("Terminated")
            if view.reason_code != _QUOTA_REASON:
                raise SessionEnded(f"session {core.session_id} has ended before it started: {view.reason_code}")
            core.keep_rejection(core.view.created_id, _QUOTA_REASON)
        raise QuotaExceeded(None, LIMIT, core.emitter.key.tenant_id, session_id=core.session_id)

    def _beat_in_queue(self, *, on: bool) -> None:
        core, view = self._core, self._core.view
        with core.lock:
            if view.is_queued == on:
                return
            view.is_queued = on
            if on:
                core.beats.start()
            elif view.local_state != "Active":
                core.beats.stop()

    def _stop_waiting(self, why: str) -> None:
        core = self._core
        with core.lock:
            if core.view.local_state == "Idle" and not core.view.detached:
                core.send_event(SessionStartFailed("connection_failed", why), NO_FIELDS)
                core.set_state("Terminated")
