"""Which modules are compiled: the rules, and what runs for each event beside them.

Left as Python: packages (they only say what is in them); machines, whose attributes of the class
the compiler does not take; and what takes values of any type from users, such as the codec: a
compiled function makes a float of an int, and raises its own error for a value of another type.
"""

from pathlib import Path
from typing import Final

ROOMS: Final = ("schemas", "producers", "stream_processors", "sinks", "infra")
_CORE: Final = Path("stream_processors/sessionary/stream_processors/core")
# The machines of rows: each is asked once per event, and only passes the question on.
_PYTHON: Final = frozenset({"__init__.py", "machine.py"})
_STORE: Final = Path("stream_processors/sessionary/stream_processors/store")
_SCHEMAS: Final = Path("schemas/sessionary/schemas")
_BESIDE_THE_RULES: Final = (
    _SCHEMAS / "fast_replace.py",
    _SCHEMAS / "ids.py",
    _STORE / "compact_rows.py",
    _STORE / "row_sum.py",
)


def compiled_modules(root: Path) -> list[Path]:
    """Return the files of the modules that are compiled, relative to `root`."""
    core = [path.relative_to(root) for path in sorted((root / _CORE).rglob("*.py")) if path.name not in _PYTHON]
    return [_CORE / "machine.py", *core, *_BESIDE_THE_RULES]


__all__ = ["ROOMS", "compiled_modules"]
