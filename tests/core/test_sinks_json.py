"""Payloads as JSON against the plainest way to write them."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.events import PAYLOADS
from sessionary.sinks.rows import json_text
from tests.support.values import values


def plainest(value: Any) -> Any:
    """As JSON has it, by the simplest rules."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plainest(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {name: plainest(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plainest(part) for part in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@given(st.sampled_from(sorted(PAYLOADS)).flatmap(lambda name: values(PAYLOADS[name])))
def test_a_payload_as_json_is_the_same_text_as_ever(payload: Any) -> None:
    assert json_text(payload) == json.dumps(plainest(payload), ensure_ascii=False, separators=(",", ":"))
    assert json_text((b"\xff", payload)) == json.dumps(
        plainest((b"\xff", payload)), ensure_ascii=False, separators=(",", ":")
    )
