"""Record headers: CloudEvents in Kafka's binary mode and W3C trace context.

Sources: CloudEvents 1.0, Kafka protocol binding §3.2 (attributes as `ce_*`, `content-type`); W3C
Trace Context.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import methodcaller
from typing import Any, Final, NamedTuple, Protocol

from sessionary.schemas.types import Envelope

CONTENT_TYPE = b"application/avro"
TYPE_PREFIX = "sessionary."
Headers = Sequence[tuple[str, bytes | None]]
# Stands for all headers of a record if they cannot be read. librdkafka ends a name at its first NUL
# byte, so that no header that it delivers has this name.
UNREADABLE_HEADERS: Final = (("unreadable-headers\0", b"the name of a header is not UTF-8"),)
TRACEPARENT: Final = "traceparent"
# Of a record that has no place of a transaction in its value: partition and number of the
# transaction that wrote it, as `3:128`. Not in the value, which is the same in any batch.
TRANSACTION: Final = "transaction"
REPLAYED_FROM: Final = "replayed_from"  # where the record was rejected that is sent again, as JSON
_CONTENT_TYPE = ("content-type", CONTENT_TYPE)
_VERSION = ("ce_specversion", b"1.0")
_ID_AT, _TIME_AT = 2, 6  # places in an event's headers
_TRACE_CONTEXT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_CONTEXT_BYTES = re.compile(_TRACE_CONTEXT.pattern.encode())
_TRANSACTION = re.compile(rb"(\d{1,10}):(\d{1,19})")

# The driver returns a list and sets an exception. `message.headers()` in code that runs often does
# not notice: the interpreter's specialized instruction looks at the list only, and the exception
# comes up at some later place. A call from C is always checked.
_call_headers = methodcaller("headers")


class EventIdentity(NamedTuple):
    """The fields of an envelope that name an event, and make its headers."""

    event_id: str
    event_type: str
    tenant_id: str
    session_id: str
    service_id: str
    producer_id: str
    producer_seq: int
    occurred_at: int  # µs since the epoch


@lru_cache(maxsize=4_096)  # few combinations recur
def _source_and_type(tenant_id: str, service_id: str, event_type: str) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    return ("ce_source", f"/{tenant_id}/{service_id}".encode()), ("ce_type", (TYPE_PREFIX + event_type).encode())


@lru_cache(maxsize=4_096)
def iso_second(seconds: int) -> str:
    """Return a time in s since the epoch as ISO 8601 in UTC, without its offset.

    Raises `ValueError`, `OverflowError` or `OSError` beyond the years 1 to 9999.
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def time_header(at_us: int) -> bytes:
    """Return the value of `ce_time` for a time in µs since the epoch.

    Raises `ValueError`, `OverflowError` or `OSError` beyond the years 1 to 9999.
    """
    second, rest = divmod(at_us, 1_000_000)
    return f"{iso_second(second)}.{rest:06}+00:00".encode() if rest else f"{iso_second(second)}+00:00".encode()


def _envelope_headers(envelope: Envelope | EventIdentity) -> list[tuple[str, bytes]]:
    """Return the CloudEvents attributes of an envelope.

    Raises `ValueError`, `OverflowError` or `OSError` for a time beyond the years 1 to 9999.
    """
    source, kind = _source_and_type(envelope.tenant_id, envelope.service_id, envelope.event_type)
    return [
        _CONTENT_TYPE,
        _VERSION,
        ("ce_id", envelope.event_id.encode()),
        source,
        kind,
        ("ce_subject", envelope.session_id.encode()),
        ("ce_time", time_header(envelope.occurred_at)),
    ]


def event_headers(envelope: Envelope | EventIdentity, traceparent: str | None = None) -> list[tuple[str, bytes]]:
    """Return the headers of one event.

    A malformed `traceparent` is left out, as the specification asks. Raises `ValueError`,
    `OverflowError` or `OSError` if `occurred_at` is beyond the years 1 to 9999.
    """
    headers = _envelope_headers(envelope)
    if traceparent is not None and _TRACE_CONTEXT.fullmatch(traceparent):
        headers.append((TRACEPARENT, traceparent.encode()))
    return headers


def restamp_headers(headers: list[tuple[str, bytes]], event_id: str, at_us: int) -> list[tuple[str, bytes]]:
    """Return an event's headers for another one that differs in its id and its time only.

    `headers` are of `event_headers`; `at_us` is in µs since the epoch. Raises as `time_header`.
    """
    restamped = headers.copy()
    restamped[_ID_AT] = "ce_id", event_id.encode()
    restamped[_TIME_AT] = "ce_time", time_header(at_us)
    return restamped


def find_traceparent(headers: Headers) -> bytes | None:
    """Return the trace context that a record's headers have; None if it is malformed."""
    for name, value in headers:
        if name == TRACEPARENT:
            return value if value is not None and _TRACE_CONTEXT_BYTES.fullmatch(value) else None
    return None


def transaction_header(partition: int, number: int) -> tuple[str, bytes]:
    """Return the header that names the transaction of an output: its partition and its number."""
    return TRANSACTION, f"{partition}:{number}".encode()


def find_transaction(headers: Headers) -> tuple[int, int] | None:
    """Return partition and number of the transaction that headers name; None if they do not."""
    for name, value in headers:
        if name == TRANSACTION:
            found = _TRANSACTION.fullmatch(value or b"")
            return None if found is None else (int(found[1]), int(found[2]))
    return None


class HeaderSource(Protocol):
    """A message of the Kafka driver, as far as its headers go."""

    def headers(self) -> Any:
        """Return a list of pairs of name and bytes, or None. Makes it when it is called first."""
        ...

    def set_headers(self, headers: list[tuple[str, str | bytes | None]], /) -> None:
        """Replace what `headers` returns."""
        ...


def read_headers(message: HeaderSource) -> Headers | None:
    """Return a message's headers as the driver gives them, or `UNREADABLE_HEADERS`.

    The driver raises `SystemError` if a header's name is not UTF-8. Asked again, it returns a list
    with a hole, and the process dies when the hole is read. So the failure is kept in the message:
    every later call returns `UNREADABLE_HEADERS` too.
    """
    try:
        headers: Headers | None = _call_headers(message)
    except (SystemError, UnicodeDecodeError):
        return keep_unreadable(message)
    return headers


def read_each_headers(messages: Sequence[HeaderSource]) -> list[Headers | None]:
    """Return the result of `read_headers` for each message, in half the time."""
    found: list[Headers | None] = []
    waiting = iter(messages)
    while True:
        try:
            found.extend(map(_call_headers, waiting))
            return found
        except (SystemError, UnicodeDecodeError):  # of the message after those that are in `found`
            found.append(keep_unreadable(messages[len(found)]))


def keep_unreadable(message: HeaderSource) -> Headers:
    """Let a message whose headers could not be read keep `UNREADABLE_HEADERS`; return these."""
    kept: list[tuple[str, Any]] = list(UNREADABLE_HEADERS)
    message.set_headers(kept)
    return kept


def header_pairs(
    headers: Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None,
) -> list[tuple[str, bytes]]:
    """Return a Kafka message's headers in their order, as pairs of name and bytes.

    Takes every type that the driver declares. A header without a value gets an empty one.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


def headers_beyond_envelope(envelope: Envelope, headers: Headers) -> Headers:
    """Return the headers that say more than the envelope; all if they differ from it."""
    try:
        repeated = _envelope_headers(envelope)
    except (ValueError, OverflowError, OSError):
        return headers
    if headers == repeated:
        return ()
    return headers[len(repeated) :] if headers[: len(repeated)] == repeated else headers
