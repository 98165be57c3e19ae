"""The .avsc files for the auditor: inlined and fingerprinted here, with fastavro alone."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fastavro import parse_schema
from fastavro.schema import fingerprint, to_parsing_canonical_form

from tests.auditor.rules import RULES

AVRO = Path(__file__).parents[2] / "schemas" / "sessionary" / "schemas" / "avro"
SECOND_RULES = Path(__file__).parents[1] / "support" / "second_rules"  # that only tests have


class WriterSchema(NamedTuple):
    """A schema that records may be written with."""

    full_name: str
    parsed: Any
    rules: int  # the first version of the rules whose judges know it


def _full_name(schema: dict[str, Any]) -> str:
    return f"{schema['namespace']}.{schema['name']}"


def _spelled_out(schema: Any, parts: dict[str, Any], met: set[str]) -> Any:
    """Return a schema with its references inlined and without logical types."""
    if isinstance(schema, list):
        return [_spelled_out(one, parts, met) for one in schema]
    if isinstance(schema, str):
        return _spelled_out(parts[schema], parts, met) if schema in parts and schema not in met else schema
    if schema["type"] in ("record", "enum"):
        met.add(_full_name(schema))
    result = {name: value for name, value in schema.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in result:
            result[name] = _spelled_out(result[name], parts, met)
    if "fields" in result:
        result["fields"] = [field | {"type": _spelled_out(field["type"], parts, met)} for field in result["fields"]]
    return result


def _files(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.avsc"))]


@cache
def schemas_by_fingerprint() -> dict[bytes, WriterSchema]:
    """Return the schemas of all rules by fingerprint (CRC-64-AVRO, little-endian)."""
    parts = {_full_name(schema): schema for schema in _files(AVRO / "common")}
    first = [_spelled_out(schema, parts, set()) for schema in (*_files(AVRO / "events"), *_files(AVRO / "records"))]
    second = [_spelled_out(schema, parts, set()) for schema in _files(SECOND_RULES)]
    found: dict[bytes, WriterSchema] = {}
    for rules, schemas in ((RULES, first), (RULES + 1, second)):
        for schema in schemas:
            crc = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
            found[crc] = WriterSchema(_full_name(schema), parse_schema(schema), rules)
    return found
