"""What readers of a partition wait for: any commit, or one that touches a row that they follow.

Belongs to the event loop. A commit of rows that no reader follows costs one look at an empty dict.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


class RowWatch:
    """One reader's wait for commits that touch a row. However many come, it is woken once."""

    def __init__(self) -> None:
        self._is_touched = asyncio.Event()

    def touch(self) -> None:
        """Wake the reader, now or when it waits next."""
        self._is_touched.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the row is touched, or the news end. Return False after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_touched.wait()
        is_touched = self._is_touched.is_set()
        self._is_touched.clear()
        return is_touched


class CommitNews:
    """Wakes the readers of one partition, until `end`: then none is to be answered any more."""

    def __init__(self) -> None:
        self.is_over = False
        self._advanced = asyncio.Event()
        self._watches: dict[bytes, set[RowWatch]] = {}

    async def wait(self) -> None:
        """Wait for a commit, or for the opening of the partition, or for the end."""
        await self._advanced.wait()

    @contextmanager
    def watch_row(self, key: bytes) -> Iterator[RowWatch]:
        """Follow the row under `key`, which need not exist, until the block ends."""
        watch = RowWatch()
        watches = self._watches.setdefault(key, set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop(key, None)

    def tell_all(self) -> None:
        """Wake the readers that wait for any commit."""
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    def tell_commit(self, rows: Mapping[bytes, Any]) -> None:
        """Wake who waits for any commit, and who follows one of the rows that this one touched."""
        self.tell_all()
        if self._watches:
            for key in self._watches.keys() & rows.keys():
                self._touch_row(key)

    def end(self) -> None:
        """Wake all readers: no commit comes that they may be told of."""
        self.is_over = True
        self.tell_all()
        for key in self._watches:
            self._touch_row(key)

    def _touch_row(self, key: bytes) -> None:
        for watch in self._watches[key]:
            watch.touch()
