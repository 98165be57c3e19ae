"""Newer rules bring newer forms of schemas, which are compatible with the former ones."""

import json
from typing import Any

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from sessionary.schemas.codec.catalogue import current_schemas, schema_fingerprint, schemas_as_of, schemas_by
from sessionary.schemas.rules import NEWEST_RULES
from tests.core.schemas.codec.test_framing import Schema, changed, field_of
from tests.support.second_rules import SECOND_RULES


def compatible(reader: Schema, writer: Schema) -> bool:
    checker: Any = ReaderWriterCompatibilityChecker
    result = checker().get_compatibility(avro.schema.parse(json.dumps(reader)), avro.schema.parse(json.dumps(writer)))
    return bool(result.compatibility is SchemaCompatibilityType.compatible)


@pytest.mark.usefixtures("second_rules")
def test_a_schema_of_newer_rules_is_compatible_with_the_former_one_both_ways() -> None:
    former, later = schemas_by(NEWEST_RULES.version), schemas_by(SECOND_RULES.version)
    changed_since = {name for name, schema in former.items() if later[name] != schema}
    assert changed_since == {
        "sessionary.events.SessionActivity",
        "sessionary.records.BatchRecord",
        "sessionary.records.Tombstone",
    }
    for name in changed_since:
        assert compatible(reader=later[name], writer=former[name])
        assert compatible(reader=former[name], writer=later[name])
        assert schema_fingerprint(later[name]) not in schemas_as_of(NEWEST_RULES.version)
    assert {schema_fingerprint(schema) for schema in (*former.values(), *later.values())} == set(
        schemas_as_of(SECOND_RULES.version)
    )


def test_docs_and_defaults_are_no_part_of_a_fingerprint_and_fields_are() -> None:
    def documented(schema: Schema) -> None:
        schema["doc"] = field_of(schema, "state_json")["doc"] = "another text"

    def extended(schema: Schema) -> None:
        schema["fields"].append({"name": "new", "type": ["null", "string"], "default": None})

    before = schema_fingerprint(current_schemas()["sessionary.events.StateUpdated"])
    assert schema_fingerprint(changed("StateUpdated", documented)) == before
    assert schema_fingerprint(changed("StateUpdated", extended)) != before


def test_the_compatibility_check_can_fail() -> None:
    then = current_schemas()["sessionary.events.StateUpdated"]

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
