"""Finds the readers and writers that the build made from the schemas.

They lie in the package `generated`, one module for each schema, and load when they are first
needed. A module is named after its schema's fingerprint, and says which fields the classes had that
it was made for. So a function of another schema, or for another class, is never found; what is not
found, fastavro does.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal

_PACKAGE = "sessionary.schemas.codec.generated"

# Checks of values (`value_bounds`) are made in a native build only.
Kind = Literal["read", "read_identity", "write", "write_payload", "check", "check_envelope"]


def module_name(full_name: str, fingerprint: bytes) -> str:
    """Return the name of the module that has the functions of a schema."""
    return f"{full_name.rpartition('.')[2].lower()}_{fingerprint.hex()}"


def _import_generated(name: str) -> Any:
    """Return a generated module; None if it was not made."""
    try:
        return import_module(f"{_PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(_PACKAGE):
            raise
        return None


@cache
def generated_functions() -> Any:
    """Return the module that finds all functions, an extension in a native build; None without."""
    return _import_generated("functions")


def fits(layouts: Mapping[Any, tuple[str, ...]]) -> bool:
    """Return True if classes have the fields that functions were made for."""
    return all(cls._fields == fields for cls, fields in layouts.items())


def find_in_modules(module: str, kind: str) -> Any:
    """Return a function of a generated module of Python; None if there is none that fits."""
    made = _import_generated(module)
    return made.FUNCTIONS.get(kind) if made is not None and fits(made.LAYOUTS) else None


def find_function(kind: Kind, full_name: str, fingerprint: bytes) -> Any:
    """Return the function for values of a schema; None if the build did not make it."""
    made = generated_functions()
    return None if made is None else made.find_function(module_name(full_name, fingerprint), kind)
