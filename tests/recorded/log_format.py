"""How the recorded log of a release is stored: a folder `tests/recorded/<release>`, written once.

    settings.json   the release, the fold's settings, the prefix of the topics, what is recorded
    <topic>.xz      one file per topic: events, batches, audit, rejected, cleanup, changelog

A file is an LZMA stream (`lzma`, format xz) of little-endian structures without padding:

    file       partition*
    partition  number u16, record count u32, record*             in ascending order of the number
    event      offset i64, timestamp i64, key length i32, value length i32, header count u16,
               key, value, header*                               in order of the offset
    output     key length i32, value length i32, header count u16, key, value, header*
               or a key length of -2 and 32 bytes                in the order of the topic
    header     name length u16, value length u32, name (UTF-8), value

- `events.xz` holds events, every other file outputs. Offset and timestamp (ms, LogAppendTime) are
  differences to the event before in the same partition, the first one's to 0. A key or value
  length of -1 means null.
- The 32 bytes are the SHA-256 of the output as it would be stored. An output is stored in full if
  its key is none of a session's, or that of one of the first `FULL_SESSIONS` sessions in order of
  their first event.
"""

import hashlib
import json
import lzma
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

FULL_SESSIONS = 50
BYTES_MAX = 5_000_000
OUTPUT_TOPICS = ("batches", "audit", "rejected", "cleanup", "changelog")
_PARTITION = struct.Struct("<HI")
_EVENT = struct.Struct("<qqiiH")
_OUTPUT = struct.Struct("<iiH")
_LENGTH = struct.Struct("<i")
_HEADER = struct.Struct("<HI")
_NULL, _DIGEST = -1, -2
_DIGEST_BYTES = 32
_SETTINGS = "settings.json"

Headers = tuple[tuple[str, bytes], ...]
_T = TypeVar("_T")


class LoggedEvent(NamedTuple):
    """A record of the events topic."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Output(NamedTuple):
    """A record of another topic, stored in full."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    def packed(self) -> bytes:
        """Return the record as it is stored."""
        return b"".join(
            (_OUTPUT.pack(_length(self.key), _length(self.value), len(self.headers)), *_body(self)),
        )

    def digest(self) -> bytes:
        """Return the SHA-256 that stands for the record."""
        return hashlib.sha256(self.packed()).digest()


class RecordedSettings(NamedTuple):
    """What a fold depends on besides the log. `topic_prefix` gives the topics' names."""

    release: str
    topic_prefix: str
    partitions: int
    outage_ms: int
    outage_grace_ms: int
    records_max: int
    bytes_max: int
    timers_max: int
    tombstone_ms: int


EventsByPartition = Mapping[int, Sequence[LoggedEvent]]
OutputsByPartition = Mapping[int, Sequence[Output | bytes]]  # bytes: a SHA-256


class RecordedLog(NamedTuple):
    """A whole recording; `outputs` by the topic's short name."""

    settings: RecordedSettings
    events: EventsByPartition
    outputs: Mapping[str, OutputsByPartition]


def write_log(folder: Path, log: RecordedLog, summary: Mapping[str, Any]) -> int:
    """Write a recording, return its size in bytes. Raises `FileExistsError` if `folder` exists."""
    folder.mkdir()
    settings = {"settings": log.settings._asdict(), "summary": summary}
    (folder / _SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "events.xz").write_bytes(_compressed(_packed_partitions(log.events, _packed_events)))
    for topic, outputs in log.outputs.items():
        (folder / f"{topic}.xz").write_bytes(_compressed(_packed_partitions(outputs, _packed_outputs)))
    return sum(path.stat().st_size for path in folder.iterdir())


def read_log(folder: Path) -> RecordedLog:
    """Read a recording."""
    settings = RecordedSettings(**json.loads((folder / _SETTINGS).read_text())["settings"])
    events = _read_partitions(folder / "events.xz", _read_events)
    outputs = {topic: _read_partitions(folder / f"{topic}.xz", _read_outputs) for topic in OUTPUT_TOPICS}
    return RecordedLog(settings, events, outputs)


def _compressed(parts: Iterable[bytes]) -> bytes:
    return lzma.compress(b"".join(parts), preset=9 | lzma.PRESET_EXTREME)


def _length(value: bytes | None) -> int:
    return _NULL if value is None else len(value)


def _body(record: LoggedEvent | Output) -> Iterator[bytes]:
    yield record.key or b""
    yield record.value or b""
    for name, value in record.headers:
        encoded = name.encode()
        yield _HEADER.pack(len(encoded), len(value))
        yield encoded
        yield value


def _packed_partitions(
    partitions: Mapping[int, Sequence[_T]], packed: Callable[[Sequence[_T]], Iterator[bytes]]
) -> Iterator[bytes]:
    for partition, records in sorted(partitions.items()):
        yield _PARTITION.pack(partition, len(records))
        yield from packed(records)


def _packed_events(events: Sequence[LoggedEvent]) -> Iterator[bytes]:
    offset = timestamp_ms = 0
    for event in events:
        differences = event.offset - offset, event.timestamp_ms - timestamp_ms
        yield _EVENT.pack(*differences, _length(event.key), _length(event.value), len(event.headers))
        yield from _body(event)
        offset, timestamp_ms = event.offset, event.timestamp_ms


def _packed_outputs(outputs: Sequence[Output | bytes]) -> Iterator[bytes]:
    for output in outputs:
        yield output.packed() if isinstance(output, Output) else _LENGTH.pack(_DIGEST) + output


def _read_partitions(path: Path, read: Callable[[bytes, int, int], tuple[list[_T], int]]) -> dict[int, list[_T]]:
    data = lzma.decompress(path.read_bytes())
    partitions: dict[int, list[_T]] = {}
    place = 0
    while place < len(data):
        partition, count = _PARTITION.unpack_from(data, place)
        partitions[partition], place = read(data, place + _PARTITION.size, count)
    return partitions


def _read_events(data: bytes, place: int, count: int) -> tuple[list[LoggedEvent], int]:
    events: list[LoggedEvent] = []
    offset = timestamp_ms = 0
    for _ in range(count):
        offset_step, timestamp_step, key_length, value_length, header_count = _EVENT.unpack_from(data, place)
        offset, timestamp_ms = offset + offset_step, timestamp_ms + timestamp_step
        key, place = _read_bytes(data, place + _EVENT.size, key_length)
        value, place = _read_bytes(data, place, value_length)
        headers, place = _read_headers(data, place, header_count)
        events.append(LoggedEvent(offset, timestamp_ms, key, value, headers))
    return events, place


def _read_outputs(data: bytes, place: int, count: int) -> tuple[list[Output | bytes], int]:
    outputs: list[Output | bytes] = []
    for _ in range(count):
        if _LENGTH.unpack_from(data, place)[0] == _DIGEST:
            place += _LENGTH.size + _DIGEST_BYTES
            outputs.append(data[place - _DIGEST_BYTES : place])
            continue
        key_length, value_length, header_count = _OUTPUT.unpack_from(data, place)
        key, place = _read_bytes(data, place + _OUTPUT.size, key_length)
        value, place = _read_bytes(data, place, value_length)
        headers, place = _read_headers(data, place, header_count)
        outputs.append(Output(key, value, headers))
    return outputs, place


def _read_bytes(data: bytes, place: int, length: int) -> tuple[bytes | None, int]:
    return (None, place) if length == _NULL else (data[place : place + length], place + length)


def _read_headers(data: bytes, place: int, count: int) -> tuple[Headers, int]:
    headers = []
    for _ in range(count):
        name_length, value_length = _HEADER.unpack_from(data, place)
        value_place = place + _HEADER.size + name_length
        name = data[place + _HEADER.size : value_place].decode()
        place = value_place + value_length
        headers.append((name, data[value_place:place]))
    return tuple(headers), place


def by_partition(records: Iterable[tuple[int, _T]]) -> dict[int, list[_T]]:
    """Return records by partition; they come ordered by it."""
    return {partition: [record for _, record in group] for partition, group in groupby(records, lambda pair: pair[0])}
