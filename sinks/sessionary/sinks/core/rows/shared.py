"""The shared parts of the row builders: types, the columns of a row's source, decoding."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.headers import HeaderSource, header_pairs, read_headers
from sessionary.schemas.ids import parse_key
from sessionary.schemas.limits import REPORTED_MAX_US, REPORTED_MIN_US
from sessionary.schemas.types import Envelope
from sessionary.sinks.errors import BadRow

# Times that ClickHouse's columns can hold, in µs since the epoch; pure.


# DateTime has 32 bits of seconds.
TIME_MIN_US: Final = 0
TIME_MAX_US: Final = 4_260_211_200_000_000  # 2105-01-01
NEVER_S: Final = 4_260_211_200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_log_time(name: str, value_us: int) -> int:
    """Return a time that the log or a processor set. Raises `BadRow` outside 1970 to 2104.

    Such times name table partitions and expiries. ClickHouse would store a year 9999 without
    an error.
    """
    if TIME_MIN_US <= value_us < TIME_MAX_US:
        return value_us
    raise BadRow(f"{name} {value_us} is outside the years 1970 to 2104")


def reported_time(value_us: int) -> tuple[int, str]:
    """Return a time of an agent's clock, moved into the years 1900 to 2299, and its text if it was.

    It is only reported: a wrong clock must not cost the audit trail a row, nor become another date
    that looks like a true one. The text is empty for a time that was not moved.
    """
    if REPORTED_MIN_US <= value_us <= REPORTED_MAX_US:
        return value_us, ""
    try:
        text = (_EPOCH + timedelta(microseconds=value_us)).isoformat()
    except OverflowError:  # before the year 1 or after 9999
        text = f"{value_us} µs since 1970"
    return min(max(value_us, REPORTED_MIN_US), REPORTED_MAX_US), text


def expiry_seconds(personal_until_us: int | None) -> int:
    """Return when personal columns expire, in s since the epoch; `NEVER_S` for None."""
    return NEVER_S if personal_until_us is None else personal_until_us // 1_000_000


# A Kafka record before it becomes a row.


class _NoHeaders:
    """Stands for the message of a record without headers."""

    def headers(self) -> None:
        """Return None."""

    def set_headers(self, headers: list[tuple[str, str | bytes | None]], /) -> None:
        """Do nothing: reading the headers does not fail."""


NO_HEADERS: Final = _NoHeaders()


class RawRecord(NamedTuple):
    """A record as Kafka delivers it.

    `header_source` is the driver's message. It makes the header objects on request: most sinks
    never need them.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    header_source: HeaderSource = NO_HEADERS

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers in their order; a header without a value has an empty one.

        `UNREADABLE_HEADERS` if they cannot be read.
        """
        return header_pairs(read_headers(self.header_source))

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


# One row of a ClickHouse table: a value per column. Times are integers in the column's unit.
TableRow = tuple[Any, ...]
RowBuilder = Callable[[RawRecord, Decoder], TableRow]
_Record = TypeVar("_Record")


class RecordEncoder(Protocol):
    """Makes pieces of a table's columns of records at once, without rows."""

    def encode(self, records: list[RawRecord], first: int, last: int, /) -> tuple[int, list[list[bytes]]]:
        """Encode records from index `first` to before `last`, until one that it gives up.

        Return the number of encoded records, and for each column, `topic_id` excepted, a piece of
        each of its planes (see `clickhouse/native`). Giving up says nothing about the record.
        """
        ...


# Finds the encoder for columns of these names and types.
EncoderFinder = Callable[[Sequence[tuple[str, str]]], RecordEncoder | None]

SOURCE_COLUMNS: Final = ("src_topic", "src_partition", "src_offset", "value_size")
EMPTY_ENVELOPE: Final = Envelope("", "", 0, "", "", None, "", None, "", None, 0, "", 0, None, None, None, None, 0)


def source_values(raw: RawRecord) -> tuple[str, int, int, int]:
    """Return the values of `SOURCE_COLUMNS`."""
    return raw.topic, raw.partition, raw.offset, raw.size


def decode_as(record_type: type[_Record], raw: RawRecord, decoder: Decoder) -> _Record:
    """Decode a record of one type.

    Raises `BadRow` for other bytes, `Unavailable` if a schema cannot be fetched.
    """
    try:
        record = decoder.decode_record(raw.value)
    except DecodeError as error:
        raise BadRow(str(error)) from None
    if not isinstance(record, record_type):
        raise BadRow(f"expected {record_type.__name__}, found {type(record).__name__}")
    return record


def envelope_from_key(raw: RawRecord) -> Envelope:
    """Return an empty envelope with the session that the record's key names, if it names one."""
    try:
        key = parse_key(raw.key)
    except Invalid:
        return EMPTY_ENVELOPE
    return EMPTY_ENVELOPE._replace(tenant_id=key.tenant_id, session_id=key.session_id)
