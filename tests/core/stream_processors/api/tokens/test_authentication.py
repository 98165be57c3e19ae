"""Whose token a header has."""

import hashlib
import hmac

import pytest

from sessionary.stream_processors.access import parse_tokens
from sessionary.stream_processors.api.tokens.authentication import KnownTokens

KNOWN = KnownTokens(parse_tokens({"token-a": "acme", "token-b": "globex", "schlüssel": "umlaut"}))


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        ("Bearer token-a", "acme"),
        ("bearer   token-b ", "globex"),
        ("Bearer schlüssel", "umlaut"),
        ("Bearer token-c", None),
        ("Bearer token-a token-a", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("", None),
        ("Basic token-a", None),
        ("token-a", None),
        ("Bearer token-\udcff\udcfe", None),  # as aiohttp decodes bytes that are not UTF-8
    ],
)
def test_a_header_names_the_caller_of_its_token(header: str, tenant: str | None) -> None:
    caller = KNOWN.find_caller(header)
    assert (None if caller is None else caller.tenant) == tenant


def test_no_token_is_known_by_default() -> None:
    assert KnownTokens({}).find_caller("Bearer ") is None


def test_a_look_up_compares_one_digest_however_many_tokens_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTokens(parse_tokens({f"token-{n}": f"tenant-{n}" for n in range(5_000)}))
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    caller = known.find_caller("Bearer token-4711")
    assert caller is not None
    assert caller.tenant == "tenant-4711"
    assert compared == [(hashlib.sha256(b"token-4711").digest(),) * 2]
