"""Which events are an operator's: those that the control API sends for a principal."""

from typing import Any, Final

from sessionary.schemas.codec import Event

# What an operator may do to sessions of other services. The name of the principal is the actor.
OPERATOR_EVENTS: Final = frozenset({"session_paused", "session_resumed", "session_terminated"})


def is_by_operator(event: Event) -> bool:
    """Return whether the control API sent an event for a principal with the role operator.

    Who may write to the events topic can claim it, as he can claim to be any service.
    """
    return getattr(event.payload, "as_operator", False) is True


def is_operators_cancellation(payload: Any) -> bool:
    """Return whether an operator calls a session off: that ends it also in state Error."""
    return getattr(payload, "as_operator", False) is True and payload.reason == "cancelled"
