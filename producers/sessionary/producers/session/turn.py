"""A turn of a session: one exchange with its user. Between turns the session waits for its user.

The processor judges the begin, so that one process at a time is in a turn: a session that ended
meanwhile, or in which another process is, is found out before any work is done.
"""

from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self

from sessionary.producers.context.reported_block import end_off_loop
from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import NotAllowed, Rejected, SessionaryError, SessionEnded, Unavailable
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.updates import judge_sent
from sessionary.producers.session.view import WAITING
from sessionary.schemas.events import SessionPhaseChanged

_EVENT: Final = "session_phase_changed"
_REMEDIES: Final = {
    "Idle": "start() the session first",
    "Paused": "resume() the session first, or wait for the answer to its question",
    "Timeout": "resume() the session first",
    "Error": "recover() or close() the session first",
}


_BY_STATE: Final = frozenset({"phase_order", "illegal_transition", "late"})  # rejections


def _refusal(state: str) -> str:
    return f"a turn is not possible in {state}: {_REMEDIES.get(state, 'the session has ended')}"


class Turn:
    """One exchange with the session's user, made by `Session.turn`. Use it once, in `with` or
    `async with`, which never blocks the event loop.

    Attributes:
        number: The turn's number in the session, from 1; 0 before it has begun. A turn that a dead
            process left keeps its number when it is begun again.
    """

    __slots__ = ("_core", "_fields", "number")

    def __init__(self, core: SessionCore, metadata: EventMetadata) -> None:
        self._core = core
        self._fields: EnvelopeFields = envelope_fields(metadata)
        self.number = 0

    def __repr__(self) -> str:
        return f"<Turn {self.number} of session {self._core.session_id}>"

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._end_quietly(error)
        return False

    async def __aenter__(self) -> Self:
        from sessionary.producers.process.off_loop import open_or_leave  # loads asyncio, as this runs

        await open_or_leave(self._begin, lambda _, error: self._end_quietly(error))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await end_off_loop(self._core.call_reporter(), self._end_quietly, error)
        return False

    def _begin(self) -> None:
        """Begin, and wait for the verdict. Raises as `Session.turn` describes it."""
        core = self._core
        core.emitter.check_process()
        core.services.control.check_configured()
        calls = core.services.calls
        if not calls.open_turn(core.session_id):
            detail = f"a turn of session {core.session_id} is open in this process: the next one begins after its end"
            raise NotAllowed("phase_order", detail, core.view.local_state, _EVENT)
        try:
            self.number = self._ask()
            calls.begin_turn(core.session_id, self.number, has_past=not core.view.created_id)
        except BaseException:
            calls.end_turn(core.session_id)
            raise

    def _ask(self) -> int:
        """Ask the processor for the turn; return its number."""
        core, view = self._core, self._core.view
        with core.lock:
            departures = view.departures
            self._require_active()
            sent = core.send_awaited(SessionPhaseChanged("processing"), self._fields)
            view.phase = "processing"
            core.set_state(view.local_state)  # heartbeats, from before the verdict on
            read = core.begin_read()
        if core.services.runs is None:  # a client that is turned off has no processor
            return 1
        try:
            judged, rejection = judge_sent(core, sent)
        except BaseException:
            self._take_back()
            raise
        with core.lock_then_notify():
            is_outdated = view.departures == departures and not core.adopt_read(judged, read)
        if is_outdated:  # another thread has changed the session meanwhile
            with suppress(Unavailable):
                core.sync(departures)
        if rejection is None:
            return judged.exchanges + 1
        with core.lock:
            if view.local_state == "Active":
                view.phase = WAITING  # no heartbeats of this process for the turn of another one
                core.set_state("Active")
        if judged.state in ("Terminated", "Archived"):
            detail = f"session {core.session_id} has ended ({judged.reason_code}): open a new one for the next message"
            raise SessionEnded(detail)
        detail = "another process is in a turn: wait for its end, or attach with take_over=True"
        if judged.state != "Active":
            detail = _refusal(judged.state)
        raise Rejected(_EVENT, rejection, detail if rejection in _BY_STATE else "")

    def _require_active(self) -> None:
        """Raise `NotAllowed` in a state that another process cannot have left in this epoch."""
        view = self._core.view
        state = view.local_state
        if view.pending is not None or state not in _REMEDIES or (state == "Idle" and not view.created_id):
            return  # the event is judged, here or by the processor
        view.require_held()
        raise NotAllowed("illegal_transition", _refusal(state), state, _EVENT)

    def _take_back(self) -> None:
        """End a turn that may have begun: its verdict did not come."""
        try:
            self._send_end()
        except SessionaryError as error:  # the caller must see why it did not begin
            self._core.services.on_error(error)

    def _send_end(self) -> None:
        core, view = self._core, self._core.view
        with core.lock:
            # Else an error, an end, or a pause of its own came before: the turn goes on after it.
            if view.local_state == "Active" or (view.is_held and view.question is None):
                core.send_phases(WAITING, fields=self._fields)
                core.set_state(view.local_state)  # no heartbeats

    def _end_quietly(self, error: BaseException | None) -> None:
        """End the turn. Raises as `Session.emit` does, unless the block was left by `error`."""
        core = self._core
        if core.emitter.is_of_parent:  # which ends it
            return
        try:
            self._send_end()
        except Exception as failure:  # of any kind: the caller must see what the body raised
            if error is None:
                raise
            core.services.on_error(failure)
        finally:  # not before: another thread's turn would be sent before the end of this one
            core.services.calls.end_turn(core.session_id)
