"""The text of a function that is written line by line, then compiled: what the compiled readers and writers share."""

from collections.abc import Mapping, Sequence
from typing import Any

from sessionary.schemas.codec.catalogue import Json


class Source:
    """Text as it grows, and what it refers to."""

    def __init__(self, head: Sequence[str], known: Mapping[str, Any]) -> None:
        """`head`: the lines before the first; `known`: what stands behind the names in the text."""
        self._lines = list(head)
        self._count = 0
        self.known = dict(known)
        self.named: dict[str, Json] = {}  # enums, spelled out once in a schema and named from then on

    def name(self, value: Any = None) -> str:
        """Return a fresh name; with `value` it stands for that."""
        self._count += 1
        name = f"v{self._count}"
        if value is not None:
            self.known[name] = value
        return name

    def add(self, indent: int, *lines: str) -> None:
        """Append lines, `indent` levels deep."""
        self._lines += ["    " * indent + line for line in lines]

    def compiled(self, function: str) -> Any:
        """Return the function of this name."""
        exec("\n".join(self._lines), self.known)
        return self.known[function]


__all__ = ["Source"]
