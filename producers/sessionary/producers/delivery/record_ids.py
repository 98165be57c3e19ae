"""Event ids, and records from templates, made at a fraction of the usual cost."""

import os
import time
from typing import Any

from sessionary.producers.ports import OutRecord
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.codec.compiled_helpers import (
    WRITER_GAVE_UP,
    Writer,
    encode_long,
    encode_varint,
    find_function,
    new_instance,
)
from sessionary.schemas.codec.formats import Format, event_format, format_of, older_form
from sessionary.schemas.codec.value_bounds import event_check
from sessionary.schemas.events import Payload
from sessionary.schemas.headers import event_headers
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import Envelope

# Placeholders for the fields that differ from event to event; none occurs in an event.
_ANY_ID, _ANY_SEQ, _ANY_TIME = "\0" * 36, 0x7A5B_3C9D_1E2F_4A6B, 0x6B4A_2F1E_9D3C_5B7A

_IDS_PER_READ = 64
_RANDOM_BYTES = 12  # of each id; one hexadecimal digit more than it needs
# By a hexadecimal digit: the two highest bits of it become the variant.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


class EventIds:
    """Random UUIDs of version 4. They come from the system's generator, many with one call of it.

    A copy of a running process, as of a virtual machine, has the unused ones too, and maybe the
    generator's state. So the first 32 bits are the moment at which an id is given out: what the two
    processes send can be distinguished. Thread-safe, and safe to use in a forked child.
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
    """Return the bits after the first 32 of new ids."""
    text, digits = os.urandom(_RANDOM_BYTES * _IDS_PER_READ).hex(), 2 * _RANDOM_BYTES
    each = (text[at : at + digits] for at in range(0, len(text), digits))
    return [f"-{one[:4]}-4{one[4:7]}-{_VARIANT[one[7]]}{one[8:11]}-{one[12:]}" for one in each]


class HeartbeatTemplate:
    """A session's heartbeat that differs from the next one in its id and its time only."""

    __slots__ = ("_head", "_headers", "_key", "_middle", "_said", "_tail", "facts")

    def __init__(self, record: OutRecord, occurred_at: int, facts: tuple[Any, ...]) -> None:
        """`facts`: the heartbeat's further fields. Raises `ValueError` if a part occurs twice."""
        self.facts = facts
        self._key, self._headers, self._said = record.key, record.headers, record[4:10]
        event_id, moment = record.event_id.encode(), encoded_time(occurred_at)
        self._head, rest = record.value.split(event_id)
        self._middle, self._tail = rest.split(moment)

    def make_heartbeat(self, occurred_at: int) -> OutRecord:
        """Return the heartbeat with a new id and this time, in µs since the epoch."""
        event_id = new_event_id(occurred_at)
        value = b"".join((self._head, event_id.encode(), self._middle, encoded_time(occurred_at), self._tail))
        return new_instance(OutRecord, (self._key, value, self._headers, event_id, *self._said, occurred_at))


class EventTemplate:
    """Envelope and headers of a session's events of one type that differ in id, number and time.

    Cold code costs several times as much as hot code, and an agent emits rarely: what was encoded
    once is not encoded again, and each function that is called counts.
    """

    __slots__ = (
        "_check",
        "_envelope",
        "_headers",
        "_high",
        "_is_older",
        "_key",
        "_older",
        "_parts",
        "_said",
        "_time_end",
        "_write_payload",
    )

    def __init__(self, key: bytes, envelope: Envelope, payload: Payload) -> None:
        """`key`: of the records. Raises `EncodeError`, and `ValueError` if none can be made."""
        self._key = key
        probe = Event(envelope._replace(event_id=_ANY_ID, producer_seq=_ANY_SEQ, occurred_at=_ANY_TIME), payload)
        self._envelope, self._check = envelope, event_check(type(payload))
        newest, format_ = format_of(probe), event_format(probe)
        self._older, self._is_older = older_form(newest), format_ is not newest
        self._write_payload = _payload_writer(format_)
        value, body = encode_event(probe), self._write_payload(b"", payload)
        head, found = value[: len(value) - len(body)], value[len(value) - len(body) :]
        if found != body:
            raise ValueError("the envelope does not come first")
        before, rest = head.split(_ANY_ID.encode())
        middle, rest = rest.split(encode_long(_ANY_SEQ))
        self._parts = (before, middle, *rest.split(encoded_time(_ANY_TIME)))
        self._headers = event_headers(envelope)
        self._high, self._time_end = 0, b""  # as `_last_high`
        self._said = (envelope.event_type, envelope.tenant_id, envelope.session_id, envelope.producer_id)

    def make_record(self, payload: Payload, seq: int) -> OutRecord | None:
        """Return the record of an event that occurs now.

        None if this template has no place for its fields, or a value is out of bounds.
        """
        older = self._older
        if older is not None and (payload[older.fields :] == older.defaults) is not self._is_older:
            return None
        now_us = time.time_ns() // 1_000
        event_id = new_event_id(now_us)
        before, middle, later, last = self._parts
        # As `encode_varint` and `encoded_time` do, without calls of them.
        number, moment = seq << 1, now_us << 1
        encoded_seq = bytes((number & 127 | 128, number >> 7)) if 128 <= number < 1 << 14 else encode_varint(number)
        if moment >> _LOW_BITS != self._high:
            self._high = moment >> _LOW_BITS
            self._time_end = encode_varint(self._high)
        low = bytes((moment & 127 | 128, moment >> 7 & 127 | 128, moment >> 14 & 127 | 128))
        encoded = (before, event_id.encode(), middle, encoded_seq, later, low, self._time_end, last)
        try:
            value = self._write_payload(b"".join(encoded), payload)
        except WRITER_GAVE_UP:
            return None
        if self._check(new_instance(Event, (self._envelope, payload))) or len(value) > VALUE_BYTES_MAX:
            return None
        return new_instance(OutRecord, (self._key, value, self._headers, event_id, *self._said, seq, None, now_us))


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


_LOW_BITS = 21  # three bytes; the higher bits of a time stay the same for a second
_last_high = (0, b"")  # the high bits of the last time, and their bytes


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
