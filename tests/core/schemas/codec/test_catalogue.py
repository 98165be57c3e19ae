"""No schema breaks with its last release."""

import json
from typing import Any

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from sessionary.schemas.codec.catalogue import current_schemas, released_schemas, schema_fingerprint, writer_schemas
from tests.core.schemas.codec.test_framing import Schema, changed, field_of


def compatible(reader: Schema, writer: Schema) -> bool:
    checker: Any = ReaderWriterCompatibilityChecker
    result = checker().get_compatibility(avro.schema.parse(json.dumps(reader)), avro.schema.parse(json.dumps(writer)))
    return bool(result.compatibility is SchemaCompatibilityType.compatible)


def last_release() -> dict[str, Schema]:
    return max(released_schemas().items(), key=lambda item: [int(part) for part in item[0].split(".")])[1]


@pytest.mark.parametrize("name", sorted(last_release().keys() & current_schemas()))
def test_a_schema_is_compatible_with_its_last_release_both_ways(name: str) -> None:
    now, then = current_schemas()[name], last_release()[name]
    assert compatible(reader=now, writer=then)
    assert compatible(reader=then, writer=now)


def test_every_fingerprint_of_every_release_is_known() -> None:
    for released in released_schemas().values():
        assert {schema_fingerprint(schema) for schema in released.values()} <= set(writer_schemas())


def test_docs_and_defaults_are_no_part_of_a_fingerprint_and_fields_are() -> None:
    def documented(schema: Schema) -> None:
        schema["doc"] = field_of(schema, "state_json")["doc"] = "another text"

    def extended(schema: Schema) -> None:
        schema["fields"].append({"name": "new", "type": ["null", "string"], "default": None})

    before = schema_fingerprint(current_schemas()["sessionary.events.StateUpdated"])
    assert schema_fingerprint(changed("StateUpdated", documented)) == before
    assert schema_fingerprint(changed("StateUpdated", extended)) != before


def test_the_compatibility_check_can_fail() -> None:
    then = last_release()["sessionary.events.StateUpdated"]

    def needed(schema: Schema) -> None:
        schema["fields"].append({"name": "new", "type": "string"})

    def retyped(schema: Schema) -> None:
        field_of(schema, "base_version")["type"] = "string"

    def removed(schema: Schema) -> None:
        schema["fields"].remove(field_of(schema, "state_json"))

    def optional(schema: Schema) -> None:
        schema["fields"].append({"name": "new", "type": ["null", "string"], "default": None})

    assert not compatible(changed("StateUpdated", needed), then)
    assert not compatible(changed("StateUpdated", retyped), then)
    assert not compatible(then, changed("StateUpdated", removed))
    assert compatible(changed("StateUpdated", optional), then)
    assert compatible(then, changed("StateUpdated", optional))
