"""Payloads as JSON, compared with the simplest way to write them."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.events import PAYLOADS, LlmDecision, MessageAppended, StateUpdated
from sessionary.sinks.core.payload_json import TEXT_MAX, json_text, payload_text
from tests.support.values import values


def by_simple_rules(value: Any, field: str = "") -> Any:
    """Return a value of JSON types, made by the simplest rules."""
    if isinstance(value, str) and field.endswith("_json"):
        return value
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: by_simple_rules(getattr(value, name), name) for name in value._fields}
    if isinstance(value, Mapping):
        return {name: by_simple_rules(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [by_simple_rules(part) for part in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@given(st.sampled_from(sorted(PAYLOADS)).flatmap(lambda name: values(PAYLOADS[name])))
def test_a_payload_as_json_is_what_the_simple_rules_make_of_it(payload: Any) -> None:
    assert json_text(payload) == payload_text(payload)
    assert json_text(payload) == json.dumps(by_simple_rules(payload), ensure_ascii=False, separators=(",", ":"))
    assert json_text((b"\xff", payload)) == json.dumps(
        by_simple_rules((b"\xff", payload)), ensure_ascii=False, separators=(",", ":")
    )


@pytest.mark.parametrize("length", [TEXT_MAX - 1, TEXT_MAX, TEXT_MAX + 1, 5 * TEXT_MAX])
def test_long_texts_are_cut_and_say_so(length: int) -> None:
    for payload in (MessageAppended("user", '"' * length), LlmDecision("m", ("é" * length,))):
        assert payload_text(payload) == json_text(payload)
        (text,) = (part for part in by_simple_rules(payload).values() if part and part != "user" and part != "m")
        assert len(text if isinstance(text, str) else text[0]) == min(length, TEXT_MAX + 1)
        assert json.loads(payload_text(payload)) == by_simple_rules(payload)


def test_a_text_that_is_json_itself_is_never_cut() -> None:
    state = json.dumps({"steps": ["x" * TEXT_MAX] * 3})
    payload = StateUpdated(base_version=1, new_version=2, state_json=state)
    for text in (payload_text(payload), json_text(payload)):
        assert json.loads(json.loads(text)["state_json"]) == json.loads(state)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e300, -0.0, 0.1])
def test_every_number_is_written_as_the_general_encoder_does(value: float) -> None:
    payload = LlmDecision("m", threshold=value)
    assert payload_text(payload) == json_text(payload)
