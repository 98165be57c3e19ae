"""What a log line says it is about."""

import pytest

from sessionary.producers.errors import QueueFull, SessionFenced
from sessionary.schemas.telemetry.log_fields import error_subject, key_fields, record_fields, session_fields

_SESSION = "0b5ad5d2-6f1c-4a57-9d8d-0a6d1f9c1f11"


def test_a_line_about_a_record_names_its_place_and_session() -> None:
    assert record_fields(3, 7, f"acme:{_SESSION}".encode()) == {
        "partition": 3,
        "offset": 7,
        "tenant_id": "acme",
        "session_id": _SESSION,
    }


@pytest.mark.parametrize("key", [None, b"", b"s3cret of a payload", b"acme:not-a-uuid", b"\xff"])
def test_a_key_that_names_no_session_is_not_repeated(key: bytes | None) -> None:
    assert key_fields(key) == {}


def test_what_is_not_known_has_no_field() -> None:
    assert session_fields("acme", None) == {"tenant_id": "acme"}
    assert session_fields("", "") == {}


def test_an_error_names_its_class_and_session() -> None:
    assert error_subject(SessionFenced(_SESSION, "p1", 2)) == {"error_class": "SessionFenced", "session_id": _SESSION}
    assert error_subject(QueueFull("no room")) == {"error_class": "QueueFull"}
