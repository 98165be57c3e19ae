"""The bytes of a segment: its head, its frames, and how frames are found behind damage.

Numbers are big-endian:

    head    mark (8 bytes), number of the first frame, CRC-32 of these 12 bytes,
            number of the next frame, its complement, 8 bytes of zeros
    frame   mark (4 bytes), number, length of the body, CRC-32 of the body that begins with the
            number, body

A frame belongs to the segment if its number is at least the head's first one. A reader knows by
the head how many frames there must be, and finds the next one behind damage by its mark.

A body is the write time (ms since the epoch), the lengths of key and traceparent, key, traceparent,
value.
"""

import struct
import zlib
from mmap import mmap
from typing import NamedTuple

HEAD_BYTES = 32
_MARK = b"sesspool"
_FIRST = struct.Struct(">8sII")
_NEXT = struct.Struct(">II")
_NEXT_AT = _FIRST.size
_COMPLEMENT = (1 << 32) - 1
FRAME_HEAD = struct.Struct(">4sIII")
_FRAME_MARK = b"\xf7spf"
_BODY = struct.Struct(">QHH")
_FRAME_HEAD_BYTES, _BODY_BYTES = FRAME_HEAD.size, _BODY.size


class Frame(NamedTuple):
    """The content of one frame."""

    written_ms: int  # ms since the epoch
    key: bytes
    traceparent: str | None
    value: bytes


class SegmentScan(NamedTuple):
    """What a file holds."""

    offsets: list[int]  # Of the readable frames, in order
    end: int  # Behind the last one
    lost: int  # Number of frames that cannot be read; a lower bound if the head is damaged
    damage: str | None  # Where the damage begins, for people; None if there is none
    next_number: int


def encode_frame(number: int, frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    written_ms, key, traceparent, value = frame
    trace = traceparent.encode() if traceparent else b""
    body = b"".join((_BODY.pack(written_ms, len(key), len(trace)), key, trace, value))
    return FRAME_HEAD.pack(_FRAME_MARK, number, len(body), zlib.crc32(body, number)) + body


def write_head(data: mmap, first: int) -> None:
    """Write the head of a segment without frames; `first` is the number of the next one."""
    fields = _FIRST.pack(_MARK, first, 0)[:-4]
    data[:HEAD_BYTES] = (
        fields + struct.pack(">I", zlib.crc32(fields)) + _NEXT.pack(first, first ^ _COMPLEMENT) + bytes(8)
    )


def write_next(data: mmap, number: int) -> None:
    """Write into the head that all frames below `number` are written."""
    _NEXT.pack_into(data, _NEXT_AT, number, number ^ _COMPLEMENT)


def read_frame(data: mmap | bytes, offset: int) -> tuple[int, Frame] | None:
    """Return the end and the content of the frame at `offset`; None if none is intact there."""
    found = _frame(data, offset)
    if found is None:
        return None
    _, end, body = found
    written_ms, key_length, trace_length = _BODY.unpack_from(body)
    cut = _BODY_BYTES + key_length
    if not trace_length:
        return end, Frame(written_ms, body[_BODY_BYTES:cut], None, body[cut:])
    trace = body[cut : cut + trace_length].decode()
    return end, Frame(written_ms, body[_BODY_BYTES:cut], trace, body[cut + trace_length :])


def frame_key(data: mmap | bytes, offset: int) -> bytes:
    """Return the key of the intact frame at `offset`."""
    begin = offset + _FRAME_HEAD_BYTES
    _, length, _ = _BODY.unpack_from(data, begin)
    return data[begin + _BODY.size : begin + _BODY.size + length]


def written_ms(data: mmap | bytes, offset: int) -> int:
    """Return the write time of the frame at `offset`, in ms since the epoch."""
    at, _, _ = _BODY.unpack_from(data, offset + _FRAME_HEAD_BYTES)
    return int(at)


def scan_segment(data: mmap | bytes) -> SegmentScan:
    """Return all readable frames of a file. Never raises for what the bytes are."""
    first, following = _read_head(data)
    offsets: list[int] = []
    offset, lost, expected = HEAD_BYTES, 0, first
    damage = "damaged in its head" if first is None or following is None else None
    while True:
        found = _frame(data, offset)
        if found is not None and (expected is None or found[0] == expected):
            offsets.append(offset)
            expected, offset = found[0] + 1, found[1]
            continue
        if following is not None and expected is not None and expected >= following:
            break
        again = _find_frame(data, offset, expected or 0)
        if again is None:
            break
        place, number = again
        damage = damage or f"damaged from byte {offset} to {place}"
        lost += 0 if expected is None else number - expected
        offset, expected = place, number
    if following is not None and (expected or 0) < following:
        lost += following - expected if expected is not None else 1
        damage = damage or f"damaged from byte {offset} on"
    if expected is None:
        lost = max(lost, 1)  # not even a frame tells how many there were
    return SegmentScan(offsets, offset if offsets else HEAD_BYTES, lost, damage, expected or 0)


def _frame(data: mmap | bytes, offset: int) -> tuple[int, int, bytes] | None:
    """Return number, end and body of an intact frame."""
    begin = offset + _FRAME_HEAD_BYTES
    if begin > len(data):
        return None
    mark, number, length, crc = FRAME_HEAD.unpack_from(data, offset)
    end = begin + length
    if mark != _FRAME_MARK or length < _BODY_BYTES or end > len(data):
        return None
    body = data[begin:end]
    return (number, end, body) if zlib.crc32(body, number) == crc else None


def _read_head(data: mmap | bytes) -> tuple[int | None, int | None]:
    """Return the numbers of the first and the next frame; None for one that is damaged."""
    if len(data) < HEAD_BYTES:
        return None, None
    mark, first, crc = _FIRST.unpack_from(data)
    following, complement = _NEXT.unpack_from(data, _NEXT_AT)
    intact = mark == _MARK and zlib.crc32(data[: _FIRST.size - 4]) == crc
    counted = following ^ complement == _COMPLEMENT
    return (first if intact else None), (following if counted else None)


def _find_frame(data: mmap | bytes, start: int, number_min: int) -> tuple[int, int] | None:
    """Return place and number of the next intact frame behind `start`."""
    place = data.find(_FRAME_MARK, start)
    while place >= 0:
        found = _frame(data, place)
        if found is not None and found[0] >= number_min:
            return place, found[0]
        place = data.find(_FRAME_MARK, place + 1)
    return None
