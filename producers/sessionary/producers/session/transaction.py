"""A transaction on a session's content: pending values that only their writer sees."""

import uuid
from types import TracebackType
from typing import Literal

from sessionary.producers.agents.work import VersionConflict
from sessionary.producers.context.error_info import error_message
from sessionary.producers.context.reported_block import end_off_loop
from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid, Rejected, SessionaryError, SessionLost
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.run_ports import PAST_S
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.updates import judge_sent
from sessionary.producers.session.view import canonical_json, parsed_state
from sessionary.schemas.events import SessionRolledBack, TxnBegun, TxnCommitted, TxnRolledBack
from sessionary.schemas.limits import CHECKPOINTS_KEPT
from sessionary.schemas.types import RejectionReason


class Transaction:
    """A transaction, made by `Session.transaction`. Use it once, in `with` or `async with`, which
    never blocks the event loop.

    Attributes:
        transaction_id: The transaction's id, a UUID.
        base_version: The version of the content on which the pending values are based; 0 before
            the begin.
    """

    __slots__ = ("_core", "_fields", "_pending", "base_version", "transaction_id")

    def __init__(self, core: SessionCore, metadata: EventMetadata) -> None:
        self._core = core
        self._fields: EnvelopeFields = envelope_fields(metadata)
        self._pending: dict[str, Json] = {}
        self.transaction_id = str(uuid.uuid4())
        self.base_version = 0

    def __repr__(self) -> str:
        return f"<Transaction {self.transaction_id} of session {self._core.session_id}>"

    def __enter__(self) -> dict[str, Json]:
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._end(error)
        return False

    async def __aenter__(self) -> dict[str, Json]:
        from sessionary.producers.process.off_loop import open_or_leave  # loads asyncio, as this runs

        return await open_or_leave(self._begin, lambda _, error: self._end(error))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await end_off_loop(self._core.call_reporter(), self._end, error)
        return False

    def _begin(self) -> dict[str, Json]:
        """Begin, and wait for the verdict. Returns a copy of the content, for pending values."""
        core = self._core
        core.view.require_held()
        core.services.control.check_configured()
        sent = core.send_awaited(TxnBegun(self.transaction_id), self._fields)
        if core.services.runs is None:  # a client that is turned off has no processor
            self.base_version, self._pending = core.view.version, parsed_state(core.view.state_json)
            return self._pending
        judged, rejection = judge_sent(core, sent)
        if rejection is not None:
            raise Rejected("txn_begun", rejection)
        _adopt_content(core, judged)
        self.base_version, self._pending = judged.version, parsed_state(judged.state_json)
        return self._pending

    def _end(self, error: BaseException | None) -> None:
        """Commit, or roll back if the block was left by an error."""
        core = self._core
        if core.emitter.is_of_parent:  # which ends it
            return
        if error is not None:
            self._roll_back(error_message(error))
            return
        try:
            text = canonical_json(self._pending)
            committed = TxnCommitted(self.transaction_id, self.base_version, self.base_version + 1, text)
            rejection = _send_version(core, committed, self._fields)
        except SessionaryError as failure:
            self._roll_back(error_message(failure))
            raise
        if rejection is None:
            return
        self._roll_back(rejection)
        raise _rejected(core, "txn_committed", rejection, self.base_version)

    def _roll_back(self, reason: str) -> None:
        """Send that the transaction has ended; the caller must see its own error."""
        core = self._core
        try:
            core.send_event(TxnRolledBack(self.transaction_id, reason), self._fields)
        except SessionaryError as failure:
            core.services.on_error(failure)


def _send_version(
    core: SessionCore, payload: TxnCommitted | SessionRolledBack, fields: EnvelopeFields
) -> RejectionReason | None:
    """Send an event that makes a new version, wait for its verdict, and adopt the content.

    Returns the reason of a rejection.
    """
    with core.update_lock:
        if core.view.version > payload.base_version:
            return "version_conflict"  # it is certain: another thread was first
        sent = core.send_awaited(payload, fields)
        if core.services.runs is None:  # a client that is turned off has no processor
            if isinstance(payload, TxnCommitted):
                with core.lock:
                    core.view.version, core.view.state_json = payload.new_version, payload.state_json
                    core.view.changes += 1
            return None
        judged, rejection = judge_sent(core, sent)
        _adopt_content(core, judged)
        return rejection


def _rejected(
    core: SessionCore, event_type: str, rejection: RejectionReason, base: int, detail: str = ""
) -> VersionConflict | Rejected:
    """Return the error of an event that was to make a new version."""
    if rejection != "version_conflict":
        return Rejected(event_type, rejection, detail)
    with core.lock:
        version, text = core.view.version, core.view.state_json
    return VersionConflict(core.session_id, base, version, parsed_state(text))


def _adopt_content(core: SessionCore, judged: SessionView) -> None:
    """Take over the processor's content, unless this object knows a newer one."""
    known = core.view
    with core.lock:
        if judged.version >= known.version or known.is_update_open:
            known.version, known.state_json = judged.version, judged.state_json
            known.changes += 1


def roll_back_session(core: SessionCore, to: str, reason: str | None, metadata: EventMetadata) -> int:
    """Make the content of an older snapshot the session's; return its new version. Blocks."""
    core.view.require_held()
    core.services.control.check_configured()
    base = core.view.version
    payload = SessionRolledBack(to, base, base + 1, reason)
    fields = envelope_fields(metadata)
    rejection = _send_version(core, payload, fields)
    detail = ""
    if rejection == "unknown_snapshot":  # the processor does not keep its content, which is still in the log
        found, detail = _find_older(core, to)
        if found is not None:
            rejection = _send_version(core, payload._replace(state_json=found), fields)
    if rejection is None:
        return core.view.version
    raise _rejected(core, "session_rolled_back", rejection, base, detail)


def _find_older(core: SessionCore, snapshot_id: str) -> tuple[str | None, str]:
    """Return the content of any snapshot of the session, or None and what is kept, for people."""
    kept = (
        f"the processor keeps the last {CHECKPOINTS_KEPT} that snapshot() has recorded, and the head of the chain; the "
        "content of older ones is folded from the session's events, as long as Kafka has them"
    )
    runs = core.services.runs
    try:
        found = None if runs is None else runs.fetch_snapshot(core.session_id, snapshot_id, PAST_S)
    except SessionLost as lost:
        return None, f"the events up to snapshot {snapshot_id} are gone ({lost}): {kept}"
    except Invalid as broken:
        if broken.reason != "hash_mismatch":
            raise
        return None, f"what the log has does not lead to it ({broken.detail}): {kept}"
    if found is None:
        return None, f"the session has no snapshot {snapshot_id}: {kept}"
    return found.state_json, f"snapshot {snapshot_id} is too old: {kept}"
