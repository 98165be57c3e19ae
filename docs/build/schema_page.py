"""The page of events and records, made from the Avro files."""

import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "schemas.md"
_AVRO = ROOT / "schemas" / "sessionary" / "schemas" / "avro"
_HEAD = """\
# Events and records

This page lists the fields of every event of an agent and of every record of a processor. `make
docs` generates the page from the Avro files below `schemas/`, and a test compares the two. The
Python classes in `sessionary.schemas` have the same names and fields.

Times are integers, in microseconds since the epoch unless a field's name ends in `_ms`. A field
with a default may be left out. Readers see `UNKNOWN` in place of an unknown symbol of an enum.
"""
_COLUMNS = 100
_PARTS = (
    ("events", "Events", "Each event also has the field `envelope` ([Envelope](#envelope))."),
    ("records", "Records", "Processors write these records to their topics."),
    ("common", "Shared types", "The fields above refer to these types."),
)

Schema = dict[str, Any]


def schema_page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(line for part in _PARTS for line in _part_lines(*part))])


def _part_lines(folder: str, title: str, text: str) -> Iterator[str]:
    yield from (f"## {title}", "", text, "")
    for path in sorted((_AVRO / folder).glob("*.avsc")):
        yield from _type_lines(json.loads(path.read_text("utf-8")))


def _type_lines(schema: Schema) -> Iterator[str]:
    yield from (f"### {schema['name']}", "")
    if text := schema.get("doc"):
        yield from (text, "")
    if schema["type"] == "enum":
        symbols = "One of " + ", ".join(f"`{symbol}`" for symbol in schema["symbols"]) + "."
        yield from (*textwrap.wrap(symbols, _COLUMNS), "")
        return
    fields = [field for field in schema["fields"] if field["name"] != "envelope"]
    if not fields:
        yield from ("No further fields.", "")
        return
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field in fields:
        default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        yield f"| `{field['name']}` | {_type_text(field['type'])} | {default} | {field.get('doc', '')} |"
    yield ""


def _type_text(avro: Any) -> str:
    match avro:
        case str() if "." in avro:
            name = avro.rpartition(".")[2]
            return f"[{name}](#{name.lower()})"
        case str():
            return avro
        case list():
            return " or ".join(_type_text(branch) for branch in sorted(avro, key=lambda branch: branch == "null"))
        case {"type": "array", "items": items}:
            return f"array of {_type_text(items)}"
        case {"type": "map", "values": values}:
            return f"map of {_type_text(values)}"
        case {"type": inner}:
            return _type_text(inner)
    raise ValueError(f"no words for the Avro type {avro!r}")


def write() -> Iterable[Path]:
    """Bring the page up to date. Returns its path."""
    PAGE.write_text(schema_page(), "utf-8")
    return (PAGE,)
