"""Which modules are compiled: the rules, what runs for each event beside them, the generated codec.

mypyc compiles the first two. Left as Python: packages (they only say what is in them); machines,
whose attributes of the class the compiler does not take; and what takes values of any type from
users, such as the codec: a compiled function makes a float of an int, and raises its own error for
a value of another type. The generated readers and writers, which look at each type themselves, are
made once more for Cython; so are `fast_replace` and `event_columns`, which are nothing but speed.
"""

from pathlib import Path
from typing import Final

from generation.modules import FINDER, FOLDER

ROOMS: Final = ("schemas", "producers", "stream_processors", "sinks", "infra")
_CORE: Final = Path("stream_processors/sessionary/stream_processors/core")
# The machines of rows: each is asked once per event, and only passes the question on.
_PYTHON: Final = frozenset({"__init__.py", "machine.py"})
_STORE: Final = Path("stream_processors/sessionary/stream_processors/store")
_SCHEMAS: Final = Path("schemas/sessionary/schemas")
_BESIDE_THE_RULES: Final = (
    _SCHEMAS / "ids.py",
    _STORE / "compact_rows.py",
    _STORE / "row_sum.py",
)

# An extension of this name has all generated readers and writers.
CODEC: Final = FOLDER / FINDER
FAST_REPLACE: Final = _SCHEMAS / "fast_replace.py"
EVENT_COLUMNS: Final = Path("sinks/sessionary/sinks/core/rows/event_columns.py")
# Its text is that of these files, one after the other.
EVENT_COLUMN_PARTS: Final = tuple(
    Path("native", name) for name in ("avro_reading.pyx", "payload_steps.pyx", "event_plans.pyx", "event_columns.pyx")
)
# What Cython compiles, and what it is made from beside the module itself, below the project.
CYTHON_MODULES: Final = {
    CODEC: (Path("native/avro_reading.pyx"), Path("native/codec_head.pyx"), Path("native/codec_text.py")),
    FAST_REPLACE: (Path("native/fast_replace.pyx"),),
    EVENT_COLUMNS: EVENT_COLUMN_PARTS,
}


def compiled_modules(root: Path) -> list[Path]:
    """Return the files of the modules that are compiled, relative to `root`."""
    return [*rule_modules(root), *CYTHON_MODULES]


def rule_modules(root: Path) -> list[Path]:
    """Return the files of the modules that mypyc compiles, relative to `root`."""
    core = [path.relative_to(root) for path in sorted((root / _CORE).rglob("*.py")) if path.name not in _PYTHON]
    return [_CORE / "machine.py", *core, *_BESIDE_THE_RULES]


__all__ = [
    "CODEC",
    "CYTHON_MODULES",
    "EVENT_COLUMNS",
    "EVENT_COLUMN_PARTS",
    "FAST_REPLACE",
    "ROOMS",
    "compiled_modules",
    "rule_modules",
]
