"""The bytes of each release stay readable, and its schemas keep their fingerprints.

Until a release is made, its golden bytes follow the schemas: `python -m tests.golden.write 0.2.0`
writes them again, and the difference is read in the review.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from sessionary.schemas.codec import Event, encode_event, encode_record
from sessionary.schemas.codec.catalogue import current_schemas, schema_fingerprint, writer_schemas
from tests.core.schemas.codec.test_framing import read_any
from tests.support.values import as_json, every_example

FOLDER = Path(__file__).parents[3] / "golden"
FINGERPRINTS = "fingerprints-"
VERSIONS = sorted(path.stem.removeprefix(FINGERPRINTS) for path in FOLDER.glob(f"{FINGERPRINTS}*.json"))


def read_golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def holds(older: Any, newer: Any) -> bool:
    """Return True if the newer value has all of the older one; it may have more fields."""
    if isinstance(older, dict):
        return all(key in newer and holds(value, newer[key]) for key, value in older.items())
    if isinstance(older, list):
        return len(older) == len(newer) and all(map(holds, older, newer))
    return bool(older == newer)


def test_each_version_has_bytes_and_fingerprints_of_the_same_schemas() -> None:
    assert VERSIONS
    for version in VERSIONS:
        names = {name.rpartition(".")[2] for name in read_golden(f"{FINGERPRINTS}{version}")}
        assert names == read_golden(version).keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_bytes_of_every_version_are_read(version: str) -> None:
    for name, entry in read_golden(version).items():
        assert holds(entry["value"], as_json(read_any(bytes.fromhex(entry["bytes"])))), name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fingerprints_of_every_version_are_known_by_their_names(version: str) -> None:
    for name, fingerprint in read_golden(f"{FINGERPRINTS}{version}").items():
        assert writer_schemas()[bytes.fromhex(fingerprint)].full_name == name
        assert read_golden(version)[name.rpartition(".")[2]]["bytes"][4:20] == fingerprint


def test_the_newest_version_s_golden_bytes_are_written_today() -> None:
    newest = max(VERSIONS, key=lambda version: [int(part) for part in version.split(".")])
    today = {name: schema_fingerprint(schema).hex() for name, schema in current_schemas().items()}
    assert read_golden(f"{FINGERPRINTS}{newest}") == today
    golden = read_golden(newest)
    for value in every_example():
        name = type(value.payload if isinstance(value, Event) else value).__name__
        written = encode_event(value) if isinstance(value, Event) else encode_record(value)
        assert written.hex() == golden[name]["bytes"], name


def test_a_value_that_lost_a_field_holds_no_older_one() -> None:
    older = {"a": [{"b": 1}]}
    assert holds(older, {"a": [{"b": 1, "c": 2}], "d": 3})
    assert not holds(older, {"a": [{"c": 2}]})
    assert not holds(older, {"a": []})
