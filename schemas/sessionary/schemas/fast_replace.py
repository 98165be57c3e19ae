"""`_replace` for fields that every event changes: planned once, it takes a third of the time."""

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T", bound=tuple[Any, ...])


def make_replacer(cls: type[_T], *names: str) -> Callable[..., _T]:
    """Return a function (record, *values) that replaces the named fields of a NamedTuple."""
    fields: tuple[str, ...] = getattr(cls, "_fields", ())
    places = tuple(map(fields.index, names))
    make: Callable[[list[Any]], _T] = getattr(cls, "_make")  # noqa: B009 - mypy knows of no class that has it

    def replace_fields(record: _T, *values: Any) -> _T:
        changed = list(record)
        for place, value in zip(places, values, strict=True):
            changed[place] = value
        return make(changed)

    return replace_fields


__all__ = ["make_replacer"]
