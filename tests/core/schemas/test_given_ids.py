"""Which session an id names that a caller gives: a UUID in any form, or any text."""

import unicodedata
import uuid
from typing import Any

import pytest

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import NAMESPACE, GivenId, given_session_id, successor_id

CANONICAL = "0b6e4f5a-93c1-4d8e-a7b2-5f0c9d1e2a3b"
PLAIN = CANONICAL.replace("-", "")


def uuid5_of(name: str) -> str:
    """Return what any language's UUIDv5 makes of a name in the namespace."""
    return str(uuid.uuid5(uuid.UUID("4f57ed18-cff9-5d12-8162-c7e95c2effaa"), name))


@pytest.mark.parametrize(
    "given",
    [
        CANONICAL,
        CANONICAL.upper(),
        PLAIN,
        PLAIN.upper(),
        f"urn:uuid:{CANONICAL}",
        f"URN:UUID:{PLAIN}",
        f"{{{CANONICAL}}}",
        f"{{{PLAIN}}}",
        uuid.UUID(CANONICAL),
    ],
)
def test_each_form_of_a_uuid_is_the_uuid(given: str | uuid.UUID) -> None:
    assert given_session_id("acme", given) == (CANONICAL, None)


@pytest.mark.parametrize(
    "text", ["thread-42", "a:b/c", " padded ", "42", "Grüße", "会話", "👩‍💻", "0b6e4f5a", "x" * 256]
)
def test_a_text_is_the_uuid_5_of_tenant_and_text(text: str) -> None:
    assert str(NAMESPACE) == "4f57ed18-cff9-5d12-8162-c7e95c2effaa"
    found = given_session_id("acme", text)
    assert found == GivenId(uuid5_of(f"acme:{text}"), text)
    assert given_session_id("globex", text).session_id != found.session_id
    assert given_session_id("acme", f"{text[:255]}.").session_id != found.session_id


def test_a_text_is_composed_so_that_both_ways_to_write_it_name_one_session() -> None:
    text = "Grüße"
    found = given_session_id("acme", unicodedata.normalize("NFD", text))
    assert found == given_session_id("acme", text)
    assert found.external_id == text


@pytest.mark.parametrize("nearly", ["d41d8cd98f00b204e9800998ecf8427e", "00000000-0000-0000-0000-000000000000"])
def test_a_hash_and_a_uuid_of_no_version_are_texts(nearly: str) -> None:
    assert given_session_id("acme", nearly) == (uuid5_of(f"acme:{nearly}"), nearly)


def test_a_uuid_object_of_no_version_is_the_text_of_it() -> None:
    nil = uuid.UUID(int=0)
    assert given_session_id("acme", nil) == given_session_id("acme", str(nil))
    assert given_session_id("acme", f"urn:uuid:{nil}") == given_session_id("acme", str(nil))


@pytest.mark.parametrize("text", ["", " ", "\t", "\u3000", "x" * 257, "ü" * 257])
def test_an_empty_and_a_long_text_are_invalid(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        given_session_id("acme", text)
    assert raised.value.reason == "invalid_value"


@pytest.mark.parametrize("odd", ["\n", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\ud800"])
@pytest.mark.parametrize("place", ["{}thread", "thread{}42", "thread{}"])
def test_a_control_character_is_invalid(place: str, odd: str) -> None:
    with pytest.raises(Invalid, match="control character"):
        given_session_id("acme", place.format(odd))


def test_a_text_is_measured_in_its_composed_form() -> None:
    decomposed = unicodedata.normalize("NFD", "ü" * 256)
    assert len(decomposed) == 512
    assert given_session_id("acme", decomposed).external_id == "ü" * 256


@pytest.mark.parametrize("other", [None, 42, b"thread", ["thread"], 4.2])
def test_another_type_is_invalid_and_the_message_names_it(other: Any) -> None:
    with pytest.raises(Invalid, match=r"parent session id is .* neither a text nor a uuid.UUID"):
        given_session_id("acme", other, "parent session id")


def test_a_successor_follows_from_the_ended_session_and_no_text_has_its_id() -> None:
    first = successor_id("acme", CANONICAL)
    assert first == uuid5_of(f"acme/{CANONICAL}") == successor_id("acme", CANONICAL)
    assert uuid.UUID(first).version == 5
    assert len({CANONICAL, first, successor_id("globex", CANONICAL), successor_id("acme", first)}) == 4
