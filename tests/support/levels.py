"""Selects the tests of one level: `--level test`, `long`, or a part such as `soak.sinks`.

`tests/levels.toml` lists the tests of the long level and of the soak, in their order. Every other
test is one of `make test`. Without this option each test runs, whatever its level.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

OPTION: Final = "--level"
SHORT, LONG, SOAK = "test", "long", "soak."
MANIFEST: Final = Path(__file__).resolve().parents[1] / "levels.toml"
COLLECTED: Final = pytest.StashKey[dict[str, tuple[str, ...]]]()
_FOLDER = "tests/"
# In `make test` the files that take longest come first: each would be waited for alone at the end.
# Lint uses a processor for a minute, in which the tests beside it mostly wait.
_FIRST = (
    *("style/test_lint.py", "chaos", "alerts", "native", "simulation", "docs", "packaging", "integration"),
    *("contract", "core", "golden", "style"),
)


class Levels:
    """The lists of a manifest: each entry is the start of test ids, and has a reason."""

    def __init__(self, text: str) -> None:
        """Raise ValueError if an entry is in two lists or has no reason."""
        lists: dict[str, Mapping[str, object]] = tomllib.loads(text)
        parts = lists.pop("soak", {})
        lists |= {f"{SOAK}{name}": entries for name, entries in parts.items() if isinstance(entries, dict)}
        self.names: Final = (SHORT, *lists)
        self.entries: Final[dict[str, str]] = {}
        for level, entries in lists.items():
            for entry, reason in entries.items():
                if entry in self.entries:
                    raise ValueError(f"{entry} is in {self.entries[entry]} and in {level}")
                if not (isinstance(reason, str) and reason):
                    raise ValueError(f"{entry} has no reason")
                self.entries[entry] = level
        self._places = {entry: place for place, entry in enumerate(self.entries)}
        self._by_file: dict[str, list[str]] = {}
        for entry in sorted(self.entries, key=len, reverse=True):
            self._by_file.setdefault(entry.partition("::")[0], []).append(entry)

    def parts(self) -> list[str]:
        """Return the names of the parts of the soak, in their order."""
        return [name.removeprefix(SOAK) for name in self.names if name.startswith(SOAK)]

    def entry_of(self, nodeid: str) -> str | None:
        """Return the longest entry with which a test's id starts; it ends where a name ends."""
        own = nodeid.removeprefix(_FOLDER)
        for entry in self._by_file.get(own.partition("::")[0], ()):
            if own.startswith(entry) and not re.match(r"\w", own[len(entry) :]):
                return entry
        return None

    def level_of(self, nodeid: str) -> str:
        """Return the level of a test by its id."""
        entry = self.entry_of(nodeid)
        return SHORT if entry is None else self.entries[entry]

    def place_of(self, nodeid: str, level: str) -> int:
        """Return where a test comes in a run of its level."""
        if level != SHORT:
            return self._places[self.entry_of(nodeid) or ""]
        path = nodeid.removeprefix(_FOLDER).partition("::")[0]
        found = (_FIRST.index(name) for name in (path, path.partition("/")[0]) if name in _FIRST)
        return min(found, default=len(_FIRST))

    def has_tests_in(self, path: str, level: str) -> bool:
        """Return whether a level may have tests of a file; `path` is below `tests/`."""
        return level == SHORT or any(self.entries[entry] == level for entry in self._by_file.get(path, ()))

    def unused(self, nodeids: Iterable[str]) -> list[str]:
        """Return the entries that decide the level of no test."""
        used = {self.entry_of(nodeid) for nodeid in nodeids}
        return [entry for entry in self.entries if entry not in used]


@cache  # it is asked for each file
def read_levels() -> Levels:
    """Return the levels of this project."""
    return Levels(MANIFEST.read_text("utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--level`."""
    parser.addoption(OPTION, choices=read_levels().names, metavar="LEVEL", help="run the tests of one level alone")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that has no test of the level; `make test` imports all, to see all tests."""
    level = config.getoption(OPTION)
    if level is None or collection_path.suffix != ".py" or not collection_path.is_relative_to(MANIFEST.parent):
        return None
    path = collection_path.relative_to(MANIFEST.parent).as_posix()
    return None if read_levels().has_tests_in(path, level) else True


@pytest.hookimpl(tryfirst=True)  # all tests are seen here, before other options leave some out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other levels, and bring the rest into their order."""
    config.stash[COLLECTED] = {item.nodeid: tuple(getattr(item, "fixturenames", ())) for item in items}
    levels, level = read_levels(), config.getoption(OPTION)
    if level is not None:
        left_out = [item for item in items if levels.level_of(item.nodeid) != level]
        items[:] = [item for item in items if levels.level_of(item.nodeid) == level]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: levels.place_of(item.nodeid, level or SHORT))
