"""The text of the checks of events' values as Cython: the counterpart of `value_bounds`.

The order of the comparisons and what they say are those of the Python. A value of another type than
the schema's makes a check give up, and the Python decides.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from generation.source import class_named
from sessionary.schemas.codec.catalogue import Json
from sessionary.schemas.codec.formats import Event
from sessionary.schemas.codec.value_bounds import ENVELOPE_NUMBERS, OWN_CHECKS, envelope_fields, is_number
from sessionary.schemas.limits import ITEMS_MAX, UNBOUNDED_NUMBERS, characters_max
from sessionary.schemas.types import Envelope

CHECK_IMPORTS: Final = ("describe_bad_number", "describe_long_list", "describe_long_text")


class CheckText:
    """The lines of one check: `r` is what is checked."""

    def __init__(self, name_of: Callable[[type[Any]], str]) -> None:
        """`name_of` returns the name of a class in the module."""
        self._name_of = name_of
        self._count = 0

    def event_lines(self, cls: type[Any], envelope: Json, fields: list[Json]) -> list[str]:
        """Return the check of a pair of envelope and payload; `fields` are the payload's."""
        numbers = [field for field in envelope["fields"] if field["name"] in ENVELOPE_NUMBERS]
        return [
            f"check_record(r, {self._name_of(Event)}, 2)",
            "e, r = item(r, 0), item(r, 1)",
            *self._record_lines(Envelope, numbers, "e", ""),
            *self._record_lines(cls, fields, "r", ""),
            "return ''",
        ]

    def envelope_lines(self, envelope: Json) -> list[str]:
        """Return the check of an envelope's texts and lists."""
        numbers = {field["name"] for field in envelope_fields() if is_number(field["type"])}
        texts = [field for field in envelope["fields"] if field["name"] not in numbers]
        return [*self._record_lines(Envelope, texts, "r", ""), "return ''"]

    def _new_name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _record_lines(self, cls: type[Any], fields: list[Json], record: str, path: str) -> list[str]:
        lines = [f"check_record({record}, {self._name_of(cls)}, {len(cls._fields)})"]
        for field in fields:
            name, value = field["name"], self._new_name()
            if name in OWN_CHECKS:
                continue
            if check := self._value_lines(field["type"], value, cls.__name__, name, f"{path}{name}"):
                lines += [f"{value} = item({record}, {cls._fields.index(name)})", *check]
        return lines

    def _value_lines(self, schema: Json, value: str, owner: str, field: str, path: str) -> list[str]:
        match schema:
            case ["null", branch]:
                lines = self._value_lines(branch, value, owner, field, path)
                return [f"if {value} is not None:", *_indented(lines)] if lines else []
            case "string":
                most = characters_max(owner, field)
                reported = f"return describe_long_text({path!r}, {value}, {most})"
                return [] if most is None else [f"if is_longer({value}, {most}): {reported}"]
            case "int" | "long":
                reported = f"return describe_bad_number({path!r}, {value})"
                return [] if field in UNBOUNDED_NUMBERS else [f"if is_out_of_bounds({value}): {reported}"]
            case "double":
                return [f"if is_infinite({value}): return describe_bad_number({path!r}, {value})"]
            case {"type": "record", "name": name, "fields": fields}:
                return self._record_lines(class_named(name), fields, value, f"{path}.")
            case {"type": "array", "items": items}:
                each, all_of_them = self._new_name(), self._new_name()
                lines = self._value_lines(items, each, owner, field, f"{path}[]")
                loop = [f"for {each} in <tuple>{all_of_them}:", *_indented(lines)] if lines else []
                return [f"{all_of_them} = listed({value})", *_length_lines(all_of_them, path), *loop]
            case {"type": "map", "values": values}:
                return self._map_lines(values, value, owner, field, path)
        return []

    def _map_lines(self, values: Mapping[str, Json], value: str, owner: str, field: str, path: str) -> list[str]:
        key, each, all_of_them = self._new_name(), self._new_name(), self._new_name()
        lines = self._value_lines("string", key, owner, field, f"{path}[]")
        lines += self._value_lines(values, each, owner, field, f"{path}[]")
        loop = [f"for {key}, {each} in <list>{all_of_them}:", *_indented(lines)]
        return [f"{all_of_them} = paired({value})", *_length_lines(all_of_them, path), *loop]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _length_lines(items: str, path: str) -> list[str]:
    return [f"if len({items}) > {ITEMS_MAX}: return describe_long_list({path!r}, {items})"]
