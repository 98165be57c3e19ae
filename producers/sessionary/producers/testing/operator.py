"""An operator for tests: acts on sessions in memory as the control API does for people.

paused = memory.operator.pause(session, "look at it")
memory.operator.resume(session)
memory.operator.answer_with(lambda question: question == "Deploy?")
"""

import time
import uuid
from collections.abc import Callable
from threading import RLock
from typing import Protocol

from sessionary.producers.errors import Rejected
from sessionary.producers.ports import OnReceipt, OutRecord, SessionView
from sessionary.producers.testing.judged_event import MEMORY_KEYS, JudgedEvent, NamedSession
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import (
    EVENT_TYPES,
    Payload,
    RequestsRepeated,
    SessionPaused,
    SessionResumed,
    SessionTakenOver,
    SessionTerminated,
)
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionId, SessionKey
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Envelope

Decide = Callable[[str], bool | None]
"""Gets a question; True approves, False denies, None leaves it open."""


class JudgedMemory(Protocol):
    """The part of a memory that the operator uses."""

    def find_row(self, session: NamedSession | SessionId) -> SessionState:
        """Return the row of a session."""
        ...

    def view_session(self, session: NamedSession | SessionId) -> SessionView:
        """Return a session as the processor knows it."""
        ...

    def verdicts(self, session_id: SessionId | None = None) -> list[JudgedEvent]:
        """Return all events so far with their verdicts, in order."""
        ...

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Judge one record."""
        ...


class OperatorHand:
    """Pauses, resumes, cancels and claims sessions of a memory, and answers their questions.

    Every verb returns the event with its verdict, and raises `Rejected` if it was rejected. Clients
    are notified with the next `memory.advance`.
    """

    def __init__(self, memory: JudgedMemory, principal: str = "operator") -> None:
        """`principal`: who acts, for the audit trail."""
        self.principal = principal
        self._memory = memory
        self._decide: Decide | None = None
        self._answering = RLock()  # clients that wait in several threads answer no question twice

    def __repr__(self) -> str:
        return f"<OperatorHand {self.principal}>"

    def pause(
        self, session: NamedSession | SessionId, reason: str | None = None, hold_s: float | None = None
    ) -> JudgedEvent:
        """Hold an Active or Paused session; only an operator resumes it.

        `hold_s`: seconds after which the session ends, unless it is resumed; None: `hold_ms` of its
        limits.
        """
        hold_ms = None if hold_s is None else round(hold_s * 1_000)
        return self._act(session, SessionPaused("manual", reason, as_operator=True, hold_ms=hold_ms))

    def resume(self, session: NamedSession | SessionId, reason: str | None = None) -> JudgedEvent:
        """Resume a held session."""
        return self._act(session, SessionResumed(message=reason, as_operator=True))

    def cancel(self, session: NamedSession | SessionId, reason: str | None = None) -> JudgedEvent:
        """Cancel a session."""
        return self._act(session, SessionTerminated("cancelled", reason, as_operator=True))

    def claim(self, session: NamedSession | SessionId, service_id: str, reason: str | None = None) -> JudgedEvent:
        """Let a service own a session, also if its owner is alive; the holder is fenced off."""
        return self._act(session, SessionTakenOver(reason, as_operator=True), service_id)

    def ask_again(self, session: NamedSession | SessionId, reason: str | None = None) -> JudgedEvent:
        """Have the session's open requests sent again."""
        return self._act(session, RequestsRepeated(reason, as_operator=True))

    def approve(self, session: NamedSession | SessionId, reason: str | None = None) -> JudgedEvent:
        """Answer a session's open question: yes."""
        return self._act(session, SessionResumed(approved=True, message=reason, as_operator=True))

    def deny(self, session: NamedSession | SessionId, reason: str | None = None) -> JudgedEvent:
        """Answer a session's open question: no."""
        return self._act(session, SessionResumed(approved=False, message=reason, as_operator=True))

    def answer_with(self, decide: Decide | None) -> None:
        """Answer each question once its client begins to wait; None: answer none any more."""
        self._decide = decide

    def answer_open(self) -> None:
        """Answer the open questions as `answer_with` says."""
        decide = self._decide
        if decide is None:
            return
        with self._answering:
            asked = {judged.session_id for judged in self._memory.verdicts() if _asks(judged.event.payload)}
            for session_id in sorted(asked):
                question = self._memory.view_session(session_id).question
                approved = None if question is None else decide(question.text)
                if approved is not None:
                    (self.approve if approved else self.deny)(session_id)

    def _act(self, session: NamedSession | SessionId, payload: Payload, service_id: str = "control-api") -> JudgedEvent:
        row = self._memory.find_row(session)
        producer_id, event_type = str(uuid.uuid4()), EVENT_TYPES[type(payload)]
        envelope = Envelope(
            event_id=str(uuid.uuid4()),
            event_type=event_type,
            schema_version=1,
            tenant_id=row.tenant_id,
            session_id=row.session_id,
            user_id=None,
            agent_id=row.agent_id,
            agent_role=None,
            service_id=service_id,
            actor=self.principal,
            epoch=row.epoch,
            producer_id=producer_id,
            producer_seq=1,
            run_id=None,
            run_seq=None,
            step_id=None,
            causation_id=None,
            occurred_at=time.time_ns() // 1_000,
        )
        key = SessionKey(row.tenant_id, row.session_id)
        ids = (envelope.event_id, event_type, *key, producer_id, 1)
        value = encode_event(Event(envelope, payload))
        headers = [*event_headers(envelope), MEMORY_KEYS.sign(key.encoded(), value)]
        self._memory.send(OutRecord(key.encoded(), value, headers, *ids))
        judged = next(
            each
            for each in self._memory.verdicts(key.session_id)[::-1]
            if each.event.envelope.producer_id == producer_id
        )
        if judged.reason is not None:
            raise Rejected(event_type, judged.reason)
        return judged


def _asks(payload: Payload) -> bool:
    return isinstance(payload, SessionPaused) and payload.question is not None
