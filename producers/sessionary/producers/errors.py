"""The errors of the client, below those that every role shares (`sessionary.schemas.errors`).

SessionaryError
├── Invalid(reason, detail)              a name, id or value that can never be accepted
├── Unavailable(retry_after_s)           Kafka or the control API does not answer; the same call may succeed later
├── SettingsError                        a setting is missing or malformed
└── ProducerError
    ├── AuthenticationFailed             Kafka or the control API does not know us; waiting does not help
    ├── QueueFull                        policy `block`: no room within the bounded wait
    ├── DeliveryFailed(event_id)         an event that the caller waits for cannot be delivered
    ├── Refused(reason)                  the judge refused an event that the caller waits for
    ├── SessionLost                      there is no such session, or it is archived
    ├── SessionEnded                     a verb on a session that this handle has ended
    ├── VerdictPending(verb)             a verb while the verdict on an earlier one is still awaited
    └── ClientClosed                     a verb after `close`
"""

from sessionary.schemas.errors import EncodeError, Invalid, SessionaryError, SettingsError, Unavailable
from sessionary.schemas.types import RefusalReason


class ProducerError(SessionaryError):
    """Base of the client's own errors."""


class AuthenticationFailed(ProducerError):
    """Kafka or the control API refuses our credentials; the message names the principal, never a secret."""


class QueueFull(ProducerError):
    """The delivery queue had no room within the bounded wait of policy `block`; the event was not taken."""


class DeliveryFailed(ProducerError):
    """The event `event_id` was given up; the message says why."""

    def __init__(self, event_id: str, why: str) -> None:
        super().__init__(f"event {event_id} was not delivered: {why}")
        self.event_id = event_id


class Refused(ProducerError):
    """The judge refused the event; the session is as it was. `reason` is one of the refusal reasons."""

    def __init__(self, event_type: str, reason: RefusalReason) -> None:
        super().__init__(f"{event_type} was refused: {reason}")
        self.event_type = event_type
        self.reason: RefusalReason = reason


class SessionLost(ProducerError):
    """The processor has no such session (any more)."""


class SessionEnded(ProducerError):
    """The handle's session has ended; a new one must be created."""


class VerdictPending(ProducerError):
    """The verdict on `verb` is still awaited: call that verb again to go on waiting."""

    def __init__(self, verb: str) -> None:
        super().__init__(f"the verdict on {verb}() is still awaited; call {verb}() again before anything else")
        self.verb = verb


class ClientClosed(ProducerError):
    """The client was closed, or belongs to the process that this one was forked from."""


__all__ = [
    "AuthenticationFailed",
    "ClientClosed",
    "DeliveryFailed",
    "EncodeError",
    "Invalid",
    "ProducerError",
    "QueueFull",
    "Refused",
    "SessionEnded",
    "SessionLost",
    "SessionaryError",
    "SettingsError",
    "Unavailable",
    "VerdictPending",
]
