"""The fuzzer of readers and writers: what it reaches with those that are installed, and what it
finds.
"""

import os
import subprocess
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from sessionary.schemas.codec.compiled_helpers import find_function
from sessionary.schemas.codec.framing import read_compiled
from tests.fuzz import reader_run
from tests.fuzz.avro_bytes import AvroMaker, encode_number
from tests.fuzz.damage import ODD_VALUES, damage_bytes, damage_value
from tests.fuzz.reader_run import INPUTS_PER_VALUE, ReadCounts, ReaderRun
from tests.fuzz.readers import plan_inputs
from tests.style.project import ROOT
from tests.support.values import every_example

INPUTS = 4_000


def test_every_value_that_a_reader_returns_is_fastavro_s() -> None:
    counts = ReaderRun(1).read_inputs(INPUTS)
    assert counts.faults == ()
    assert counts.inputs == counts.agreed + counts.given_up == INPUTS
    assert counts.agreed > INPUTS / 10
    assert counts.given_up > INPUTS / 10
    assert counts.identities > INPUTS / 50
    assert counts.written > 0 < counts.not_written
    assert 0 < counts.readable < counts.compared


def test_a_seed_gives_the_same_inputs_and_another_one_others() -> None:
    first, again, other = (ReaderRun(seed).read_inputs(1_000) for seed in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize("kind", ["read", "read_identity", "write"])
def test_a_function_that_differs_from_fastavro_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_run, "find_function", _with_fault(kind))
    counts = ReaderRun(2).read_inputs(INPUTS)
    assert 0 < len(counts.faults) <= 5
    assert counts.inputs < INPUTS


def _with_fault(kind: str) -> Callable[[str, str, bytes], Any]:
    """Return `find_function`, whose functions of a kind are wrong in the last text of a value."""

    def find(wanted: str, full_name: str, fingerprint: bytes) -> Any:
        found: Any = find_function(wanted, full_name, fingerprint)  # type: ignore[arg-type]
        return found if wanted != kind else lambda *given: _changed(found(*given))

    return find


def _changed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value + b"\0"
    return tuple.__new__(type(value), [*value[:-1], "other"])


def test_what_is_made_without_oddities_is_read_by_the_compiled_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.avro_bytes._ODD_SHARE", 0.0)
    run = ReaderRun(3)
    for known in run._known:
        value = known.header + run._maker.make_bytes(known.append)
        assert read_compiled(value) is not None, known.name


def test_a_number_may_be_longer_than_it_needs() -> None:
    assert [encode_number(number) for number in (0, -1, 1, 64)] == [b"\0", b"\1", b"\2", b"\x80\1"]
    assert encode_number(1, padding=2) == b"\x82\x80\0"
    maker = AvroMaker(Random(1))
    assert {maker.make_bytes(maker.appender_of("boolean")) for _ in range(50)} >= {b"\0", b"\1"}


def test_damage_changes_most_bytes_and_values() -> None:
    random, value = Random(1), bytes(range(100))
    damaged = [damage_bytes(random, value, 10, b"other" * 9) for _ in range(500)]
    assert all(each[:10] == value[:10] for each in damaged)
    assert len(set(damaged)) > 300
    assert damage_bytes(random, b"", 10, b"") != b""
    for example in every_example():
        assert any(repr(damage_value(random, example)) != repr(example) for _ in range(20))
    assert len(ODD_VALUES) > 20


def test_the_inputs_are_shared_among_runs() -> None:
    assert plan_inputs(7, 120_000) == [(7, 50_000), (8, 50_000), (9, 20_000)]
    assert INPUTS_PER_VALUE > 1
    assert ReadCounts(1, faults=("a",)).add(ReadCounts(2, faults=("b",))) == ReadCounts(3, faults=("a", "b"))


@pytest.mark.parametrize(("words", "is_sanitized"), [(["SANITIZE=1"], True), ([], False)])
def test_a_variable_of_make_asks_for_the_sanitizer(words: list[str], is_sanitized: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "fuzz-readers", "RECORDS=10000000", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()[-1].split()
    assert said[said.index("--inputs") + 1] == "10000000"
    assert ("--sanitize" in said) is is_sanitized
