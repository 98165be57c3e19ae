"""Idempotency keys of tool calls."""

import hashlib
from typing import Any

import pytest

from sessionary.producers.durable.call_keys import checked_key, idempotency_key
from sessionary.producers.errors import Invalid

CALL = {
    "tenant_id": "acme",
    "run_id": "run-1",
    "step_name": "notify",
    "tool_name": "send_message",
    "arguments": {"channel": "#ops", "text": "é", "parts": [1, 2.5]},
}


def key_of(**changed: Any) -> str:
    return idempotency_key(**{**CALL, **changed})


def test_a_key_is_the_hash_of_one_text() -> None:
    text = (
        '{"args":{"channel":"#ops","parts":[1,2.5],"text":"é"},"run_id":"run-1","step_name":"notify",'
        '"tenant_id":"acme","tool_name":"send_message"}'
    )
    assert key_of() == hashlib.sha256(text.encode()).hexdigest()


def test_known_calls_have_known_keys() -> None:
    assert key_of() == "9a6e9548ebfa9f7e27cc82a123db9fcb51b5b326c8d6e87366f3731d06f5c515"
    assert key_of(run_id=None, step_name=None) == "9abfc5bbf97f2e2ae58bc8528f8ab0acc6cfb97db87affbf77dd6df234d68c85"


def test_the_order_of_arguments_does_not_matter() -> None:
    assert key_of(arguments={"parts": [1, 2.5], "text": "é", "channel": "#ops"}) == key_of()


@pytest.mark.parametrize("part", CALL)
def test_each_part_makes_another_key(part: str) -> None:
    assert key_of(**{part: {"channel": "#ops"} if part == "arguments" else "other"}) != key_of()


def test_arguments_that_json_cannot_hold_are_invalid() -> None:
    with pytest.raises(Invalid, match="type object"):
        key_of(arguments={"text": object()})


@pytest.mark.parametrize("key", ["", "k" * 257, 7, None])
def test_a_key_of_the_business_is_a_short_text(key: object) -> None:
    with pytest.raises(Invalid, match="send_message"):
        checked_key(key, "send_message")
    assert checked_key("order-7", "send_message") == "order-7"
