"""The bytes of each release stay readable, and its schemas keep their fingerprints.

That today's bytes and schemas are those of the newest release: `tests/golden/test_frozen.py`.
"""

from typing import Any

import pytest

from sessionary.schemas.codec.catalogue import canonical_form, writer_schemas
from tests.core.schemas.codec.test_framing import read_any
from tests.golden.forms import frozen_releases, read_forms
from tests.support.values import as_json

VERSIONS = frozen_releases()


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
        names = {name.rpartition(".")[2] for name in read_forms(version, "schemas")}
        assert names == read_forms(version, "bytes").keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_bytes_of_every_version_are_read(version: str) -> None:
    for name, entry in read_forms(version, "bytes").items():
        assert holds(entry["value"], as_json(read_any(bytes.fromhex(entry["bytes"])))), name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fingerprints_of_every_version_are_known_by_their_names(version: str) -> None:
    golden = read_forms(version, "bytes")
    for name, form in read_forms(version, "schemas").items():
        schema = writer_schemas()[bytes.fromhex(form["fingerprint"])]
        assert (schema.full_name, canonical_form(schema.parsed)) == (name, form["form"])
        assert golden[name.rpartition(".")[2]]["bytes"][4:20] == form["fingerprint"]


def test_a_value_that_lost_a_field_holds_no_older_one() -> None:
    older = {"a": [{"b": 1}]}
    assert holds(older, {"a": [{"b": 1, "c": 2}], "d": 3})
    assert not holds(older, {"a": [{"c": 2}]})
    assert not holds(older, {"a": []})
