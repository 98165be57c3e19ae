"""Lets the C that mypyc writes look a module's names up once; see `cached_globals.h`."""

import re
from pathlib import Path
from typing import Final

HEADER: Final = Path(__file__).with_suffix(".h")
# Three lines: the dictionary of a module, a name, and what is found under it.
_LOOKUP: Final = re.compile(
    r"(?P<globals>cpy_r_\w+) = CPyStatic_\w+___globals;\n"
    r"\s*(?P<name>cpy_r_\w+) = CPyStatics\[\d+\];[^\n]*\n"
    r"\s*(?P<call>(?P<value>cpy_r_\w+) = CPyDict_GetItem\((?P=globals), (?P=name)\);)"
)
_LAST_INCLUDE: Final = re.compile(r"(?:#include [^\n]*\n)+")


def cache_globals(text: str) -> tuple[str, int]:
    """Return the text of a C file of mypyc's with its look-ups cached, and how many they are."""
    changed, found = _LOOKUP.subn(_cached, text)
    if not found:
        return text, 0
    return _LAST_INCLUDE.sub(lambda match: f'{match[0]}#include "{HEADER.as_posix()}"\n', changed, count=1), found


def _cached(match: re.Match[str]) -> str:
    macro = f"CACHED_GLOBAL({match['value']}, {match['globals']}, {match['name']});"
    return match[0].replace(match["call"], macro)
