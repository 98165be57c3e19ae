"""Exceptions as events carry them."""

from sessionary.producers.context.failure_class import is_retryable
from sessionary.producers.errors import ModelTimeout
from sessionary.producers.process.safe_text import error_text, exception_text
from sessionary.schemas.limits import MODEL_LIMIT
from sessionary.schemas.types import ErrorInfo

MESSAGE_LENGTH_MAX = 4_000


def error_message(error: BaseException) -> str:
    """Return class and text of `error`, at most `MESSAGE_LENGTH_MAX` characters."""
    return error_text(error)[:MESSAGE_LENGTH_MAX]


def to_error_info(error: BaseException | ErrorInfo, *, retryable: bool | None = None) -> ErrorInfo:
    """Return `error` as an event carries it.

    If `retryable` is None, `is_retryable` tells. An `ErrorInfo` is returned as it is.
    """
    if isinstance(error, ErrorInfo):
        return error
    if retryable is None:
        retryable = is_retryable(error)
    message = exception_text(error)[:MESSAGE_LENGTH_MAX]
    code = MODEL_LIMIT if isinstance(error, ModelTimeout) else type(error).__name__
    return ErrorInfo("retryable" if retryable else "fatal", code, message)
