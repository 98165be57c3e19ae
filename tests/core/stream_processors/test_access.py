"""Tokens and what they stand for: both forms, defaults, and errors that show no token."""

import json
import traceback
from typing import Any

import pytest

from sessionary.stream_processors.access import Caller, parse_tokens

SECRET = "s3cret"


def test_a_bare_tenant_is_a_reader_of_that_tenant() -> None:
    assert parse_tokens('{"s3cret": "acme"}') == {
        "s3cret": Caller(tenant="acme", principal="acme", roles=frozenset({"reader"}))
    }


def test_an_object_names_tenant_principal_and_roles() -> None:
    alice = {"tenant": "acme", "principal": "alice", "roles": ["reader", "operator"]}
    assert parse_tokens({"a": alice})["a"] == Caller(
        tenant="acme", principal="alice", roles=frozenset({"reader", "operator"})
    )
    assert parse_tokens({"a": {"tenant": "acme"}}) == parse_tokens({"a": "acme"})


def test_an_operator_needs_no_tenant_but_a_name() -> None:
    (caller,) = parse_tokens({"a": {"tenant": None, "principal": "on-call", "roles": ["operator"]}}).values()
    assert caller == Caller(tenant=None, principal="on-call", roles=frozenset({"operator"}))


@pytest.mark.parametrize("user", ["ann", "ann@example.com", "Ann Ä", "x" * 256])
def test_a_token_names_a_user_as_an_envelope_does(user: str) -> None:
    (caller,) = parse_tokens({"a": {"tenant": "acme", "user": user}}).values()
    assert caller == Caller(tenant="acme", user=user, principal="acme", roles=frozenset({"reader"}))
    assert [caller.may_see(each) for each in (user, "ben", "", None)] == [True, False, False, False]
    assert Caller(tenant="acme", principal="acme").may_see(None)


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ({"principal": "alice"}, "role reader needs a tenant"),
        ({"roles": ["operator"]}, "principal is missing"),
        ({}, "principal is missing"),
        ({"tenant": "acme", "roles": []}, "roles must be a list"),
        ({"tenant": "acme", "roles": "reader"}, "roles must be a list"),
        ({"tenant": "acme", "roles": [SECRET]}, "roles must be a list"),
        ({"tenant": f"{SECRET} !"}, "tenant must be null, or 1 to 128"),
        ({"tenant": 7}, "tenant must be null, or 1 to 128"),
        (f"{SECRET} !", "tenant must be null, or 1 to 128"),
        ("", "tenant must be null, or 1 to 128"),
        ({"tenant": "acme", "principal": f"{SECRET}\n"}, "principal must be a text"),
        ({"tenant": "acme", "principal": ""}, "principal must be a text"),
        ({"user": "ann", "principal": "app", "roles": ["operator"]}, "and so does a user"),
        ({"tenant": "acme", "user": ""}, "user must be null, or a text of 1 to 256"),
        ({"tenant": "acme", "user": f"{SECRET}{'x' * 256}"}, "user must be null, or a text of 1 to 256"),
        ({"tenant": "acme", "user": 7}, "user must be null, or a text of 1 to 256"),
        ({"tenant": "acme", SECRET: 1}, "has a field other than"),
        (7, "must be the name of a tenant, or an object"),
        ([SECRET], "must be the name of a tenant, or an object"),
    ],
    ids=str,
)
def test_an_error_names_the_place_and_the_rule_but_nothing_of_the_input(value: Any, reported: str) -> None:
    with pytest.raises(ValueError, match=r"^token 2: ") as caught:
        parse_tokens(json.dumps({"good": "acme", SECRET: value}))
    assert reported in str(caught.value)
    assert len(str(caught.value).split("; ")) <= 2, "one fault is reported once"
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("token", ["", " s3cret", "s3cret\n", "s3\x00cret"])
def test_a_token_that_no_header_could_carry_is_rejected(token: str) -> None:
    with pytest.raises(ValueError, match="token 1: a token must not be empty"):
        parse_tokens({token: "acme"})


@pytest.mark.parametrize("text", ["s3cret", "[]", '"s3cret"', "", "{", b"\xff", "[" * 100_000])
def test_text_of_another_form_is_rejected(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"^must be a JSON object") as caught:
        parse_tokens(text)
    assert SECRET not in str(caught.value)


def test_a_token_that_is_given_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^entry 3 of an object has the same key as an earlier one$"):
        parse_tokens('{"s3cret": "acme", "b": "b", "s3cret": "globex"}')


def test_many_errors_are_reported_in_short() -> None:
    with pytest.raises(ValueError, match=r"token 5: .*; and 95 more$"):
        parse_tokens({f"token-{n}": 7 for n in range(100)})
