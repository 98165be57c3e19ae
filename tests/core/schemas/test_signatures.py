"""Signatures: what they cover, which keys count, and in which form keys come."""

import hashlib
import hmac
import json
import re

import pytest

from sessionary.schemas.events import EVENT_TYPES, OPERATORS
from sessionary.schemas.signatures import NO_KEYS, SigningKeys, parse_signing_keys
from tests.auditor.signatures import is_signed
from tests.support.signing import KEYS

OLD, NEW = "the former secret, of 32 characters", "the present secret, of 32 characters"
KEY, VALUE = b"acme:s", b"value"


def test_a_signature_is_the_hmac_of_tag_key_and_value_and_the_auditor_reads_it_too() -> None:
    text = b"sessionary signature 1\0" + b"\0\0\0\x06acme:s" + b"value"
    digest = hmac.new(OLD.encode(), text, hashlib.sha256).hexdigest()
    assert SigningKeys({"k1": OLD}).sign(KEY, VALUE) == ("signature", f"k1:{digest}".encode())
    for key in (KEY, None, b""):
        header = KEYS.sign(key, VALUE)
        assert KEYS.find_fault(key, VALUE, [("ce_id", b"1"), header]) is None
        assert is_signed(key, VALUE, [header])
    assert len({KEYS.sign(key, value) for key, value in ((None, b"ab"), (b"", b"ab"), (b"a", b"b"), (b"ab", b""))}) == 4


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ([], "it has no signature"),
        ([("Signature", KEYS.sign(KEY, VALUE)[1])], "it has no signature"),
        ([KEYS.sign(KEY, VALUE)] * 2, "it has 2 signatures"),
        ([("signature", b"")], "its signature names no key"),
        ([("signature", b"\xff\xfe:ab")], "its signature names no key"),
        ([SigningKeys({"k9": OLD}).sign(KEY, VALUE)], "it is signed by key k9, which is not known here"),
        ([SigningKeys({"test": OLD}).sign(KEY, VALUE)], "its signature by key test is of another record"),
        ([KEYS.sign(b"acme:t", VALUE)], "its signature by key test is of another record"),
        ([KEYS.sign(KEY, b"other")], "its signature by key test is of another record"),
        ([("signature", KEYS.sign(KEY, VALUE)[1][:-1])], "its signature by key test is of another record"),
        ([("signature", KEYS.sign(KEY, VALUE)[1] + b"0")], "its signature by key test is of another record"),
        ([("signature", b"test:" + KEYS.sign(KEY, VALUE)[1][5:].upper())], "its signature by key test is of another"),
        ([("signature", b"test:\xc3\xa4")], "its signature by key test is of another record"),
    ],
)
def test_any_other_header_is_no_signature(headers: list[tuple[str, bytes]], fault: str) -> None:
    assert (KEYS.find_fault(KEY, VALUE, headers) or "").startswith(fault)
    assert not is_signed(KEY, VALUE, headers)


def test_the_first_key_signs_and_all_verify() -> None:
    before, while_changing, after = ({"k1": OLD}, {"k2": NEW, "k1": OLD}, {"k2": NEW})
    old, new = SigningKeys(before).sign(KEY, VALUE), SigningKeys(while_changing).sign(KEY, VALUE)
    assert (old[1][:3], new[1][:3]) == (b"k1:", b"k2:")
    assert [SigningKeys(while_changing).find_fault(KEY, VALUE, [each]) for each in (old, new)] == [None, None]
    assert SigningKeys(after).find_fault(KEY, VALUE, [new]) is None
    assert SigningKeys(after).find_fault(KEY, VALUE, [old]) == "it is signed by key k1, which is not known here"
    with pytest.raises(ValueError, match="there is no signing key: set SESSIONARY_SIGNING_KEYS_FILE"):
        NO_KEYS.sign(KEY, VALUE)
    assert NO_KEYS.find_fault(KEY, VALUE, [old])


def test_a_fingerprint_names_the_keys_in_any_order_and_tells_no_secret() -> None:
    old, new = (hashlib.sha256(secret.encode()).hexdigest()[:8] for secret in (OLD, NEW))
    assert SigningKeys({"k2": NEW, "k1": OLD}).fingerprint() == f"k1 {old}, k2 {new}"
    assert SigningKeys({"k1": OLD, "k2": NEW}).fingerprint() == f"k1 {old}, k2 {new}"


def test_keys_come_as_json_in_their_order() -> None:
    assert list(parse_signing_keys(json.dumps({"b": OLD, "a": NEW})).items()) == [("b", OLD), ("a", NEW)]
    assert parse_signing_keys({"a": NEW}) == {"a": NEW}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("secret", "must be a JSON object of secrets by key id"),
        ("{}", "must be a JSON object of secrets by key id"),
        (f'[["k1", "{OLD}"]]', "must be a JSON object of secrets by key id"),
        (f'{{"k1": "{OLD}", "k1": "{NEW}"}}', "key 2: its id is that of an earlier key"),
        (f'{{"k:1": "{OLD}"}}', "key 1: an id has 1 to 64 letters"),
        (f'{{"k1": "{OLD}", "": "{OLD}"}}', "key 2: an id has 1 to 64 letters"),
        ('{"k1": "short secret"}', "key 1: a secret is a text of at least 32 characters"),
        (f'{{"k1": {{"{OLD}": "secret"}}}}', "key 1: a secret is a text of at least 32 characters"),
    ],
)
def test_wrong_keys_are_named_by_their_place_without_their_secrets(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)) as caught:
        parse_signing_keys(text)
    assert OLD not in str(caught.value)
    assert "short" not in str(caught.value)


def test_the_classes_that_may_claim_an_operator_are_known() -> None:
    assert sorted(EVENT_TYPES[payload] for payload in OPERATORS) == [
        "agent_registered",
        "requests_repeated",
        "session_migration_aborted",
        "session_migration_offered",
        "session_paused",
        "session_resumed",
        "session_taken_over",
        "session_terminated",
    ]
