"""Payloads as JSON, to be asked about in SQL; pure.

Classes become objects, bytes base64. Texts are cut behind 1,000 characters and end with `…` then: the original bytes
stand beside them whole, and both in full would be most of what a database holds and moves. Fields that hold JSON
themselves, named so, are never cut: SQL looks into them. For today's payloads there
are writers compiled once into straight-line Python, by their schemas: they take a third of the time of a general
encoder, which is asked for everything else.
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
_CUT: Final = "…"
_WHOLE: Final = "_json"  # the end of the names of fields that are not cut
# What JSON takes as it stands; looked up by exact type, which most values of a payload have.
_AS_IT_IS: Final = frozenset({int, float, bool, type(None)})


def _base64(value: object) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


# Made once: making an encoder costs as much as encoding a payload.
_encoded: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_base64).encode


def json_text(value: object) -> str:
    """Return any value of a payload's shape as JSON."""
    return _encoded(_plain(value))


def _stays(name: str, value: object) -> bool:
    return type(value) in _AS_IT_IS or (isinstance(value, str) and name.endswith(_WHOLE))


def _plain(value: object) -> object:
    if isinstance(value, tuple) and (fields := getattr(value, "_fields", None)) is not None:
        pairs = zip(fields, value, strict=True)
        return {name: part if _stays(name, part) else _plain(part) for name, part in pairs}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[:TEXT_MAX] + _CUT
    return value


class _JsonWriterBuilder(CodeBuilder):
    """The text of one writer as it grows: each name goes from a value to that value's JSON."""

    def __init__(self) -> None:
        super().__init__(["def text(r):"], {"_string": encode_basestring, "_other": _encoded})

    def value(self, schema: Json, indent: int, name: str, *, whole: bool = False) -> None:
        """Turn what `name` holds into text; numbers stay, they are text once they are put between others.

        `whole`: a text is not cut.
        """
        if isinstance(schema, str):
            schema = self.enums.get(schema, schema)
        match schema:
            case ["null", branch]:
                self.add_lines(indent, f"if {name} is None: {name} = 'null'", "else:")
                self.value(branch, indent + 1, name, whole=whole)
            case {"type": "record", "fields": fields}:
                self.record([field for field in fields if field["name"] != "envelope"], indent, name)
            case {"type": "enum", "name": full_name}:
                self.enums[full_name] = schema
                self.add_lines(indent, f"{name} = f'\"{{{name}}}\"'")
            case {"type": "array", "items": items}:
                item, parts = self.new_name(), self.new_name()
                self.add_lines(indent, f"{parts} = []", f"for {item} in {name}:")
                self.value(items, indent + 1, item)
                self.add_lines(indent + 1, f"{parts}.append(f'{{{item}}}')")
                self.add_lines(indent, f"{name} = '[' + ','.join({parts}) + ']'")
            case {"type": "map", "values": values}:
                key, item, parts = self.new_name(), self.new_name(), self.new_name()
                self.add_lines(indent, f"{parts} = []", f"for {key}, {item} in {name}.items():")
                self.value(values, indent + 1, item)
                self.add_lines(indent + 1, f"{parts}.append(f'{{_string({key})}}:{{{item}}}')")
                self.add_lines(indent, f"{name} = '{{' + ','.join({parts}) + '}}'")
            case {"type": inner}:
                self.value(inner, indent, name, whole=whole)
            case "string":
                if not whole:
                    self.add_lines(indent, f"if len({name}) > {TEXT_MAX}: {name} = {name}[:{TEXT_MAX}] + '{_CUT}'")
                self.add_lines(indent, f"{name} = _string({name})")
            case "boolean":
                self.add_lines(indent, f"{name} = 'true' if {name} else 'false'")
            case "int" | "long":
                self.add_lines(indent, "pass")
            case "double":
                # Infinity and what is no number have names of their own.
                self.add_lines(indent, f"{name} = repr({name}) if {name} - {name} == 0 else _other({name})")
            case _:
                self.add_lines(indent, f"{name} = _other({name})")

    def record(self, fields: list[dict[str, Json]], indent: int, name: str) -> None:
        """Turn an instance into an object; the fields of class and schema stand in one order."""
        names = [self.new_name() for _ in fields]
        if names:
            # A plain tuple comes apart faster than a named one.
            self.add_lines(indent, f"({''.join(f'{part}, ' for part in names)}) = {name}[:]")
        for field, part in zip(fields, names, strict=True):
            self.value(field["type"], indent, part, whole=field["name"].endswith(_WHOLE))
        inside = ",".join(f'"{field["name"]}":{{{part}}}' for field, part in zip(fields, names, strict=True))
        self.add_lines(indent, f"{name} = f'{{{{{inside}}}}}'")


def _made(cls: type[Any]) -> Callable[[Any], str]:
    """Return the writer of a class, compiled where it is an event's payload; that takes some 1 ms."""
    schema = current_schemas().get(f"{EVENTS_NAMESPACE}.{cls.__name__}")
    if cls not in EVENT_TYPES or schema is None:
        return json_text
    source = _JsonWriterBuilder()
    source.value(schema, 1, "r")
    source.add_lines(1, "return r")
    writer: Callable[[Any], str] = source.compile_function("text")
    return writer


_WRITERS: Final[dict[type[Any], Callable[[Any], str]]] = {}


def payload_text(payload: Any) -> str:
    """Return what the decoder gave as an event's payload, or a tick, as JSON."""
    cls = type(payload)
    if (writer := _WRITERS.get(cls)) is None:
        writer = _WRITERS[cls] = _made(cls)
    return writer(payload)


__all__ = ["TEXT_MAX", "json_text", "payload_text"]
