"""Exceptions as events carry them, and what they make of the block that they leave."""

from typing import Final, Literal

from sessionary.producers.errors import ModelTimeout
from sessionary.producers.process.safe_text import error_text, exception_text
from sessionary.schemas.limits import MODEL_LIMIT
from sessionary.schemas.types import ErrorClass, ErrorInfo

Ending = Literal["done", "cancelled", "failed"]
"""How a block ended. docs/guides/client.md has the name of each in a session, a run, a step."""

CANCELLED: Final = "cancelled"  # the code of what was called off
# Exceptions that call work off, by package and class.
_CANCELLATIONS: Final = frozenset(
    {
        *(("builtins", "KeyboardInterrupt"), ("asyncio", "CancelledError"), ("concurrent", "CancelledError")),
        *(("trio", "Cancelled"), ("greenlet", "GreenletExit")),
        ("sessionary", "Closed"),  # the coroutine of a flow was
    }
)


def ending_of(error: BaseException | None) -> Ending:
    """Return how a block, a step or a call ends that `error` leaves; None: nothing was raised.

    | left by | ending |
    |---|---|
    | its end, `sys.exit(0)`, the reader of a stream (`GeneratorExit`) | done |
    | a cancelled task or future, `KeyboardInterrupt` | cancelled |
    | `sys.exit` with another code, any other exception | failed |

    A group has failed if a part of it has, and is cancelled if a part of it is.
    """
    if isinstance(error, BaseExceptionGroup):
        endings = {ending_of(part) for part in error.exceptions}
        return "failed" if "failed" in endings else "cancelled" if "cancelled" in endings else "done"
    if error is None or isinstance(error, GeneratorExit):
        return "done"
    if isinstance(error, SystemExit):
        return "done" if error.code is None or (isinstance(error.code, int) and error.code == 0) else "failed"
    names = ((cls.__module__.partition(".")[0], cls.__name__) for cls in type(error).__mro__)
    return "failed" if _CANCELLATIONS.isdisjoint(names) else "cancelled"


MESSAGE_LENGTH_MAX = 4_000


def error_message(error: BaseException) -> str:
    """Return class and text of `error`, at most `MESSAGE_LENGTH_MAX` characters."""
    return error_text(error)[:MESSAGE_LENGTH_MAX]


def to_error_info(error: BaseException | ErrorInfo, *, retryable: bool | None = None) -> ErrorInfo:
    """Return `error` as an event carries it. An `ErrorInfo` is returned unchanged.

    If `retryable` is None, `outcome_of` decides; what interrupts work, as an exit does, is no
    failure of the work, which may be tried again. Work without a result that did not fail, as an
    event of a failure has to say, has the code `cancelled`.
    """
    if isinstance(error, ErrorInfo):
        return error
    is_failure = ending_of(error) == "failed"
    if retryable is None:
        retryable = not is_failure or not isinstance(error, Exception) or is_retryable(error)
    error_class: ErrorClass = "retryable" if retryable else "fatal"
    if not is_failure:
        return ErrorInfo(error_class, CANCELLED, error_message(error))
    message = exception_text(error)[:MESSAGE_LENGTH_MAX]
    return ErrorInfo(error_class, _code_of(error), message)


def _code_of(error: BaseException) -> str:
    """Return the code of a failure: `http_429` if a service answered so, else the error's class."""
    if isinstance(error, ModelTimeout):
        return MODEL_LIMIT
    from sessionary.producers.context.failure_class import status_of  # a failure needs it first

    status = status_of(error) if isinstance(error, Exception) else None  # the code of an exit is none
    return type(error).__name__ if status is None else f"http_{status}"


def is_retryable(error: Exception) -> bool:
    """Return whether a failure may pass, so that the same call is worth another try."""
    from sessionary.producers.context.failure_class import outcome_of  # a failure needs it first

    return outcome_of(error) != "refused"
