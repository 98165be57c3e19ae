"""The bytes of every release stay readable, and no schema breaks with its last release."""

import json
from pathlib import Path
from typing import Any

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from sessionary.schemas.codec.catalogue import current_schemas, released_schemas, schema_fingerprint, writer_schemas
from sessionary.schemas.events import PAYLOADS
from tests.core.schemas.codec.test_framing import Schema, changed, field_of, read_any
from tests.support.values import as_json

GOLDEN = Path(__file__).parents[3] / "golden"
# Schemas that have more fields today than in the last release, and so another fingerprint.
EVOLVED = {
    *(
        f"sessionary.records.{name}"
        for name in ("AuditRecord", "BatchRecord", "Gravestone", "Position", "RejectedEvent", "SessionState")
    ),
    "sessionary.events.StateUpdated",
    "sessionary.events.AgentRegistered",
    "sessionary.events.AgentTaskUpdated",
    "sessionary.events.ContextSynced",
    "sessionary.events.ToolCallStarted",
    "sessionary.events.RunCompleted",
    "sessionary.events.RunFailed",
    "sessionary.events.RunResumed",
    "sessionary.events.StepStarted",
    "sessionary.events.Heartbeat",
    "sessionary.events.CheckpointSaved",
    "sessionary.events.SessionMigrationAccepted",
    "sessionary.events.SessionMigrationAborted",
    "sessionary.events.SessionPaused",
    "sessionary.events.SessionResumed",
    "sessionary.events.SessionTerminated",
}


@pytest.mark.parametrize("version", sorted(released_schemas()))
def test_todays_code_reads_the_bytes_of_every_release(version: str) -> None:
    golden = json.loads((GOLDEN / f"{version}.json").read_text("utf-8"))
    assert {name.rpartition(".")[2] for name in released_schemas()[version]} == set(golden)
    for name, entry in golden.items():
        if entry["value"].get("envelope", {}).get("event_type", "heartbeat") not in PAYLOADS:
            continue
        read = as_json(read_any(bytes.fromhex(entry["bytes"])))
        assert holds(entry["value"], read), name


def holds(older: Any, newer: Any) -> bool:
    """Return True if the newer value has all of the older one; it may have more fields."""
    if isinstance(older, dict):
        return all(key in newer and holds(value, newer[key]) for key, value in older.items())
    if isinstance(older, list):
        return len(older) == len(newer) and all(map(holds, older, newer))
    return bool(older == newer)


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


def fingerprints(version: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((GOLDEN / f"fingerprints-{version}.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("version", sorted(released_schemas()))
def test_the_fingerprints_of_a_release_are_those_that_were_written_down(version: str) -> None:
    known = fingerprints(version)
    assert {name: schema_fingerprint(schema).hex() for name, schema in released_schemas()[version].items()} == known
    assert {name: writer_schemas()[bytes.fromhex(key)].full_name for name, key in known.items()} == {
        n: n for n in known
    }
    golden = json.loads((GOLDEN / f"{version}.json").read_text("utf-8"))
    assert {name: golden[name.rpartition(".")[2]]["bytes"][4:20] for name in known} == known


def test_a_schema_that_did_not_evolve_keeps_the_fingerprint_of_the_last_release() -> None:
    version = max(released_schemas(), key=lambda version: [int(part) for part in version.split(".")])
    today = {name: schema_fingerprint(schema).hex() for name, schema in current_schemas().items()}
    changed_since = {name for name, known in fingerprints(version).items() if today.get(name, known) != known}
    assert changed_since == EVOLVED


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
