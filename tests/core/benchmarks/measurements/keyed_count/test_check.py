"""The check tells a wrong output from a correct one."""

import pytest

from benchmarks.measurements.keyed_count.check import OutputCheck
from benchmarks.measurements.keyed_count.job import key_bytes
from tests.core.benchmarks.measurements.keyed_count.outputs import EVENTS, KEYS, audited, outputs


def test_what_is_right_is_found_right() -> None:
    assert audited(list(outputs(KEYS))) == OutputCheck(outputs=EVENTS, missing=0, doubled=0, wrong=0)
    assert audited(list(outputs(KEYS))).is_right


def test_a_missing_output_is_found_and_so_is_the_count_that_jumps() -> None:
    records = list(outputs(KEYS))
    del records[-1]
    assert audited(records) == OutputCheck(EVENTS - 1, missing=1, doubled=0, wrong=0)
    del records[0]
    assert audited(records).wrong > 0


def test_a_doubled_output_is_found() -> None:
    records = list(outputs(KEYS))
    assert audited([*records, records[5]]) == OutputCheck(EVENTS + 1, missing=0, doubled=1, wrong=0)


@pytest.mark.parametrize(
    "wrong", [(key_bytes(3), b"99 00000003...."), (key_bytes(4), b"1 00000003....")], ids=["wrong count", "foreign key"]
)
def test_a_wrong_output_is_found(wrong: tuple[bytes, bytes]) -> None:
    records = list(outputs(KEYS))
    records[3] = wrong
    assert audited(records) == OutputCheck(EVENTS, missing=0, doubled=0, wrong=1)


def test_events_of_a_key_counted_in_another_order_are_found() -> None:
    records = list(outputs(KEYS))
    (_, first), (_, second) = records[0], records[7]
    records[0] = key_bytes(0), first[:2] + second[2:]
    records[7] = key_bytes(0), second[:2] + first[2:]
    assert audited(records) == OutputCheck(EVENTS, missing=0, doubled=0, wrong=1)
