"""The errors of a replay.

SessionaryError
└── ProducerError
    ├── PointNotFound(point)       the record has no such snapshot, event or offset
    └── ReplayError                a replay cannot go on; nothing was executed
        ├── ReplayMiss(expected, came)  a call that the record does not have
        ├── NotReplayable          the record does not hold what the replay needs
        ├── ReplayBlocked(name)    a call with an effect in a fork, which is not allowed
        └── RecordedFailure(error) the failure of a call, as it is in the record

The bases, and the client's other errors, are in `sessionary.producers.errors`.
"""

import builtins
from typing import Any

from sessionary.producers.errors import ProducerError
from sessionary.schemas.types import ErrorInfo


class PointNotFound(ProducerError):
    """The session's record has no such point. Nothing was replayed.

    Attributes:
        point: The snapshot's id, the event's id, or the offset.
    """

    def __init__(self, point: str | int, session_id: str) -> None:
        kind = "Offset" if isinstance(point, int) else "Snapshot" if point.startswith("snap_") else "Event"
        super().__init__(
            f"{kind} {point} not found: it is no point of session {session_id}; `sessionary session timeline` lists "
            "the points of a session"
        )
        self.point = point


def rejected_point(point: str | int, session_id: str, verdict: str) -> PointNotFound:
    """Return the error of a point whose event was sent, and rejected: where, and why."""
    error = PointNotFound(point, session_id)
    error.args = (f"{error}. Its event was rejected {verdict}",)
    return error


class ReplayError(ProducerError):
    """Base of the errors by which a replay stops. A call that fails so is not tried again."""

    retryable = False


class ReplayMiss(ReplayError):
    """The agent makes a call that the record does not have: it does something else than before.

    Attributes:
        expected: The first call of the record that was not made yet; None: all were made.
        came: The call that was made.
    """

    def __init__(self, session_id: str, expected: str | None, came: str) -> None:
        awaited = "no further call" if expected is None else expected
        super().__init__(
            f"the replay of session {session_id} leaves the record: expected {awaited}, came {came}. Nothing was "
            "executed; mode='stub' answers such a call by a function, mode='fork' makes it in a new session"
        )
        self.expected = expected
        self.came = came


class NotReplayable(ReplayError):
    """The record does not hold what the replay needs, such as the result of a call."""


class ReplayBlocked(ReplayError):
    """A fork makes a call with an effect that the record does not have. It was not made.

    Attributes:
        name: Name of the tool.
    """

    def __init__(self, name: str, came: str) -> None:
        super().__init__(
            f"{came} has an effect and is not in the record, so the fork does not make it: let it happen by "
            f"allow=[{name!r}]"
        )
        self.name = name


class RecordedFailure(ReplayError):
    """A call failed in the record, and so it fails again.

    It is also of the class that the record names, if this process has one of that name: the agent's
    `except` clauses catch it.

    Attributes:
        error: The failure.
    """

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error
        self.retryable = error.error_class == "retryable"

    def __str__(self) -> str:
        return self.error.message


def recorded_failure(error: ErrorInfo) -> RecordedFailure:
    """Return the exception of a recorded failure: of the named class too, if it is known here."""
    found = _class_named(error.code)
    if found is None:
        return RecordedFailure(error)
    try:
        made: Any = type(error.code, (RecordedFailure, found), {})
        return _fill(made, error)
    except TypeError:  # the class can have no subclass beside this one
        return RecordedFailure(error)


def _fill(made: Any, error: ErrorInfo) -> RecordedFailure:
    failure: RecordedFailure = made.__new__(made, error.message)
    failure.args = (error.message,)
    failure.error = error
    failure.retryable = error.error_class == "retryable"
    return failure


def _class_named(name: str) -> type[Exception] | None:
    """Return the only exception class of a name in this process; a builtin one goes first."""
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, Exception):
        return builtin
    found, waiting = set[type[Exception]](), list(Exception.__subclasses__())
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if each.__name__ == name and not issubclass(each, RecordedFailure):
            found.add(each)
    return found.pop() if len(found) == 1 else None
