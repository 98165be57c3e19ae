"""Readers and writers that the build made: one for every schema, and missed without harm."""

from pathlib import Path

import pytest

from generation.modules import FINDER, FOLDER, find_stale_files, make_texts, write_files
from generation.schemas import known_schemas
from sessionary.schemas.codec import (
    Decoder,
    Event,
    compiled_helpers,
    encode_event,
    encode_record,
    framing,
    read_identity,
)
from sessionary.schemas.codec.compiled_helpers import find_in_modules, generated_functions
from sessionary.schemas.headers import EventIdentity
from tests.style.project import ROOT
from tests.support.values import every_example


def encoded(value: object) -> bytes:
    return encode_event(value) if isinstance(value, Event) else encode_record(value)  # type: ignore[arg-type]


def test_every_schema_has_its_functions() -> None:
    made, schemas = generated_functions(), list(known_schemas())
    assert len(schemas) > 80
    for known in schemas:
        kinds = ("read", "write", "read_identity", "write_payload")
        found = [made.find_function(known.module, kind) is not None for kind in kinds]
        assert found == [True, True, known.is_event, known.is_event], known.module
    assert made.find_function("tick_0123456789abcdef", "read") is None


def test_without_its_function_a_value_is_written_and_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = list(every_example())
    values = [encoded(value) for value in examples]
    identities = [read_identity(value) for value in values]
    events = [value for value in examples if isinstance(value, Event)]
    assert sum(isinstance(identity, EventIdentity) for identity in identities) == len(events) > 50
    monkeypatch.setattr(compiled_helpers, "generated_functions", lambda: None)
    monkeypatch.setattr(framing, "_WRITERS", {})
    framing._identity_reader.cache_clear()
    framing._compiled_readers_as_of.cache_clear()
    try:
        decoder = Decoder()
        assert [encoded(value) for value in examples] == values
        assert [decoder._decode(value) for value in values] == examples
        assert [read_identity(value) for value in values] == identities
        assert set(decoder._readers.values()) == {None}
    finally:
        framing._identity_reader.cache_clear()
        framing._compiled_readers_as_of.cache_clear()


def test_a_function_for_other_fields_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (known,) = (known for known in known_schemas() if known.cls.__name__ == "Tick")
    assert find_in_modules(known.module, "read") is not None
    monkeypatch.setattr(known.cls, "_fields", (*known.cls._fields, "later"))
    assert find_in_modules(known.module, "read") is None


def test_an_error_in_a_generated_module_is_no_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(name=name.replace("sessionary", "elsewhere"))

    monkeypatch.setattr(compiled_helpers, "import_module", fail)
    with pytest.raises(ModuleNotFoundError):
        find_in_modules("tick", "read")


def test_what_is_made_is_current() -> None:
    assert find_stale_files(ROOT) == []


def test_files_are_stale_if_they_are_missing_or_differ_and_are_mended(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.parent.mkdir(parents=True)
    texts = make_texts()
    assert find_stale_files(tmp_path) == sorted(texts)
    assert write_files(tmp_path) == len(texts)
    assert find_stale_files(tmp_path) == []
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert before.keys() == texts.keys()
    (folder / FINDER).write_text("")
    (folder / "gone_0123456789abcdef.py").touch()
    assert find_stale_files(tmp_path) == [FINDER, "gone_0123456789abcdef.py"]
    assert write_files(tmp_path) == 1
    assert find_stale_files(tmp_path) == []
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name for name in after if after[name] != before[name]} <= {FINDER}
