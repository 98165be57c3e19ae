"""The table of settings, made from the settings classes.

Each role's module `settings.py` is read; a setting that several roles share stands once, with all
of them.
"""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sessionary.schemas.settings import ENV_PREFIX, EnvSettings

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "settings.md"
_HEAD = """\
# Settings

Every role reads its settings from `SESSIONARY_*` environment variables. `make docs` generates this
table from the settings classes, and a test compares the two. Options of a command take precedence
over variables.

| variable | default | roles | meaning |
|---|---|---|---|
"""
_ROLES = {"producers": "client", "stream_processors": "processor", "sinks": "sinks", "infra": "commands"}


class Setting(NamedTuple):
    """One variable, with its meaning and its roles."""

    variable: str
    default: str
    meaning: str
    roles: tuple[str, ...]


def settings_modules() -> list[str]:
    """Return the modules that define settings."""
    paths = sorted(ROOT.glob("*/sessionary/**/settings.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts[1:]) for path in paths]


def settings_classes() -> dict[str, list[type[EnvSettings]]]:
    """Return the classes by role; those of `schemas` only stand for what the roles inherit."""
    found: dict[str, list[type[EnvSettings]]] = {}
    for name in settings_modules():
        role = _ROLES.get(name.split(".")[1])
        for value in vars(importlib.import_module(name)).values():
            if role and isinstance(value, type) and issubclass(value, EnvSettings) and value.__module__ == name:
                found.setdefault(role, []).append(value)
    return found


def settings() -> list[Setting]:
    """Return every setting, in order of its variable; one that means something else to another role
    stands again.
    """
    roles: dict[tuple[str, str, str], list[str]] = {}
    for role, classes in settings_classes().items():
        for cls in classes:
            for name, field in cls.model_fields.items():
                named = roles.setdefault((_variable(name, field), _default(field), field.description or ""), [])
                if role not in named:
                    named.append(role)
    return [Setting(*setting, tuple(named)) for setting, named in sorted(roles.items())]


def _variable(name: str, field: FieldInfo) -> str:
    """Return the variable of a field, or the form of its variables if it has several."""
    more = field.json_schema_extra
    return str(more["variable"]) if isinstance(more, dict) and "variable" in more else ENV_PREFIX + name.upper()


def _default(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict):
        return "none"
    if field.default_factory is not None:
        return "computed" if field.default_factory is not dict else "`{}`"
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    return "none" if value is None or value == "" else f"`{value}`"


def settings_table() -> str:
    """Return the whole page."""
    rows = [f"| `{s.variable}` | {s.default} | {', '.join(s.roles)} | {_cell(s.meaning)} |\n" for s in settings()]
    return _HEAD + "".join(rows)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def write() -> Iterable[Path]:
    """Bring the page up to date. Returns its path."""
    TABLE.write_text(settings_table(), "utf-8")
    return (TABLE,)
