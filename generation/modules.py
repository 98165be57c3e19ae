"""The text of all generated modules, and the files that have it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from generation.readers import ReaderText
from generation.schemas import KnownSchema, known_schemas
from generation.source import SourceText
from generation.writers import WriterText

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path("schemas/sessionary/schemas/codec/generated")
# The module that finds all functions. A native build has an extension of this name, beside it.
FINDER: Final = "functions.py"
_TITLE = "Made by `python -m generation` from the schemas; do not edit."
_FINDER_TEXT = '''"""{title}"""

from sessionary.schemas.codec.compiled_helpers import find_in_modules as find_function

# A hash of the text of all modules beside this one.
DIGEST = "{digest}"
'''


def _module_text(known: KnownSchema) -> str:
    source = SourceText()
    readers, writers = ReaderText(source), WriterText(source)
    functions = [readers.add_reader(known), writers.add_writer(known)]
    if known.is_event:
        functions += [readers.add_identity_reader(known), writers.add_payload_writer(known)]
    return source.module_text(_TITLE, functions)


def make_texts() -> dict[str, str]:
    """Return the texts of all modules by the names of their files."""
    texts = {"__init__.py": f'"""{_TITLE}"""\n'}
    texts |= {f"{known.module}.py": _module_text(known) for known in known_schemas()}
    digest = hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sorted(texts.items())).encode())
    return {**texts, FINDER: _FINDER_TEXT.format(title=_TITLE, digest=digest.hexdigest())}


def _current_texts(folder: Path) -> Mapping[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.glob("*.py")}


def find_stale_files(root: Path) -> list[str]:
    """Return the names of the files below `root` that are missing, too many or out of date."""
    there = _current_texts(root / FOLDER).items()
    return sorted({name for name, _ in there ^ make_texts().items()})


def write_files(root: Path) -> int:
    """Write the files below `root` that are not current, remove those that are too many.

    Returns how many it wrote. A file that is current is left alone, so that it does not seem newer
    than what was compiled from it.
    """
    folder, texts = root / FOLDER, make_texts()
    folder.mkdir(exist_ok=True)
    there = _current_texts(folder)
    for name in there.keys() - texts.keys():
        (folder / name).unlink()
    changed = [name for name, text in texts.items() if there.get(name) != text]
    for name in changed:
        (folder / name).write_text(texts[name], "utf-8")
    return len(changed)
