"""The text of a module as it grows: imports, constants and functions."""

from collections.abc import Sequence
from typing import Any

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import Json


class SourceText:
    """The text of one module.

    Attributes:
        enums: Schemas of enums by full name: a schema spells an enum out once, then names it.
    """

    def __init__(self) -> None:
        self.enums: dict[str, Json] = {}
        self._imports: set[tuple[str, str]] = set()
        self._constants: dict[str, str] = {}
        self._layouts: dict[str, tuple[str, ...]] = {}
        self._lines: list[str] = []
        self._count = 0

    def new_name(self) -> str:
        """Return a name that is not used yet."""
        self._count += 1
        return f"v{self._count}"

    def import_name(self, module: str, name: str) -> str:
        """Return the name, imported from a module."""
        self._imports.add((module, name))
        return name

    def import_class(self, cls: type[Any]) -> str:
        """Return the name of a class of records, whose fields the text relies on."""
        self._layouts[cls.__name__] = cls._fields
        return self.import_name(cls.__module__, cls.__name__)

    def new_constant(self, expression: str) -> str:
        """Return the name of a constant of the module; equal expressions share one."""
        return self._constants.setdefault(expression, f"c{len(self._constants) + 1}")

    def default_of(self, cls: type[Any], field: str) -> str:
        """Return the name of the default of a field, which is looked up when the module loads."""
        return self.new_constant(f"{self.import_class(cls)}._field_defaults[{field!r}]")

    def add_lines(self, indent: int, *lines: str) -> None:
        """Append lines, `indent` levels deep."""
        self._lines += ["    " * indent + line for line in lines]

    def module_text(self, title: str, functions: Sequence[str]) -> str:
        """Return the whole text; `functions` are the names that others may ask for."""
        fields = (f"    {name}: {layout!r}," for name, layout in sorted(self._layouts.items()))
        parts = [
            f'"""{title}"""\n',
            *(f"from {module} import {name}" for module, name in sorted(self._imports)),
            "",
            *(f"{name} = {expression}" for expression, name in self._constants.items()),
            "LAYOUTS = {",
            *fields,
            "}",
            *self._lines,
            f"FUNCTIONS = {{{', '.join(f'{name!r}: {name}' for name in functions)}}}",
        ]
        return "\n".join(parts) + "\n"


def class_named(full_name: str) -> type[Any]:
    """Return the class of a record that several schemas share."""
    found: type[Any] = getattr(types, full_name.rpartition(".")[2])
    return found
