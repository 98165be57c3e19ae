"""The fields that identify a log line's subject. All roles and the client use these names."""

from typing import Final

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import parse_key

TENANT_ID: Final = "tenant_id"
SESSION_ID: Final = "session_id"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
ERROR: Final = "error"  # an error's text
ERROR_CLASS: Final = "error_class"  # a class of errors, the name of Kafka's error, or a rejection's reason
REASON: Final = "reason"  # why something is halted, blocked or paused


def session_fields(tenant_id: str | None, session_id: str | None) -> dict[str, object]:
    """Return the fields of a line about a session; a part that is not known has no field."""
    named = {TENANT_ID: tenant_id, SESSION_ID: session_id}
    return {name: value for name, value in named.items() if value}


def key_fields(key: bytes | None) -> dict[str, object]:
    """Return the fields of a line about the session that a record's key names.

    Returns none for a key that names no session: it may hold anything.
    """
    try:
        return session_fields(*parse_key(key))
    except Invalid:
        return {}


def record_fields(partition: int, offset: int, key: bytes | None) -> dict[str, object]:
    """Return the fields of a line about one record."""
    return {PARTITION: partition, OFFSET: offset, **key_fields(key)}


def error_subject(error: BaseException) -> dict[str, object]:
    """Return an error's class, and what its attributes name: a session, a record's place."""
    named = ((name, getattr(error, name, None)) for name in (TENANT_ID, SESSION_ID, PARTITION, OFFSET))
    return {ERROR_CLASS: type(error).__name__, **{name: value for name, value in named if value is not None}}
