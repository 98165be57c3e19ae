"""Which modules are compiled: the rules, what runs for each event beside them, the generated codec.

mypyc compiles the rules. It takes types at their word: a compiled function makes a float of an int,
and raises its own error for a value of another type. So what takes values of any type from users is
left to Cython, which compiles a module as it is, types unseen: slower than mypyc's, faster than the
interpreter. So is what handles each record or row around the rules. The generated readers and
writers, which look at each type themselves, are made once more for Cython; so are `fast_replace`
and `event_columns`, which are nothing but speed. Packages stay Python: they only say what is in
them.
"""

from pathlib import Path
from typing import Final

from generation.modules import FINDER, FOLDER

ROOMS: Final = ("schemas", "producers", "stream_processors", "sinks", "infra")
_CORE: Final = Path("stream_processors/sessionary/stream_processors/core")
_PACKAGE: Final = "__init__.py"
_PROCESSOR: Final = Path("stream_processors/sessionary/stream_processors")
_SCHEMAS: Final = Path("schemas/sessionary/schemas")
_BESIDE_THE_RULES: Final = (
    _SCHEMAS / "ids.py",
    _PROCESSOR / "store/cached_rows.py",
    _PROCESSOR / "store/packed_rows.py",
    _PROCESSOR / "store/shelves.py",
)
# The code around the rules that handles each record or row: Cython compiles it as it is.
PLAIN_MODULES: Final = (
    _SCHEMAS / "codec/framing.py",
    _SCHEMAS / "codec/record_sizes.py",
    _SCHEMAS / "codec/value_bounds.py",
    _SCHEMAS / "limits.py",
    _SCHEMAS / "retention.py",
    _PROCESSOR / "runtime/pending_records.py",
    _PROCESSOR / "runtime/job.py",
    _PROCESSOR / "runtime/open_batch.py",
    _PROCESSOR / "runtime/transaction.py",
)

# An extension of this name has all generated readers and writers.
CODEC: Final = FOLDER / FINDER
FAST_REPLACE: Final = _SCHEMAS / "fast_replace.py"
EVENT_COLUMNS: Final = Path("sinks/sessionary/sinks/core/rows/event_columns.py")
# Its text is that of these files, one after the other.
EVENT_COLUMN_PARTS: Final = tuple(
    Path("native", name) for name in ("avro_reading.pyx", "payload_steps.pyx", "event_plans.pyx", "event_columns.pyx")
)
# What Cython has another text of, and what that is made from beside the module, below the project.
CYTHON_MODULES: Final = {
    CODEC: tuple(
        Path("native", name) for name in ("avro_reading.pyx", "codec_head.pyx", "codec_text.py", "check_text.py")
    ),
    FAST_REPLACE: (Path("native/fast_replace.pyx"),),
    EVENT_COLUMNS: EVENT_COLUMN_PARTS,
}


def compiled_modules(root: Path) -> list[Path]:
    """Return the files of the modules that are compiled, relative to `root`."""
    return [*rule_modules(root), *PLAIN_MODULES, *CYTHON_MODULES]


def rule_modules(root: Path) -> list[Path]:
    """Return the files of the modules that mypyc compiles, relative to `root`."""
    return [*_core_modules(root), *_BESIDE_THE_RULES]


def _core_modules(root: Path) -> list[Path]:
    found = sorted((root / _CORE).rglob("*.py"))
    return [path.relative_to(root) for path in found if path.name != _PACKAGE]
