"""Which failures may pass by themselves, so that the same call is worth another try. Pure.

Retryable: the network, rate limits (429), a server's faults (5xx), time-outs. Everything else is
fatal: bad parameters, no permission, a resource that is missing, a conflict.
"""

import errno
import socket
from typing import Any

from sessionary.producers.errors import Unavailable

_TOO_MANY = 429
_TOO_EARLY_OR_MANY = frozenset({408, _TOO_MANY})
_NETWORK_ERRNOS = frozenset(
    {
        *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EHOSTDOWN),
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE),
    }
)
# Errors of the network and of time-outs that are of no built-in class, by package and class.
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

    If the error says so itself (`retryable` is True), if the service took no request (429), or if
    there was no connection. After a time-out or a fault of the server it may have taken effect.
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
