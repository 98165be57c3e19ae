"""The page of the control API, made from its OpenAPI document."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sessionary.stream_processors.api.openapi import DOCUMENT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "control_api.md"
_HEAD = """\
# Control API

Each processor serves this HTTP API, which returns the committed state of a session, and the verdict
on an event: applied or rejected. The client calls the API in `resume`, `recover` and `attach`; your
own tools may call it too. Operators list the partitions' states, reopen a halted partition, decide
on the record that halts it, and activate newer rules. `make docs` generates this page from the
OpenAPI document, which a processor serves as `/openapi.json`; a test compares the two.

[Settings](settings.md) has the API's address and tokens: `SESSIONARY_API_HOST`,
`SESSIONARY_API_PORT`, `SESSIONARY_API_TOKENS` and `SESSIONARY_API_TOKENS_FILE`. A request below
`/v1` needs the header `Authorization: Bearer <token>`. A token stands for a tenant's name, or for
an object:

```json
{
  "<token 1>": "acme",
  "<token 2>": {"tenant": "acme", "principal": "alice", "roles": ["reader", "operator"]},
  "<token 3>": {"principal": "on-call", "roles": ["operator"]}
}
```

- A `reader`, the default, reads the sessions of its tenant.
- An `operator` lists and retries partitions, decides on halted ones and activates rules, and needs
  no tenant.
- The `principal` is the caller's name in logs and in the audit trail of decisions, by default the
  tenant's name.
- The file is read again within a second after a change. A token in the file takes precedence over
  the same token in the variable. If the file cannot be used, the tokens that were read last stay in
  force, and `sessionary_processor_token_file_failures_total` counts the failures.

An error is an `application/problem+json` object with a `reason`.
"""

Json = dict[str, Any]


def control_api_page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_path_lines(), *_schema_lines()])


def _path_lines() -> Iterator[str]:
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            yield from (f"## {method.upper()} {path}", "", f"{operation['summary']}.", "")
            if parameters := operation.get("parameters"):
                yield from ("| parameter | in | meaning |", "|---|---|---|")
                for parameter in parameters:
                    text = parameter.get("description") or "required"
                    yield f"| `{parameter['name']}` | {parameter['in']} | {_cell(text)}{_bounds(parameter['schema'])} |"
                yield ""
            if body := operation.get("requestBody"):
                yield from _body_lines(body["content"]["application/json"]["schema"])
                yield ""
            yield from ("| status | meaning |", "|---|---|")
            yield from (
                f"| {code} | {_cell(answer['description'])} |" for code, answer in operation["responses"].items()
            )
            yield ""


def _body_lines(schema: Json) -> Iterator[str]:
    if "$ref" in schema:
        yield f"The body is JSON: {_type_text(schema)}."
        return
    yield from ("| field of the body | type | meaning |", "|---|---|---|")
    yield from _field_lines(schema, "")


def _bounds(schema: Json) -> str:
    named = [f"{name} {schema[name]}" for name in ("minimum", "maximum", "default") if name in schema]
    return f" ({', '.join(named)})" if named else ""


def _schema_lines() -> Iterator[str]:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        yield from (f"## {name}", "", "| field | type | meaning |", "|---|---|---|")
        yield from _field_lines(schema, "")
        yield ""


def _field_lines(schema: Json, prefix: str) -> Iterator[str]:
    for name, field in schema["properties"].items():
        yield f"| `{prefix}{name}` | {_type_text(field)} | {_cell(field.get('description', ''))} |"
        for part in (field, field.get("items", {}), *field.get("oneOf", ())):
            if "properties" in part:
                yield from _field_lines(part, f"{prefix}{name}{'[]' if 'items' in field else ''}.")


def _type_text(schema: Json) -> str:
    if "oneOf" in schema:
        return " or ".join(_type_text(part) for part in schema["oneOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kinds = schema["type"]
    text = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if "$ref" in schema.get("items", {}):
        text += f" of {_type_text(schema['items'])}"
    return f"{text} ({schema['format']})" if "format" in schema else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def write() -> Iterable[Path]:
    """Bring the page up to date. Returns its path."""
    PAGE.write_text(control_api_page(), "utf-8")
    return (PAGE,)
