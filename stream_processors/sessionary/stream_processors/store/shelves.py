"""Where a store's packed rows are: a dict, or a database. Both keep them in their compact form.

shelf.get(key)     a row's bytes, or those of a content
shelf.items()      all keys and bytes
shelf.put(rows)    takes rows; None deletes one
"""

import re
import struct
from binascii import unhexlify
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX

# How stores keep the rows of children shorter than the changelog has them; pure, undone exactly.
#
#     key    form, session id, run id if it is of a run (16 bytes each), tenant, kind of child,
#            hash (16 bytes)
#     row    form, when it is due if it ever is, the schema's fingerprint, and the record without
#            tenant, session and run, with which it begins: the key has them; a hash of 64 hex
#            digits is bytes, after its place in the record
#
# The content of a child has a short key too, and is kept unchanged, as are all other forms. The
# keys of sessions and runs stay whole, because in memory the timers have the same objects. Their
# rows stay whole, because most batches write nothing else.


# The first byte of a compact key. No key of a row but a chunk's begins with a byte below "0".
_OF_RUN, _OF_SESSION, _CONTENT_OF_RUN, _CONTENT_OF_SESSION, _OTHER_KEY = range(1, 6)
# A key from here on, without a zero byte, stays as it is, and so does its row.
PLAIN_KEYS: Final = bytes((_OTHER_KEY + 1,))
_UUID = rb"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_PARENT = re.compile(rb"([A-Za-z0-9._-]+):%b(?::%b:)?" % (_UUID, _UUID))
_ID_BYTES, _CHILD_BYTES = 16, 17
_CHILD_TEXT_BYTES: Final = 34  # of a child's key behind that of its parent: a zero byte, its kind, a hash
_HEX_DIGITS: Final = b"0123456789abcdef"
# More than a batch of each of four partitions writes: with fewer, a key is gone before it is asked
# for again.
_PARENTS_CACHED, _KEYS_CACHED = 4_096, 16_384
# No key of a child is as long. Any client may send a longer one, and a cache must not keep it.
_CHILD_KEY_BYTES_MAX: Final = 256

_NEVER: Final = struct.pack(">q", NEVER_MS)
# A packed row is when it is due, Avro's marker, a schema's fingerprint, and the record's fields.
_MARKER: Final = b"\xc3\x01"
_MARKER_AT, _FINGERPRINT_AT, _FIELDS_AT = 8, 10, 18
_SOME: Final = b"\x02"  # before a text that might be null
_HASH_START: Final = b"\x80\x01"  # before a text of 64 bytes
_HASH = re.compile(rb"[0-9a-f]{64}")
_HASH_TEXT_BYTES, _HASH_BYTES, _PLACES = 66, 32, 256  # with its start; of it; bytes where it may begin
# The first byte of a compact row: which names it lacks, whether it is never due, and has a hash.
_NAMES, _IS_NEVER_DUE, _HAS_HASH, _IS_WHOLE = 3, 4, 8, 255


class _Parent(NamedTuple):
    """The key of a parent, and the parts of it that a child repeats."""

    key: bytes
    starts: tuple[bytes, bytes]  # how compact keys begin: of its children, and of their contents
    names: tuple[bytes, ...]  # how records of its children may begin


def compact_key(key: bytes) -> bytes:
    """Return the compact key of a row or a content, as a store has it."""
    # A look-up of a byte as a number: for bytes the interpreter first raises, and drops, an error.
    if 0 in key and len(key) <= _CHILD_KEY_BYTES_MAX and (short := _compact_child_key(key)) is not None:
        return short
    return key if not key or not 0 < key[0] <= _OTHER_KEY else bytes((_OTHER_KEY,)) + key


@lru_cache(_KEYS_CACHED)  # a batch asks for each key that it writes three times
def _compact_child_key(key: bytes) -> bytes | None:
    split = key.index(0)
    kind, digits, suffix = key[split + 1 : split + 2], key[split + 2 : split + _CHILD_TEXT_BYTES], b""
    if len(key) > split + _CHILD_TEXT_BYTES:
        suffix = key[split + _CHILD_TEXT_BYTES :]
        if suffix != CONTENT_SUFFIX:
            return None
    if len(digits) != 2 * _ID_BYTES or not b"a" <= kind <= b"z" or digits.strip(_HEX_DIGITS):
        return None
    parent = _parent_with_key(key[:split])
    return None if parent is None else parent.starts[suffix != b""] + kind + unhexlify(digits)


def whole_key(kept: bytes) -> bytes:
    """Return the key of which a store has the compact form."""
    if not kept or not 0 < kept[0] <= _OTHER_KEY:
        return kept
    if kept[0] == _OTHER_KEY:
        return kept[1:]
    suffix = CONTENT_SUFFIX if kept[0] >= _CONTENT_OF_RUN else b""
    kind, name = kept[-_CHILD_BYTES:-_ID_BYTES], kept[-_ID_BYTES:].hex().encode()
    return b"%b\0%b%b%b" % (_parent_with_start(kept[:-_CHILD_BYTES]).key, kind, name, suffix)


def compact_row(kept_key: bytes, stored: bytes) -> bytes:
    """Return the compact form of a packed row, or of a content, under a compact key."""
    if not 0 < kept_key[0] <= _OF_SESSION:
        return stored
    if stored[_MARKER_AT:_FINGERPRINT_AT] == _MARKER:
        for form, names in enumerate(_parent_with_start(kept_key[:-_CHILD_BYTES]).names):
            if stored.startswith(names, _FIELDS_AT):
                return _without_names(form, stored, _FIELDS_AT + len(names))
    return bytes((_IS_WHOLE,)) + stored


def whole_row(kept_key: bytes, kept: bytes) -> bytes:
    """Return the packed row, or the content, of which a store has the compact form."""
    if not 0 < kept_key[0] <= _OF_SESSION:
        return kept
    form = kept[0]
    if form == _IS_WHOLE:
        return kept[1:]
    names = _parent_with_start(kept_key[:-_CHILD_BYTES]).names[form & _NAMES]
    due, at = (_NEVER, 1) if form & _IS_NEVER_DUE else (kept[1:9], 9)
    fields_at = at + 8
    if not form & _HAS_HASH:
        return b"%b\xc3\x01%b%b%b" % (due, kept[at:fields_at], names, kept[fields_at:])
    hash_at = fields_at + 1 + kept[fields_at]
    rest_at = hash_at + _HASH_BYTES
    return b"%b\xc3\x01%b%b%b\x80\x01%b%b" % (
        *(due, kept[at:fields_at], names, kept[fields_at + 1 : hash_at]),
        *(kept[hash_at:rest_at].hex().encode(), kept[rest_at:]),
    )


def _without_names(form: int, stored: bytes, fields_at: int) -> bytes:
    """Return a compact row; `form`: which names are left out, `fields_at`: where fields begin."""
    due, fingerprint = stored[:_MARKER_AT], stored[_FINGERPRINT_AT:_FIELDS_AT]
    if due == _NEVER:
        form, due = form | _IS_NEVER_DUE, b""
    hash_at = stored.find(_HASH_START, fields_at, fields_at + _PLACES)
    if hash_at < 0 or not _HASH.match(stored, hash_at + 2):
        return b"%c%b%b%b" % (form, due, fingerprint, stored[fields_at:])
    rest_at = hash_at + _HASH_TEXT_BYTES
    return b"%c%b%b%c%b%b%b" % (
        *(form | _HAS_HASH, due, fingerprint, hash_at - fields_at, stored[fields_at:hash_at]),
        *(unhexlify(stored[hash_at + 2 : rest_at]), stored[rest_at:]),
    )


@lru_cache(_PARENTS_CACHED)
def _parent_with_key(key: bytes) -> _Parent | None:
    """Return the parent that has a key; None if compact keys cannot express it."""
    match = _PARENT.fullmatch(key)
    if match is None:
        return None
    tenant, session, run = match.groups()
    of_session = _encoded(tenant) + _encoded(session)
    rest = _packed_id(session) + (_packed_id(run) if run else b"") + tenant
    if not run:
        return _Parent(key, (b"%c%b" % (_OF_SESSION, rest), b"%c%b" % (_CONTENT_OF_SESSION, rest)), (of_session,))
    names = of_session + _encoded(run), of_session + _SOME + _encoded(run), of_session
    return _Parent(key, (b"%c%b" % (_OF_RUN, rest), b"%c%b" % (_CONTENT_OF_RUN, rest)), names)


@lru_cache(_PARENTS_CACHED)
def _parent_with_start(start: bytes) -> _Parent:
    """Return the parent of which the children's compact keys begin so."""
    is_of_run = start[0] in (_OF_RUN, _CONTENT_OF_RUN)
    tenant_at = 1 + _ID_BYTES * (1 + is_of_run)
    run = b":%b:" % _whole_id(start[1 + _ID_BYTES : tenant_at]) if is_of_run else b""
    parent = _parent_with_key(b"%b:%b%b" % (start[tenant_at:], _whole_id(start[1 : 1 + _ID_BYTES]), run))
    assert parent is not None  # no other parent has such a start
    return parent


def _encoded(text: bytes) -> bytes:
    """Return a text as Avro writes it: twice its length as a varint, and its bytes."""
    size, length = 2 * len(text), b""
    while size > 127:
        size, length = size >> 7, b"%b%c" % (length, size & 127 | 128)
    return b"%b%c%b" % (length, size, text)


def _packed_id(text: bytes) -> bytes:
    return unhexlify(text.replace(b"-", b""))


def _whole_id(packed: bytes) -> bytes:
    text = packed.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()


class MemoryShelf:
    """Rows in a dict."""

    def __init__(self) -> None:
        # Apart, because a recovery walks over all rows: no code runs for one that is whole.
        self.whole: dict[bytes, bytes] = {}  # of sessions and runs, mostly
        self.compact: dict[bytes, bytes] = {}  # in the compact form

    def get(self, key: bytes) -> bytes | None:
        """Return the bytes under a key, or None."""
        short = compact_key(key)
        if short is key:
            return self.whole.get(key)
        kept = self.compact.get(short)
        return None if kept is None else whole_row(short, kept)

    def get_each(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the bytes under each key, or None."""
        return {key: self.get(key) for key in keys}

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return every key and its bytes."""
        return chain(self.whole.items(), _whole_items(iter(self.compact.items())))

    def put(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Take rows by key; None deletes one."""
        whole, compact = self.whole, self.compact
        for key, stored in rows.items():
            short = compact_key(key) if key < PLAIN_KEYS or 0 in key else key
            if short is key:
                if stored is None:
                    whole.pop(key, None)
                else:
                    whole[key] = stored
            elif stored is None:
                compact.pop(short, None)
            else:
                compact[short] = compact_row(short, stored)


class RocksShelf:
    """Rows in a database. Keys that begin with a zero byte are the store's own."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        """Return the bytes under a key, or None."""
        # Any client may send a record with a key of the store's own, and its row is looked up.
        short = compact_key(key)
        kept: bytes | None = None if key.startswith(b"\x00") else self._db.get(short)
        return None if kept is None else whole_row(short, kept)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return every key and its bytes."""
        return _whole_items(self._db.items(from_key=b"\x01"))

    def write_batch(self, rows: Mapping[bytes, bytes | None]) -> Any:
        """Return a batch for the database; None deletes a row."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, stored in rows.items():
            short = compact_key(key) if key < PLAIN_KEYS or 0 in key else key
            if stored is None:
                batch.delete(short)
            else:
                batch.put(short, stored if short is key else compact_row(short, stored))
        return batch


def _whole_items(kept: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for item in kept:
        short, row = item
        yield item if short >= PLAIN_KEYS else (whole_key(short), whole_row(short, row))
