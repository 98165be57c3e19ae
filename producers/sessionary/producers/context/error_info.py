"""Exceptions as events carry them."""

import errno
import socket
from typing import Any

from sessionary.producers.errors import ModelTimeout, Unavailable
from sessionary.producers.process.safe_text import error_text, exception_text
from sessionary.schemas.limits import MODEL_LIMIT
from sessionary.schemas.types import ErrorInfo

# Which failures may pass by themselves, so that the same call is worth another try. Pure.
#
# Retryable: the network, rate limits (429), a server's faults (5xx), time-outs. Everything else is
# fatal: bad parameters, no permission, a resource that is missing, a conflict.


_TOO_MANY = 429
_TOO_EARLY_OR_MANY = frozenset({408, _TOO_MANY})
_NETWORK_ERRNOS = frozenset(
    {
        *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EHOSTDOWN),
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE),
    }
)
# Errors of networks and time-outs without a built-in class, by package and class.
_NETWORK_CLASSES = frozenset(
    {
        ("socket", "gaierror"),
        ("http", "IncompleteRead"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "NewConnectionError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("httpx", "TransportError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "TimeoutException"),
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("openai", "APIConnectionError"),
        ("anthropic", "APIConnectionError"),
    }
)


def is_retryable(error: BaseException) -> bool:
    """Return whether a failure may pass by itself.

    An attribute `retryable` of the error decides, if it is True or False. Else an HTTP status does,
    as the libraries of HTTP and of models have it: `status_code`, `status`, `code` or
    `response.status_code`. Else the error's class.
    """
    said = getattr(error, "retryable", None)
    if isinstance(said, bool):
        return said
    if (status := _http_status(error)) is not None:
        return status in _TOO_EARLY_OR_MANY or status >= 500
    if isinstance(error, TimeoutError | ConnectionError | Unavailable):
        return True
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return True
    if any((cls.__module__.partition(".")[0], cls.__name__) in _NETWORK_CLASSES for cls in type(error).__mro__):
        return True
    reason = getattr(error, "reason", None)  # `urllib.error.URLError` has the cause there
    return isinstance(reason, BaseException) and reason is not error and is_retryable(reason)


def had_no_effect(error: BaseException) -> bool:
    """Return whether a retryable failure is certain to have changed nothing.

    This is so if the error says so itself (`retryable` is True), if the service took no request
    (429), or if there was no connection. After a time-out or a fault of the server, the call may
    have taken effect.
    """
    if isinstance(getattr(error, "retryable", None), bool):
        return True
    if (status := _http_status(error)) is not None:
        return status == _TOO_MANY
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return True
    reason = getattr(error, "reason", None)
    return isinstance(reason, BaseException) and reason is not error and had_no_effect(reason)


def _http_status(error: BaseException) -> int | None:
    response: Any = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (error, "code"), (response, "status_code")):
        status = getattr(holder, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return status
    return None


MESSAGE_LENGTH_MAX = 4_000


def error_message(error: BaseException) -> str:
    """Return class and text of `error`, at most `MESSAGE_LENGTH_MAX` characters."""
    return error_text(error)[:MESSAGE_LENGTH_MAX]


def to_error_info(error: BaseException | ErrorInfo, *, retryable: bool | None = None) -> ErrorInfo:
    """Return `error` as an event carries it.

    If `retryable` is None, `is_retryable` decides. An `ErrorInfo` is returned unchanged.
    """
    if isinstance(error, ErrorInfo):
        return error
    if retryable is None:
        retryable = is_retryable(error)
    message = exception_text(error)[:MESSAGE_LENGTH_MAX]
    code = MODEL_LIMIT if isinstance(error, ModelTimeout) else type(error).__name__
    return ErrorInfo("retryable" if retryable else "fatal", code, message)
