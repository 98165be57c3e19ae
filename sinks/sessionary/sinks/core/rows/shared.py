"""What the row builders share: types, the columns of a row's source, decoding."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import parse_key
from sessionary.schemas.types import Envelope
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.errors import BadRow

# One row of a ClickHouse table: a value per column. Times are integers in the column's unit.
TableRow = tuple[Any, ...]
RowBuilder = Callable[[RawRecord, Decoder], TableRow]
_Record = TypeVar("_Record")


class RecordEncoder(Protocol):
    """Makes pieces of a table's columns of records at once, without rows."""

    def encode(self, records: list[RawRecord], first: int, last: int, /) -> tuple[int, list[list[bytes]]]:
        """Encode records from index `first` to before `last`, until one that it gives up.

        Return how many it encoded, and for each column, `topic_id` excepted, a piece of each of its
        planes (see `clickhouse/native`). What it gives up says nothing about the record.
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
