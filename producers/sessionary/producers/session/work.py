"""The verbs for the work in a session.

They hand an event over and return, without waiting for Kafka. Only under delivery policy `block`
they wait for room in the queue.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.session.handle import SessionHandle
from sessionary.producers.session.state_json import canonical_json
from sessionary.schemas.events import (
    Payload,
    ProgressReported,
    SessionActivity,
    SnapshotCreated,
    StateUpdated,
    UsageRecorded,
)
from sessionary.schemas.types import Phase

_UPDATE_PHASES: tuple[Phase, ...] = ("updating", "persisting")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class SessionWork(SessionHandle):
    """The verbs for the work in a session. Thread-safe."""

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
        occurred_at: datetime | None = None,
    ) -> str:
        """Send an event of any class in `sessionary.schemas.events`.

        Does not change `local_state`: prefer the other verbs for events of the session's life.

        Args:
            payload: The event.
            run_id: The run that the event belongs to.
            run_seq: The event's number within the run.
            step_id: The step that the event belongs to.
            causation_id: Id of the event that caused this one.
            actor: The principal that asked for it, instead of the client's `actor`.
            traceparent: W3C trace context, sent as a record header.
            occurred_at: When it happened; must have a timezone. None means now.

        Returns:
            The event's id, a UUID.

        Raises:
            Invalid: A value does not fit the event's schema or is out of bounds (a negative count,
                a name of more than 256 characters), the event is larger than 1 MiB, or
                `occurred_at` has no timezone.
            QueueFull: Under delivery policy `block` there was no room in time.
            SessionEnded: This object has ended the session.
            SessionFenced: Another process took the session over, and `sync` has found out.
            VerdictPending: A verdict is awaited.
            ClientClosed: The client is closed.
        """
        occurred_us = None if occurred_at is None else _epoch_us(occurred_at)
        fields = EnvelopeFields(run_id, run_seq, step_id, causation_id, actor, traceparent, occurred_us)
        return self._send_event(payload, fields if fields != NO_FIELDS else NO_FIELDS)

    def activity(self, kind: str, text: str | None = None) -> str:
        """Report work of some kind (`llm`, `tool`, `user` …). It counts as a sign of life.

        Returns the event's id. Raises as `emit` does.
        """
        return self._send_event(SessionActivity(kind, text))

    def info(self, text: str) -> str:
        """Report a text for people, as an activity of kind `info`.

        Returns the event's id. Raises as `emit` does.
        """
        return self._send_event(SessionActivity("info", text))

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> str:
        """Report progress of the current work: `progress` out of `total`, in any unit.

        Returns the event's id. Raises as `emit` does.
        """
        return self._send_event(ProgressReported(float(progress), total, message))

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
        """Report tokens and cost of one call of a model or a tool.

        Args:
            model: Name of the model.
            tokens_in: Tokens of the prompt.
            tokens_out: Tokens of the answer.
            model_cost_usd_micros: Cost of the model, in millionths of a US dollar.
            tool_cost_usd_micros: Cost of the tool, in millionths of a US dollar.
            is_timeout_retry: True if the call repeats one that timed out.
            retry_of: Id of the usage event that this call repeats.

        Returns:
            The event's id. Raises as `emit` does.
        """
        return self._send_event(
            UsageRecorded(
                model, tokens_in, tokens_out, model_cost_usd_micros, tool_cost_usd_micros, is_timeout_retry, retry_of
            )
        )

    def update_state(self, state: Mapping[str, Json]) -> int:
        """Replace the session's content.

        The processor refuses an update that is based on a version which is no longer the last
        one; `sync` shows what it has. The verb does not wait for that.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.

        Returns:
            The version of the new content; the old one if the session is not Active.

        Raises:
            Invalid: `state` cannot be written as JSON, or is too large.

        Otherwise raises as `emit` does.
        """
        updating_at = _now_us()
        text = canonical_json(state)
        with self._lock:
            update = StateUpdated(self._version, self._version + 1, text)
            if self._sends_phases and self._rules >= 2:
                update = update._replace(updating_at=updating_at, persisting_at=_now_us())
            elif self._sends_phases:
                # A refused update leaves the phase where it was: continue from there.
                reached = _UPDATE_PHASES.index(self._phase) + 1 if self._phase in _UPDATE_PHASES else 0
                self._send_phases(*_UPDATE_PHASES[reached:])
            self._send_event(update)
            self._phase = "processing"
            if self._local_state == "Active":  # in any other state the processor refuses it
                self._version += 1
                self._state_json = text
            return self._version

    def snapshot(self) -> str:
        """Record a snapshot of the content.

        Returns the snapshot's id. Raises as `emit` does.
        """
        with self._lock:
            snapshot = self._new_snapshot()
            self._send_event(SnapshotCreated(snapshot))
            self._snapshot_id = snapshot.snapshot_id
            return snapshot.snapshot_id


def _now_us() -> int:
    return time.time_ns() // 1_000


def _epoch_us(moment: datetime) -> int:
    """Return `moment` in µs since the epoch. Raises `Invalid` if it has no timezone."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise Invalid(
            "invalid_value",
            f"occurred_at is {moment!r}: pass a datetime with a timezone, such as datetime.now(UTC)",
        )
    return (moment - _EPOCH) // _MICROSECOND


__all__ = ["SessionWork"]
