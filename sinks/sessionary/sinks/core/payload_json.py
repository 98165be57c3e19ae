"""Payloads as JSON, for queries in SQL; pure.

Named tuples become objects, bytes become base64. Texts are cut after 1,000 characters and then end
with `…`: the column `value_bytes` holds the original bytes whole, and both in full would be most
of what the database stores and moves. Fields named `*_json` are never cut, because SQL queries
them.

For the current payload classes, writers are compiled from the schemas into straight-line Python.
They take a third of the time of a general encoder, which handles everything else.
"""

import base64
import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

from sessionary.schemas.codec.catalogue import EVENTS_NAMESPACE, Json, current_schemas
from sessionary.schemas.codec.codegen import CodeBuilder
from sessionary.schemas.events import EVENT_TYPES

TEXT_MAX: Final = 1_000
CUT_MARK: Final = "…"
UNCUT_SUFFIX: Final = "_json"  # of the names of fields that are never cut
# Types that JSON takes unchanged; compared by exact type, which most values of a payload have.
_UNCHANGED_TYPES: Final = frozenset({int, float, bool, type(None)})


def _encode_base64(value: object) -> str:
    assert isinstance(value, bytes)
    return cut_text(base64.b64encode(value[:TEXT_MAX]).decode())


# Made once: making an encoder costs as much as encoding a payload.
_encode_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_encode_base64).encode


def json_text(value: object) -> str:
    """Return any value of a payload's shape as JSON."""
    return _encode_json(_to_json_types(value))


def _is_unchanged(name: str, value: object) -> bool:
    return type(value) in _UNCHANGED_TYPES or (isinstance(value, str) and name.endswith(UNCUT_SUFFIX))


def _to_json_types(value: object) -> object:
    if isinstance(value, tuple) and (fields := getattr(value, "_fields", None)) is not None:
        pairs = zip(fields, value, strict=True)
        return {name: part if _is_unchanged(name, part) else _to_json_types(part) for name, part in pairs}
    if isinstance(value, Mapping):
        return {str(name): _to_json_types(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(part) for part in value]
    return cut_text(value) if isinstance(value, str) else value


def cut_text(text: str) -> str:
    """Return a text as a payload's JSON has it, if the field's name does not end with `_json`."""
    return text[:TEXT_MAX] + CUT_MARK if len(text) > TEXT_MAX else text


class _JsonWriterBuilder(CodeBuilder):
    """The source text of one writer. Each name in it first holds a value, then its JSON."""

    def __init__(self) -> None:
        super().__init__(["def text(r):"], {"_string": encode_basestring, "_other": _encode_json})

    def add_value(self, schema: Json, indent: int, name: str, *, uncut: bool = False) -> None:
        """Add lines that turn the value of `name` into JSON text.

        Numbers stay numbers: the f-string around them formats them. `uncut`: a text is not cut.
        """
        if isinstance(schema, str):
            schema = self.enums.get(schema, schema)
        match schema:
            case ["null", branch]:
                self.add_lines(indent, f"if {name} is None: {name} = 'null'", "else:")
                self.add_value(branch, indent + 1, name, uncut=uncut)
            case {"type": "record", "fields": fields}:
                self.add_object([field for field in fields if field["name"] != "envelope"], indent, name)
            case {"type": "enum", "name": full_name}:
                self.enums[full_name] = schema
                self.add_lines(indent, f"{name} = f'\"{{{name}}}\"'")
            case {"type": "array", "items": items}:
                item, parts = self.new_name(), self.new_name()
                self.add_lines(indent, f"{parts} = []", f"for {item} in {name}:")
                self.add_value(items, indent + 1, item)
                self.add_lines(indent + 1, f"{parts}.append(f'{{{item}}}')")
                self.add_lines(indent, f"{name} = '[' + ','.join({parts}) + ']'")
            case {"type": "map", "values": values}:
                key, item, parts = self.new_name(), self.new_name(), self.new_name()
                self.add_lines(indent, f"{parts} = []", f"for {key}, {item} in {name}.items():")
                self.add_value(values, indent + 1, item)
                self.add_lines(indent + 1, f"{parts}.append(f'{{_string({key})}}:{{{item}}}')")
                self.add_lines(indent, f"{name} = '{{' + ','.join({parts}) + '}}'")
            case {"type": inner}:
                self.add_value(inner, indent, name, uncut=uncut)
            case "string":
                if not uncut:
                    self.add_lines(indent, f"if len({name}) > {TEXT_MAX}: {name} = {name}[:{TEXT_MAX}] + '{CUT_MARK}'")
                self.add_lines(indent, f"{name} = _string({name})")
            case "boolean":
                self.add_lines(indent, f"{name} = 'true' if {name} else 'false'")
            case "int" | "long":
                self.add_lines(indent, "pass")
            case "double":
                # Infinities and NaN are written by the general encoder.
                self.add_lines(indent, f"{name} = repr({name}) if {name} - {name} == 0 else _other({name})")
            case _:
                self.add_lines(indent, f"{name} = _other({name})")

    def add_object(self, fields: list[dict[str, Json]], indent: int, name: str) -> None:
        """Add lines that turn an instance into an object; class and schema have one field order."""
        names = [self.new_name() for _ in fields]
        if names:
            # Unpacking a plain tuple is faster than unpacking a named one.
            self.add_lines(indent, f"({''.join(f'{part}, ' for part in names)}) = {name}[:]")
        for field, part in zip(fields, names, strict=True):
            self.add_value(field["type"], indent, part, uncut=field["name"].endswith(UNCUT_SUFFIX))
        inside = ",".join(f'"{field["name"]}":{{{part}}}' for field, part in zip(fields, names, strict=True))
        self.add_lines(indent, f"{name} = f'{{{{{inside}}}}}'")


def _compile_writer(cls: type[Any]) -> Callable[[Any], str]:
    """Return the writer of a class, compiled if it is an event's payload (about 1 ms)."""
    schema = current_schemas().get(f"{EVENTS_NAMESPACE}.{cls.__name__}")
    if cls not in EVENT_TYPES or schema is None:
        return json_text
    source = _JsonWriterBuilder()
    source.add_value(schema, 1, "r")
    source.add_lines(1, "return r")
    writer: Callable[[Any], str] = source.compile_function("text")
    return writer


_WRITERS: Final[dict[type[Any], Callable[[Any], str]]] = {}


def payload_text(payload: Any) -> str:
    """Return an event's payload, or a processor's record, as the decoder returns it, as JSON."""
    cls = type(payload)
    if (writer := _WRITERS.get(cls)) is None:
        writer = _WRITERS[cls] = _compile_writer(cls)
    return writer(payload)
