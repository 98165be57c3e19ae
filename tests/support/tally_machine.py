"""A second, tiny machine: it counts a session's messages until none comes for a while.

It shows that a new family of rows needs nothing but a machine: it has rows of its own beside the
session's, in a form of its own, with deadlines, refusals and outputs, and takes over one event
type.

    message_appended            the tally of its session is one higher
    10 s without a message      the tally is closed: a clean-up request is written, a stub remains
    another 20 s                the stub vanishes; until then messages are refused

A test may give other times.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.machine import Arrival, Decision, RowKind
from sessionary.stream_processors.core.model import Emitted, Place, Stream
from sessionary.stream_processors.core.trail import rejected_record

TALLIED_TYPE = "message_appended"
TALLY_SERVICE = "tally"  # the service that a closed tally names in its request
KEY_SUFFIX = b"#tally"
CLOSED = "the tally is closed"  # why a message is refused
SILENCE_MS = 10_000
STUB_MS = 20_000


class Tally(NamedTuple):
    """The number of a session's messages, and when the last one came (ms of log time)."""

    tenant_id: str
    session_id: str
    messages: int
    last_at: int


class TallyStub(NamedTuple):
    """What remains of a closed tally."""

    tenant_id: str
    session_id: str
    messages: int
    expires_at: int


class MessageCounted(NamedTuple):
    """A message came."""

    tenant_id: str
    session_id: str
    at_ms: int


class MessageRefused(NamedTuple):
    """A message came after the tally was closed."""


class TallyClosed(NamedTuple):
    """No message came for too long."""

    at_ms: int


TallyRow = Tally | TallyStub
TallyFact = MessageCounted | MessageRefused | TallyClosed
_LIVE, _STUB = b"tally ", b"stub "


def encode_live(row: Tally, _rules: int) -> bytes:
    return _LIVE + json.dumps(row).encode()


def encode_stub(row: TallyStub, _rules: int) -> bytes:
    return _STUB + json.dumps(row).encode()


def tally_key(session_key: bytes) -> bytes:
    """Return the key of a session's tally."""
    return session_key + KEY_SUFFIX


class TallyMachine:
    """Implements `Machine`."""

    row_kinds: Sequence[RowKind] = (
        RowKind(Tally, live=True, prefixes=frozenset({_LIVE}), encode=encode_live),
        RowKind(TallyStub, live=False, prefixes=frozenset({_STUB}), encode=encode_stub),
    )
    event_types: frozenset[str] = frozenset({TALLIED_TYPE})
    streams: frozenset[Stream] = frozenset({"cleanup", "rejected"})
    reported_facts: frozenset[type[object]] = frozenset({MessageRefused, TallyClosed})

    def __init__(self, silence_ms: int = SILENCE_MS, stub_ms: int = STUB_MS) -> None:
        self.silence_ms, self.stub_ms = silence_ms, stub_ms

    def row_key(self, arrival: Arrival) -> bytes:
        return tally_key(arrival.record.key or b"")

    def decode(self, value: bytes) -> TallyRow:
        if value.startswith(_LIVE):
            return Tally(*json.loads(value.removeprefix(_LIVE)))
        if value.startswith(_STUB):
            return TallyStub(*json.loads(value.removeprefix(_STUB)))
        raise DecodeError("unknown_schema", "this is no tally")

    def decide(self, row: TallyRow | None, arrival: Arrival) -> Decision:
        if isinstance(row, TallyStub):
            return Decision((MessageRefused(),), refusal="session_archived")
        return Decision((MessageCounted(*arrival.session, arrival.now_ms),))

    def evolve(self, row: TallyRow | None, fact: TallyFact) -> TallyRow | None:
        match row, fact:
            case None, MessageCounted():
                return Tally(fact.tenant_id, fact.session_id, 1, fact.at_ms)
            case Tally(), MessageCounted():
                return row._replace(messages=row.messages + 1, last_at=fact.at_ms)
            case Tally(), TallyClosed():
                return TallyStub(row.tenant_id, row.session_id, row.messages, fact.at_ms + self.stub_ms)
        return row

    def receive_fact(self, row: TallyRow | None, fact: TallyFact) -> Sequence[TallyFact]:
        return (fact,)

    def report(
        self,
        key: bytes,
        row: TallyRow | None,
        after: TallyRow | None,
        fact: TallyFact,
        arrival: Arrival | None,
        place: Place,
    ) -> Sequence[Emitted]:
        if isinstance(fact, MessageRefused):
            assert arrival is not None
            rejected = rejected_record(arrival, "session_archived", CLOSED)
            return [Emitted("rejected", arrival.record.key, rejected)]
        assert row is not None
        session_key = key.removesuffix(KEY_SUFFIX)
        return [Emitted("cleanup", session_key, closing_request(row, place))]

    def estimate_bytes(self, row: TallyRow) -> int:
        return 100

    def due_ms(self, row: TallyRow, hole_end_ms: int = 0) -> int:
        return row.last_at + self.silence_ms if isinstance(row, Tally) else row.expires_at

    def repair_times(self, row: TallyRow, repairs: Sequence[ClockRepair]) -> TallyRow:
        return row

    def is_only_postponed(self, row: TallyRow, after: TallyRow) -> bool:
        return True

    def fire(self, row: TallyRow, now_ms: int, hole_end_ms: int = 0) -> Sequence[TallyFact]:
        return (TallyClosed(now_ms),)


def closing_request(row: TallyRow, place: Place) -> CleanupRequest:
    """Return what a closed tally asks for."""
    return CleanupRequest(
        cleanup_id=f"{row.session_id}:tally:{row.messages}",
        tenant_id=row.tenant_id,
        session_id=row.session_id,
        service_id=TALLY_SERVICE,
        epoch=0,
        reason_code="silence",
        reason=f"{row.messages} messages",
        actions=(),
        requested_at=place.now_ms * 1000,
        context_bytes=None,
    )
