"""A family of children that only tests have: it counts a session's messages until none comes.

It shows all that a new family needs: this module, and one line in the list of families.

    message_appended            the tally of its session is one higher
    10 s without a message      the tally is closed: a clean-up request is written
    another message             is rejected; the closed tally stays as long as its session

It takes the place of the messages' own family. A test may give another time.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from sessionary.schemas.codec import Event
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.ids import SessionKey, child_key
from sessionary.schemas.records import CleanupRequest, SessionState
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.children.message import MESSAGES
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.family import (
    ChildFamily,
    Judged,
    SessionArrival,
    estimate_row_bytes,
    session_facts,
)
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.model import Decision, OutputCause, RowLookup
from sessionary.stream_processors.core.rows import RowKind
from sessionary.stream_processors.core.session.judge import SessionJudge

TALLY_SERVICE = "tally"  # the service that a closed tally names in its request
CLOSED = "the tally is closed"  # why a message is rejected
SILENCE_MS = 10_000
_LIVE, _CLOSED = b"tally ", b"closed "


class Tally(NamedTuple):
    """The number of a session's messages, and when the last one came (ms of log time)."""

    tenant_id: str
    session_id: str
    messages: int
    last_at: int


class ClosedTally(NamedTuple):
    """A tally that takes no more messages."""

    tenant_id: str
    session_id: str
    messages: int


class TallyClosed(NamedTuple):
    """No message came for too long."""

    messages: int

    def apply(self, row: SessionState) -> SessionState:
        return row

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, place: OutputCause
    ) -> list[CleanupRequest]:
        return [
            CleanupRequest(
                cleanup_id=f"{session.session_id}:tally:{self.messages}",
                tenant_id=session.tenant_id,
                session_id=session.session_id,
                service_id=TALLY_SERVICE,
                epoch=0,
                reason_code="silence",
                reason=f"{self.messages} messages",
                actions=(),
                requested_at=place.now_ms * 1000,
                context_bytes=None,
            )
        ]


TallyRow = Tally | ClosedTally


def encode_live(row: Tally, _rules: int) -> bytes:
    return _LIVE + json.dumps(row).encode()


def encode_closed(row: ClosedTally, _rules: int) -> bytes:
    return _CLOSED + json.dumps(row).encode()


def tally_key(session_key: bytes) -> bytes:
    """Return the key of a session's tally."""
    return child_key(session_key, b"t", "")


class TallyRows:
    """Implements `Rows` in a form that is no Avro. A compiled class would have no heirs here."""

    def __init__(self, silence_ms: int = SILENCE_MS) -> None:
        live = RowKind(Tally, live=True, prefixes=frozenset({_LIVE}), encode=encode_live, is_child=True)
        closed = RowKind(ClosedTally, live=False, prefixes=frozenset({_CLOSED}), encode=encode_closed, is_child=True)
        self.kinds: Sequence[RowKind] = (live, closed)
        self.silence_ms = silence_ms

    def decode(self, value: bytes) -> TallyRow:
        if value.startswith(_LIVE):
            return Tally(*json.loads(value.removeprefix(_LIVE)))
        if value.startswith(_CLOSED):
            return ClosedTally(*json.loads(value.removeprefix(_CLOSED)))
        raise DecodeError("unknown_schema", "this is no tally")

    def estimate_bytes(self, row: TallyRow) -> int:
        return estimate_row_bytes(row)

    def due_ms(self, row: TallyRow, outage_end_ms: int = 0) -> int:
        return row.last_at + self.silence_ms if isinstance(row, Tally) else NEVER_MS

    def repair_times(self, row: TallyRow, repairs: Sequence[ClockRepair]) -> TallyRow:
        return row

    def is_only_postponed(self, row: TallyRow, after: TallyRow) -> bool:
        return True

    def fire(self, key: bytes, row: Tally, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        closed = ClosedTally(row.tenant_id, row.session_id, row.messages)
        return Decision(session_facts(rows, row, TallyClosed(row.messages)), writes={key: closed})


def judge_tally(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Count a message, or reject it."""
    tally = arrival.child
    if isinstance(tally, ClosedTally):
        return Objection("session_archived", CLOSED)
    count = 0 if tally is None else tally.messages
    return Judged(Tally(session.tenant_id, session.session_id, count + 1, arrival.now_ms))


def _key_of(event: Event, session: bytes, run: bytes, row: Any) -> bytes:
    return tally_key(session)


def tally_family(silence_ms: int = SILENCE_MS) -> ChildFamily:
    """Return the family; this is the one line."""
    return ChildFamily(TallyRows(silence_ms), (MessageAppended,), _key_of, judge_tally, frozenset({TallyClosed}))


def tally_judge(silence_ms: int = SILENCE_MS) -> SessionJudge:
    """Return a judge that counts messages."""
    others = [family for family in CHILDREN if family is not MESSAGES]
    return SessionJudge([*others, tally_family(silence_ms)])
