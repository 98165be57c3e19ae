"""The compiled readers and writers agree with fastavro or give up, and touch no memory that is not
theirs.
"""

import re
import sys

from tests.native.conftest import run_program


def fuzz_readers(*options: str, **environment: str) -> str:
    """Run the fuzzer of readers; return what it prints."""
    done = run_program([sys.executable, "-m", "tests.fuzz.readers", "--processes", "1", *options], environment)
    assert done.returncode == 0, f"{done.stdout[-10_000:]}{done.stderr[-10_000:]}"
    return done.stdout


def read_count(said: str, what: str) -> int:
    found = re.search(rf"^ *([\d,]+) {what}", said, re.M)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def test_damaged_records_are_read_as_by_fastavro_or_given_up(native_path: str) -> None:
    inputs = 200_000
    said = fuzz_readers("--here", "--inputs", f"{inputs}", "--seed", "101", PYTHONPATH=native_path)
    assert read_count(said, "inputs in") == inputs
    assert read_count(said, "were read, as fastavro does") > inputs / 10
    assert read_count(said, "were given up") > inputs / 10
    assert read_count(said, "values were written, as fastavro does") > inputs / 50
    assert read_count(said, "values were not written") > inputs / 50
    assert "every value that a compiled function returned is fastavro's" in said


def test_no_damage_lets_a_reader_touch_what_is_not_its_own() -> None:
    inputs = 40_000
    said = fuzz_readers("--inputs", f"{inputs}", "--seed", "102", "--sanitize")
    assert ".so, watched by the address sanitizer" in said
    assert read_count(said, "inputs in") == inputs
    assert read_count(said, "were given up") > inputs / 10
