"""Which lines of a log are written if the same one comes again and again. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

REPEAT_S = 30.0
_KEYS_MAX = 1_000
Line = TypeVar("Line")


@dataclass(slots=True)
class _Repeated(Generic[Line]):
    written_s: float
    suppressed: int = 0
    last: Line | None = None


class RepeatLimiter(Generic[Line]):
    """Passes one line of a key per interval, and counts the suppressed ones. Not thread-safe.

    Each result is a line to write and how many lines of its key were suppressed since the one that
    was written before it.
    """

    def __init__(self, interval_s: float = REPEAT_S, keys_max: int = _KEYS_MAX) -> None:
        """`keys_max`: of more keys, the one that was written first is forgotten."""
        self._interval_s = interval_s
        self._keys_max = keys_max
        self._repeated: dict[Hashable, _Repeated[Line]] = {}

    def take_line(self, key: Hashable, line: Line, now_s: float) -> list[tuple[Line, int]]:
        """Take the next line; return what is to be written now. `now_s` is monotonic."""
        known = self._repeated.get(key)
        if known is not None and now_s - known.written_s < self._interval_s:
            known.suppressed += 1
            known.last = line
            return []
        self._repeated.pop(key, None)  # the dict is in the order of writing
        self._repeated[key] = _Repeated(now_s)
        forgotten: list[tuple[Line, int]] = []
        if len(self._repeated) > self._keys_max:
            forgotten = _last_line(self._repeated.pop(next(iter(self._repeated))))
        return [*forgotten, (line, known.suppressed if known is not None else 0)]

    def take_suppressed(self) -> list[tuple[Line, int]]:
        """Return the last suppressed line of each key, and forget all keys: the log ends."""
        found = [entry for repeated in self._repeated.values() for entry in _last_line(repeated)]
        self._repeated.clear()
        return found


def _last_line(repeated: _Repeated[Line]) -> list[tuple[Line, int]]:
    return [] if repeated.last is None else [(repeated.last, repeated.suppressed - 1)]
