"""A file of settings that is read again if it changes, so that a change needs no restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
_Version = tuple[int, int, int]


class RereadFile(Generic[T]):
    """What a file says, each time that it changed. Belongs to one thread at a time."""

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        """`parse` raises `ValueError` that says what is wrong."""
        self.path = path
        self._parse = parse
        self._version: _Version | None = None  # of the file that was read last

    def read_if_changed(self) -> T | None:
        """Return what the file says; None if it is as it was when it was read last. Blocks.

        Raises `OSError` or `ValueError` if it cannot be used; then the next call tries again.
        """
        status = self.path.stat()
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version == self._version:
            return None
        found = self._parse(self.path.read_bytes())
        self._version = version
        return found
