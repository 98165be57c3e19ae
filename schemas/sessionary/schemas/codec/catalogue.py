"""The schemas, read once from the package.

Those of today are `avro/{common,events,records}/*.avsc`. Newer rules have a folder with
the schemas that came with them, new ones and newer forms of older ones. Fingerprints are
CRC-64-AVRO of the parsing canonical form (Avro 1.12 specification, "Schema Fingerprints"). Logical
types are no part of that form, and are left out here: times stay integers.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fastavro import parse_schema
from fastavro.schema import fingerprint, to_parsing_canonical_form

from sessionary.schemas.rules import known_rules, newest_known

# JSON as a file holds it: a schema's shape is not typed further.
Json = Any

EVENTS_NAMESPACE = "sessionary.events"
RECORDS_NAMESPACE = "sessionary.records"
_FOLDER = Path(__file__).parent.parent / "avro"  # importlib.resources would load much at import


class WriterSchema(NamedTuple):
    """A schema with which bytes may be written.

    Attributes:
        full_name: Namespace and name.
        fingerprint: 8 bytes, little-endian, as in the single-object encoding.
        parsed: The schema as fastavro takes it.
        current: It is today's schema of its name, not an older one.
        rules: The first version of the rules whose judges know it.
    """

    full_name: str
    fingerprint: bytes
    parsed: dict[str, Json]
    current: bool
    rules: int


def _inline_types(schema: Json, known: Mapping[str, Json], seen: set[str]) -> Json:
    """Return `schema` self-contained, without logical types.

    A named type is spelled out at its first occurrence.
    """
    match schema:
        case str() if schema in known and schema not in seen:
            return _inline_types(known[schema], known, seen)
        case list():
            return [_inline_types(branch, known, seen) for branch in schema]
        case dict():
            if schema.get("type") in ("record", "enum"):
                seen.add(f"{schema['namespace']}.{schema['name']}")
            return {
                key: [{**field, "type": _inline_types(field["type"], known, seen)} for field in _field_list(value)]
                if key == "fields"
                else (_inline_types(value, known, seen) if key in ("type", "items", "values") else value)
                for key, value in schema.items()
                if key != "logicalType"
            }
    return schema


def _field_list(value: Json) -> list[dict[str, Json]]:
    assert isinstance(value, list)
    return [field for field in value if isinstance(field, dict)]


def _read_schemas(folder: Path) -> Iterator[tuple[str, dict[str, Json]]]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".avsc"):
            schema = json.loads(path.read_text("utf-8"))
            yield f"{schema['namespace']}.{schema['name']}", schema


@cache
def schemas_by(rules: int) -> dict[str, dict[str, Json]]:
    """Return the schemas that are written by a version of the rules: `{full name: schema}`.

    Self-contained. Raises `KeyError` for unknown rules.
    """
    added = known_rules()[rules].schemas
    folders = [_FOLDER / "events", _FOLDER / "records"] if added is None else [added]
    result = {} if added is None else dict(schemas_by(rules - 1))
    known: dict[str, Json] = dict(_read_schemas(_FOLDER / "common"))
    for folder in folders:
        for name, schema in _read_schemas(folder):
            inlined = _inline_types(schema, known, set())
            assert isinstance(inlined, dict)
            result[name] = inlined
    return result


def current_schemas() -> dict[str, dict[str, Json]]:
    """Return the newest schemas of events and records, self-contained: `{full name: schema}`."""
    return schemas_by(newest_known().version)


def parsed_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Return `schema` as fastavro takes it for reading and writing."""
    parsed = parse_schema(dict(schema))
    assert isinstance(parsed, dict)
    return parsed


def _may_be_empty(schema: Json, known: dict[str, bool | None]) -> bool:
    """Return True if a value of the parsed `schema` may take no bytes at all.

    Raises `ValueError` for the two shapes with which a few bytes exhaust the process, which no
    handler could catch: a recursive type (fastavro recurses on the C stack) and an array of items
    that take no bytes.
    """
    match schema:
        case list():
            for branch in schema:
                _may_be_empty(branch, known)
            return False
        case str() if schema in known:
            empty = known[schema]
            if empty is None:
                raise ValueError(f"{schema} is recursive")
            return empty
        case {"type": "record" | "error", "name": name, "fields": fields}:
            known[name] = None
            empties = [_may_be_empty(field["type"], known) for field in fields]
            known[name] = all(empties)
            return all(empties)
        case {"type": "array", "items": items}:
            if _may_be_empty(items, known):
                raise ValueError("items of an array take no bytes")
            return False
        case {"type": "map", "values": values}:
            _may_be_empty(values, known)
            return False
        case {"type": "fixed", "name": name, "size": size}:
            known[name] = size == 0
            return bool(size == 0)
        case {"type": "enum", "name": name}:
            known[name] = False
            return False
        case {"type": inner}:
            return _may_be_empty(inner, known)
    return bool(schema == "null")


def foreign_schema(text: str) -> tuple[str, dict[str, Json]]:
    """Return the full name and parsed form of a schema in JSON, which may come from anyone.

    Raises `ValueError` for an unsafe shape, and any other error that malformed JSON provokes in
    fastavro.
    """
    parsed = parsed_schema(json.loads(text))
    _may_be_empty(parsed, {})
    return str(parsed["name"]), parsed


def canonical_form(schema: Mapping[str, Json]) -> str:
    """Return the schema's parsing canonical form; equal forms have equal fingerprints."""
    form: str = to_parsing_canonical_form(dict(schema))
    return form


def schema_fingerprint(schema: Mapping[str, Json]) -> bytes:
    """Return the 8 bytes of the schema's CRC-64-AVRO fingerprint, little-endian."""
    return _form_fingerprint(canonical_form(schema))


# Most schemas of a release are today's too, and one fingerprint takes about a millisecond.
@cache
def _form_fingerprint(form: str) -> bytes:
    return bytes.fromhex(fingerprint(form, "CRC-64-AVRO"))


@cache
def writer_schemas() -> dict[bytes, WriterSchema]:
    """Return every schema that this version can read, by fingerprint."""
    found: dict[bytes, WriterSchema] = {}
    today = {name: schema_fingerprint(schema) for name, schema in current_schemas().items()}
    for rules in sorted(known_rules()):
        for name, schema in schemas_by(rules).items():
            key = schema_fingerprint(schema)
            if key not in found:
                found[key] = WriterSchema(name, key, parsed_schema(schema), today[name] == key, rules)
    return found


@cache
def schemas_as_of(rules: int) -> dict[bytes, WriterSchema]:
    """Return the schemas that judges by a version of the rules know, by fingerprint."""
    return {key: schema for key, schema in writer_schemas().items() if schema.rules <= rules}
