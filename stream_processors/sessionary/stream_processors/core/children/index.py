"""Which children a row has: derived from their keys, so that no row lists them.

A child takes 17 bytes here: a letter for its kind, and the hash that its key ends in.
"""

from typing import Final

from sessionary.schemas.ids import split_child_key

_SUFFIX_BYTES: Final = 17


class ChildIndex:
    """The children of a partition's committed rows, by their parents."""

    def __init__(self) -> None:
        self._suffixes: dict[bytes, bytearray] = {}

    def add(self, key: bytes) -> None:
        """Take the key of a child that is not there. Raises `ValueError` for another key."""
        split = split_child_key(key)
        if split is None:
            raise ValueError(f"{key!r} is no key of a child")
        self.extend(split[0], [split[1]])

    def extend(self, parent: bytes, suffixes: list[bytes]) -> None:
        """Take what the keys of children that are not there have after their parent's key."""
        self._suffixes.setdefault(parent, bytearray()).extend(b"".join(map(_pack_suffix, suffixes)))

    def keys_of(self, parent: bytes) -> list[bytes]:
        """Return the keys of a row's children, in the order in which they were added."""
        packed = self._suffixes.get(parent, b"")
        starts = range(0, len(packed), _SUFFIX_BYTES)
        return [parent + _unpack_suffix(packed[start : start + _SUFFIX_BYTES]) for start in starts]

    def count(self, parent: bytes) -> int:
        """Return how many children a row has."""
        return len(self._suffixes.get(parent, b"")) // _SUFFIX_BYTES

    def drop(self, parent: bytes) -> None:
        """Forget the children of a row."""
        self._suffixes.pop(parent, None)


class ChildChanges:
    """The children that a batch adds and drops; nothing of the index changes before the merge."""

    def __init__(self, index: ChildIndex) -> None:
        self._index = index
        self._added: dict[bytes, list[bytes]] = {}  # what keys have after their parents', which they are under
        self._dropped: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Take the key of a child that is not there. Raises `ValueError` for another key."""
        split = split_child_key(key)
        if split is None:
            raise ValueError(f"{key!r} is no key of a child")
        self._added.setdefault(split[0], []).append(split[1])

    def keys_of(self, parent: bytes) -> list[bytes]:
        """Return the keys of a row's children, with those of the batch."""
        committed = [] if parent in self._dropped else self._index.keys_of(parent)
        return committed + [parent + suffix for suffix in self._added.get(parent, ())]

    def count(self, parent: bytes) -> int:
        """Return how many children a row has, with those of the batch."""
        committed = 0 if parent in self._dropped else self._index.count(parent)
        return committed + len(self._added.get(parent, ()))

    def drop(self, parent: bytes) -> None:
        """Forget the children of a row."""
        self._added.pop(parent, None)
        self._dropped.add(parent)

    def merge(self) -> None:
        """Let the index have what the batch did."""
        for parent in self._dropped:
            self._index.drop(parent)
        for parent, suffixes in self._added.items():
            self._index.extend(parent, suffixes)


def _pack_suffix(suffix: bytes) -> bytes:
    return suffix[1:2] + bytes.fromhex(suffix[2:].decode())


def _unpack_suffix(packed: bytes | bytearray) -> bytes:
    return b"\0%b%b" % (bytes(packed[:1]), packed[1:].hex().encode())
