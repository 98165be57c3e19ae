"""RFC 8785: one form for each value."""

import json
import math
import struct
from typing import Any

import pytest

from sessionary.producers.durable.call_keys import canonical_text
from sessionary.producers.errors import Invalid

# RFC 8785, appendix B: the bits of a double, and its text.
NUMBERS = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""


@pytest.mark.parametrize(("bits", "text"), [line.split() for line in NUMBERS.split("\n") if line])
def test_numbers_have_the_texts_of_the_rfc(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_text(number) == text
    assert float(text) == number


def test_the_sample_of_the_rfc_has_its_form() -> None:
    sample = json.loads(
        r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
             "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
    )
    assert canonical_text(sample) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_in_the_order_of_their_utf_16_units() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\u00f6"]
    found = json.loads(canonical_text(dict.fromkeys(keys)))
    assert list(found) == ["\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("value", "text"), [((), "[]"), ({}, "{}"), ([{}, []], "[{},[]]"), (1.0, "1"), (2**53 - 1, "9007199254740991")]
)
def test_other_values_have_their_form(value: Any, text: str) -> None:
    assert canonical_text(value) == text


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, {1: 2}, object(), "\ud800", {"\ud800": 1}, endless()])
def test_what_has_no_form_is_invalid(value: Any) -> None:
    with pytest.raises(Invalid):
        canonical_text(value)
