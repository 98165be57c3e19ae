"""The errors that every role shares.

    SessionaryError
    ├── Invalid(reason, detail)        bad input; trying again will not help
    │   ├── EncodeError                a value does not fit its schema
    │   └── DecodeError                bytes that no schema can read
    ├── Unavailable(retry_after_s)     a service does not answer; wait and try again, never skip
    └── SettingsError                  a setting is missing or malformed

Each role's errors derive from these.
"""

from sessionary.schemas.types import RejectionReason


class SessionaryError(Exception):
    """Base of every error that sessionary raises on purpose."""


class Invalid(SessionaryError):
    """Bad input; trying again will not help.

    Attributes:
        reason: One of the rejection reasons.
        detail: The fault, for people.
    """

    def __init__(self, reason: RejectionReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: RejectionReason = reason
        self.detail = detail


class EncodeError(Invalid):
    """A value does not fit its schema."""


class DecodeError(Invalid):
    """Bytes that cannot be read as one of the schemas."""


class Unavailable(SessionaryError):
    """A service does not answer; the same call may succeed later.

    Attributes:
        what: The service that does not answer, and how that shows.
        retry_after_s: When to try again, in seconds.
    """

    def __init__(self, what: str, retry_after_s: float) -> None:
        super().__init__(f"{what}; try again in {retry_after_s:g} s")
        self.what = what
        self.retry_after_s = retry_after_s


class SettingsError(SessionaryError):
    """A setting is missing or malformed. The message names its variable and what is wrong."""


def cause_text(error: OSError | ValueError) -> str:
    """Return why a file or a text of a setting cannot be used, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
