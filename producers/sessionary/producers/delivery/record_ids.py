"""Event ids, and records from templates, made at a fraction of the usual cost."""

import os
from typing import Any

from sessionary.producers.ports import OutRecord
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.codec.compiled_functions import find_function
from sessionary.schemas.codec.compiled_helpers import WRITER_GAVE_UP, Writer, encode_long, encode_varint
from sessionary.schemas.codec.formats import Format, event_format, form_of_payload, format_of
from sessionary.schemas.events import Payload
from sessionary.schemas.headers import event_headers, time_header
from sessionary.schemas.types import Envelope

# Values that take the places of what differs from event to event; none occurs in an event.
_ANY_ID, _ANY_SEQ, _ANY_TIME = "\0" * 36, 0x7A5B_3C9D_1E2F_4A6B, 0x6B4A_2F1E_9D3C_5B7A

_IDS_PER_READ = 64
_RANDOM_BYTES = 12  # of each id; one hexadecimal digit more than it needs
# By a hexadecimal digit: the two highest bits of it become the variant.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


class EventIds:
    """Random UUIDs of version 4. They come from the system's generator, many with one call of it.

    A copy of a running process, as of a virtual machine, has the unused ones too, and maybe the
    generator's state. So the first 32 bits are the moment at which an id is given out: what the two
    processes send can be told apart. Thread-safe, and safe to use in a forked child.
    """

    def __init__(self) -> None:
        self._unused: list[str] = []
        if hasattr(os, "register_at_fork"):  # Windows has none, and no fork
            os.register_at_fork(after_in_child=self._unused.clear)  # else both would use the same ones

    def new_id(self, now_us: int) -> str:
        """Return a new id, in lower case with hyphens; `now_us` in µs since the epoch."""
        try:
            end = self._unused.pop()
        except IndexError:
            end, *more = _random_ends()
            self._unused.extend(more)
        return f"{now_us & 0xFFFF_FFFF:08x}{end}"


def _random_ends() -> list[str]:
    """Return what follows the first 32 bits of new ids."""
    text, digits = os.urandom(_RANDOM_BYTES * _IDS_PER_READ).hex(), 2 * _RANDOM_BYTES
    each = (text[at : at + digits] for at in range(0, len(text), digits))
    return [f"-{one[:4]}-4{one[4:7]}-{_VARIANT[one[7]]}{one[8:11]}-{one[12:]}" for one in each]


class HeartbeatTemplate:
    """A session's heartbeat that differs from the next one in its id and its time only."""

    __slots__ = ("_facts", "_head", "_headers", "_id_at", "_middle", "_record", "_tail", "_time_at")

    def __init__(self, record: OutRecord, occurred_at: int, facts: tuple[Any, ...]) -> None:
        """`facts`: what else the heartbeat says. Raises `ValueError` if a part occurs twice."""
        self._facts = facts
        self._record = record
        self._headers = record.headers
        self._id_at, self._time_at = _places_of_headers(record.headers)
        event_id, moment = record.event_id.encode(), encoded_time(occurred_at)
        self._head, rest = record.value.split(event_id)
        self._middle, self._tail = rest.split(moment)

    def is_current(self, facts: tuple[Any, ...]) -> bool:
        """Return True if a heartbeat with these facts can be made from it."""
        return self._facts == facts

    def make_heartbeat(self, event_id: str, occurred_at: int) -> OutRecord:
        """Return the heartbeat with this id and time, in µs since the epoch."""
        encoded_id = event_id.encode()
        value = b"".join((self._head, encoded_id, self._middle, encoded_time(occurred_at), self._tail))
        headers = self._headers.copy()
        headers[self._id_at] = "ce_id", encoded_id
        headers[self._time_at] = "ce_time", time_header(occurred_at)
        said = self._record
        return OutRecord(
            said.key,
            value,
            headers,
            event_id,
            said.event_type,
            said.tenant_id,
            said.session_id,
            said.producer_id,
            said.producer_seq,
            said.traceparent,
        )


class EventTemplate:
    """Envelope and headers of a session's events of one type that differ in id, number and time.

    Cold code costs several times as much as hot code, and an agent emits rarely: what was encoded
    once is not encoded again.
    """

    __slots__ = ("_format", "_headers", "_id_at", "_key", "_newest", "_parts", "_time_at", "_write_payload", "envelope")

    def __init__(self, key: bytes, envelope: Envelope, payload: Payload) -> None:
        """`key`: of the records. Raises `EncodeError`, and `ValueError` if none can be made."""
        self._key = key
        probe = Event(envelope._replace(event_id=_ANY_ID, producer_seq=_ANY_SEQ, occurred_at=_ANY_TIME), payload)
        self.envelope = envelope
        self._newest, self._format = format_of(probe), event_format(probe)
        self._write_payload = _payload_writer(self._format)
        value, body = encode_event(probe), self._write_payload(b"", payload)
        head, found = value[: len(value) - len(body)], value[len(value) - len(body) :]
        if found != body:
            raise ValueError("the envelope does not come first")
        before, rest = head.split(_ANY_ID.encode())
        middle, rest = rest.split(encode_long(_ANY_SEQ))
        self._parts = (before, middle, *rest.split(encoded_time(_ANY_TIME)))
        self._headers = event_headers(envelope)
        self._id_at, self._time_at = _places_of_headers(self._headers)

    def make_record(self, payload: Payload, event_id: str, seq: int, occurred_at: int) -> OutRecord | None:
        """Return an event's record; None if this template has no place for what it says."""
        if form_of_payload(payload, self._newest) is not self._format:
            return None
        encoded_id = event_id.encode()
        before, middle, later, last = self._parts
        encoded = (before, encoded_id, middle, encode_long(seq), later, encoded_time(occurred_at), last)
        try:
            value = self._write_payload(b"".join(encoded), payload)
        except WRITER_GAVE_UP:
            return None
        headers = self._headers.copy()
        headers[self._id_at] = "ce_id", encoded_id
        headers[self._time_at] = "ce_time", time_header(occurred_at)
        said = self.envelope
        return OutRecord(
            self._key,
            value,
            headers,
            event_id,
            said.event_type,
            said.tenant_id,
            said.session_id,
            said.producer_id,
            seq,
        )


def _places_of_headers(headers: list[tuple[str, bytes]]) -> tuple[int, int]:
    """Return where the headers are that differ from event to event: those of id and time."""
    names = [name for name, _ in headers]
    return names.index("ce_id"), names.index("ce_time")


_WRITERS: dict[bytes, Writer] = {}  # by the formats' headers


def _payload_writer(format_: Format) -> Writer:
    """Return a writer of the payloads of a format, without their envelope.

    Raises `ValueError` if the build did not make it.
    """
    writer: Writer | None = _WRITERS.get(format_.header)
    if writer is None:
        writer = find_function("write_payload", f"{format_.schema['name']}", format_.header[2:])
        if writer is None:
            raise ValueError(f"no template for a {format_.cls.__name__}")
        _WRITERS[format_.header] = writer
    return writer


_LOW_BITS = 21  # three bytes; in times, what is above them stays the same for a second
_last_high = (0, b"")  # what is above the low bits of the last time, and its bytes


def encoded_time(number: int) -> bytes:
    """Return a number, such as a time of these centuries, as Avro's `long`; not below 0."""
    global _last_high
    zigzag = number << 1
    high = zigzag >> _LOW_BITS
    if not high:
        return encode_varint(zigzag)
    known, end = _last_high
    if high != known:
        end = encode_varint(high)
        _last_high = high, end
    return bytes((zigzag & 127 | 128, zigzag >> 7 & 127 | 128, zigzag >> 14 & 127 | 128)) + end


new_event_id = EventIds().new_id

__all__ = ["EventIds", "EventTemplate", "HeartbeatTemplate", "new_event_id"]
