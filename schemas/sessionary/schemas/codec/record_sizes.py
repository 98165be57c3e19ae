"""How large a record is in Kafka, and records that are cut to their topic's limit.

The broker compares a topic's limit with the size of a whole batch, compressed if it is. A record of
such a size is a separate batch. Sizes here are uncompressed: a producer sends a batch uncompressed
if compression does not make it smaller, so no batch is larger.

Source: https://kafka.apache.org/documentation/#recordbatch (record batch, version 2).
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec.framing import Record, encode_record
from sessionary.schemas.records import RejectedEvent

TEXT_MAX: Final = 1_000  # characters that remain of a text that is cut
LIST_MAX: Final = 16  # elements that remain of a list that is cut
KEY_BYTES_MAX: Final = 1_000  # bytes that remain of a key that is cut
_CUT: Final = "…"
_BATCH_HEADER_BYTES: Final = 61
_FIXED_BYTES: Final = 4  # attributes, timestamp delta, offset delta, number of headers
_OVERHEAD_BYTES_MAX: Final = 128  # of a batch besides key and value


class EncodedRecord(NamedTuple):
    """Key and value of a Kafka record."""

    key: bytes | None
    value: bytes


def batch_bytes(key: bytes | None, value: bytes | None) -> int:
    """Return the size of an uncompressed batch with one record without headers."""
    body = _FIXED_BYTES + _field_bytes(key) + _field_bytes(value)
    return _BATCH_HEADER_BYTES + _varint_bytes(body) + body


def _field_bytes(field: bytes | None) -> int:
    return 1 if field is None else _varint_bytes(len(field)) + len(field)


def _varint_bytes(number: int) -> int:
    """Return the length of a number, at least 0, as a zigzag varint."""
    return max(1, ((number << 1).bit_length() + 6) // 7)


def encode_to_fit(key: bytes | None, record: Record, bytes_max: int, rules: int) -> EncodedRecord:
    """Encode a record of a topic whose limit is `bytes_max`, which is at least 512 KiB.

    A record that fits is encoded as it is. Otherwise its long texts and lists are cut; a text that
    was cut ends with `…`. A `RejectedEvent` that still does not fit leaves out its value and
    headers, and says so in `detail`; at last its key is cut. `rules`: see `encode_record`.
    """
    encoded = EncodedRecord(key, encode_record(record, rules))
    # Nearly all records are far smaller, and the exact size costs as much as encoding some.
    if len(key or b"") + len(encoded.value) + _OVERHEAD_BYTES_MAX <= bytes_max or batch_bytes(*encoded) <= bytes_max:
        return encoded
    for shorter_key, shorter in _shorter_forms(key, record):
        encoded = EncodedRecord(shorter_key, encode_record(shorter, rules))
        if batch_bytes(*encoded) <= bytes_max:
            break
    return encoded


def _shorter_forms(key: bytes | None, record: Record) -> Iterator[tuple[bytes | None, Record]]:
    """Yield forms of a record with its Kafka key, the most complete one first."""
    brief = record._replace(**_cut_fields(record))
    yield key, brief
    short_key = _cut_key(key)
    if not isinstance(brief, RejectedEvent):
        yield short_key, brief
        return
    note = f" (value of {len(brief.value or b'')} bytes left out, headers too: read them at the source position)"
    bare = brief._replace(value=None, headers={}, detail=brief.detail + note)
    yield key, bare
    yield short_key, brief._replace(key=_cut_key(brief.key))
    yield short_key, bare._replace(key=_cut_key(brief.key))


def _cut_fields(record: Record) -> dict[str, Any]:
    """Return the fields whose texts or lists are too long, cut."""
    fields = zip(record._fields, record, strict=True)
    return {name: cut for name, value in fields if (cut := _cut_value(value)) is not value}


def _cut_value(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[:TEXT_MAX] + _CUT
    if isinstance(value, list | tuple) and (
        len(value) > LIST_MAX or any(_cut_value(part) is not part for part in value)
    ):
        return (*map(_cut_value, value[:LIST_MAX]), *((_CUT,) if len(value) > LIST_MAX else ()))
    return value


def _cut_key(key: bytes | None) -> bytes | None:
    return key and key[:KEY_BYTES_MAX]
