"""Builds a Python function as text, line by line, and compiles it.

The checks of bounds and the sinks' writers of JSON share it; readers and writers of records are
modules, which the build makes. No other module compiles text while it runs: `exec` sees only what
is made from our own schemas.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sessionary.schemas.codec.catalogue import Json


class CodeBuilder:
    """The text of a module as it grows, and the objects that it refers to.

    Attributes:
        namespace: The objects by the names that the text uses.
        enums: Schemas of enums by full name: a schema spells an enum out once, then names it.
    """

    def __init__(self, head: Sequence[str], namespace: Mapping[str, Any]) -> None:
        """Begin with the lines of `head`, such as `def read(b, p):`, and a copy of `namespace`."""
        self._lines = list(head)
        self._count = 0
        self.namespace = dict(namespace)
        self.enums: dict[str, Json] = {}

    def new_name(self, value: Any = None) -> str:
        """Return a name that is not used yet; it refers to `value` unless that is None."""
        self._count += 1
        name = f"v{self._count}"
        if value is not None:
            self.namespace[name] = value
        return name

    def new_constant(self, value: Any) -> str:
        """Return an expression for `value`, which may be None."""
        return "None" if value is None else self.new_name(value)

    def add_lines(self, indent: int, *lines: str) -> None:
        """Append lines, `indent` levels deep."""
        self._lines += ["    " * indent + line for line in lines]

    def compile_function(self, name: str) -> Any:
        """Compile the text, and return its function `name`. Raises `SyntaxError` for bad text."""
        exec("\n".join(self._lines), self.namespace)
        return self.namespace[name]
