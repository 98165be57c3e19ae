"""What a failure says about the call that it ended: not sent, unknown or refused. Pure.

Libraries are recognised by the names of their classes, and none is imported: those of `_CLASSES` by
their own, any other by the words that such names have. An error that says nothing by itself is what
its cause is. A call of which it is not sure that nothing was sent is unknown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from sessionary.producers.errors import SessionaryError, Unavailable

if TYPE_CHECKING:
    from types import FrameType

Outcome = Literal["not_sent", "unknown", "refused"]
"""The outcome of a failed call.

`not_sent`: the service did not get it, and it may be made again. `unknown`: it may have taken
effect, and may succeed if it is made again. `refused`: another try does not help.
"""

# By package and class. `by_cause`: what the cause says that the error names; `unknown` without one.
_Said = Literal["not_sent", "unknown", "refused", "by_cause"]
_HTTPX: Final[Mapping[_Said, str]] = {
    "not_sent": "ConnectError ConnectTimeout PoolTimeout ProxyError ConnectionNotAvailable",
    "unknown": "TransportError NetworkError TimeoutException ProtocolError",
    "refused": "LocalProtocolError UnsupportedProtocol",
}
_MODELS: Final[Mapping[_Said, str]] = {
    "unknown": "APIError",  # within a stream; an answer with a status is judged by that
    "refused": "APIResponseValidationError",
    "by_cause": "APIConnectionError",
}
_CLASSES: Final[Mapping[str, Mapping[_Said, str]]] = {
    "builtins": {
        "not_sent": "ConnectionRefusedError",
        "unknown": "EOFError",
        "by_cause": "ConnectionError TimeoutError",
    },
    "socket": {"not_sent": "gaierror herror"},
    "ssl": {"not_sent": "SSLCertVerificationError", "unknown": "SSLError"},
    "http": {"unknown": "BadStatusLine IncompleteRead LineTooLong"},
    "asyncio": {"unknown": "IncompleteReadError"},
    "subprocess": {"unknown": "TimeoutExpired"},
    "smtplib": {"not_sent": "SMTPConnectError", "unknown": "SMTPServerDisconnected"},
    "urllib3": {
        "not_sent": "NewConnectionError ConnectTimeoutError EmptyPoolError ClosedPoolError",
        "unknown": "ResponseError IncompleteRead",
        "by_cause": "MaxRetryError ProtocolError ProxyError SSLError TimeoutError",
    },
    "requests": {
        "not_sent": "ConnectTimeout",
        "by_cause": "ChunkedEncodingError ConnectionError RetryError Timeout",
    },
    **dict.fromkeys(("httpx", "httpx2", "httpcore", "httpcore2"), _HTTPX),
    "aiohttp": {
        "not_sent": "ClientConnectorError ConnectionTimeoutError ClientHttpProxyError",
        "unknown": "ClientConnectionError ClientPayloadError",
    },
    "botocore": {
        "not_sent": "ConnectTimeoutError EndpointConnectionError ProxyConnectionError",
        "unknown": "IncompleteReadError ResponseParserError ResponseStreamingError",
        "by_cause": "ConnectionError HTTPClientError",
    },
    **dict.fromkeys(("openai", "anthropic"), _MODELS),
    # Their names have none of the words below.
    "cimpl": {"unknown": "KafkaException"},  # of confluent_kafka
    "ftplib": {"unknown": "error_proto error_temp"},
    "imaplib": {"unknown": "abort"},
    "pycurl": {"unknown": "error"},
    "zmq": {"unknown": "Again"},
}
_SAID: Final[Mapping[tuple[str, str], _Said]] = {
    (package, name): said
    for package, classes in _CLASSES.items()
    for said, names in classes.items()
    for name in names.split()
}

# What the name of a class says in any other library. Of an error's class and its bases, the nearest
# that has one of these words counts: a refusal, or else a lost connection, or a service that was
# silent or busy. Words that errors of a trade have too, such as "closed", stand with what it was.
_REFUSED_NAME: Final = re.compile(
    "Auth|Bad(HostKey|Request)|Config|Credential|Denied|Forbidden|Invalid|Not(Found|Implemented|Supported)"
    "|Permission|Syntax|TooBig|TooLarge|Unsupported|Validation"
)
_LOST_NAME: Final = re.compile(
    # silent
    "Time(d)?[oO]ut|DeadlineExceeded"
    # without a connection, or with one that was lost
    "|Connect(ed|ion|or)|Connect(Error|Fail)|(Dis|Re)connect|Network|Socket|Transport|Protocol|SSHException"
    "|(Channel|Client|Producer|Resource|Stream|Target)Closed|Closed(Resource|Stream)|Channel(Exc|Err)|StreamTerminated"
    "|Broken(Executor|Pipe|Process|Resource|Thread|Worker)|EndOfStream|IncompleteRead"
    # away, busy, or with a fault of its own
    "|(Broker|Database|Host|Node|Server|Service|^)Unavailable|No(Broker|Host|Server)|ClusterDown|Busy|Overloaded"
    "|RateLimit|ResourceExhausted|Throttl|TooManyRequests|Transient|(Internal|Server|^API|^Unknown)Error"
    "|Service(Request|Response)|(Interface|Operational)Error"  # of Azure; of databases (PEP 249)
    # done in part
    "|Bulk(Index|Write)|IncompleteCommit|Partial|WriteConcern|WriteFailure"
)

# Of SQL's states: a transaction that was rolled back; classes of a lost connection, a lack of room,
# an operator's or the system's intervention, and of no particular error. Others refuse a statement.
_SQL_ROLLED_BACK: Final = frozenset({"40001", "40P01"})
_SQL_UNKNOWN: Final = frozenset({"08", "40", "53", "57", "58", "HY", "XX"})
_SQLITE_REFUSED: Final = ("SQLITE_ERROR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_AUTH")
# JSON-RPC, which MCP speaks: an internal error, and what MCP says of a lost or silent peer.
_RPC_UNKNOWN: Final = frozenset({-32603, -32001, -32000})
_STATUS_NAMES: Final = ("status_code", "status", "http_status", "http_code", "code", "errcode")

# The client's own errors that say "try it again", of what may have taken effect. A tool that calls
# another one, or a model, is not called again for them.
_OWN_UNKNOWN: Final = frozenset({"ModelTimeout", "ResultTooLarge", "ToolCallUnresolved"})

# Functions that make a connection: of the call that they leave by an error, nothing was sent.
_CONNECTING: Final = frozenset(
    {
        *(("socket", "create_connection"), ("asyncio.base_events", "create_connection")),
        *(("http.client", "connect"), ("urllib3.connection", "connect")),
    }
)
_TOO_LATE_OR_MANY: Final = frozenset({408, 429})
_GRPC_UNKNOWN: Final = frozenset(
    {"CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN"}
)
# The beginnings of what gRPC says if it had no connection.
_GRPC_NOT_SENT: Final = (
    *("failed to connect to all addresses", "errors resolving ", "DNS resolution failed", "empty address list"),
)
# AWS says by a code that it takes no more requests, often with status 400.
_AWS_BUSY: Final = frozenset(
    {
        *("BandwidthLimitExceeded", "EC2ThrottledException", "InternalServerException", "LimitExceededException"),
        *("PriorRequestNotComplete", "ProvisionedThroughputExceededException", "RequestLimitExceeded"),
        *("RequestThrottled", "RequestThrottledException", "RequestTimeout", "RequestTimeoutException", "SlowDown"),
        *("ServiceUnavailableException", "ThrottledException", "Throttling", "ThrottlingException"),
        *("TooManyRequestsException", "TransactionInProgressException"),
    }
)
_OF_GROUP: Final[tuple[Outcome, ...]] = ("unknown", "refused", "not_sent")
_CHAIN_MAX: Final = 100


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a call that failed with `error`.

    In this order, the first that says something:

    - its attribute `retryable`: True is `not_sent`, False is `refused`; of the client's own errors
      about calls that may have taken effect, `unknown`;
    - its class, if that says that nothing was sent;
    - the status of an answer: 408, 429 and 5xx are `unknown`, any other from 400 on is `refused`;
    - the code of gRPC, JSON-RPC, SQL or SMTP;
    - its class, by its library or by the words of its name or of a base's, such as `Timeout` or
      `ConnectionError`: `unknown`, unless a cause says more. Of a group, and of the earlier tries
      in `errors`, `unknown` in any part, then `refused`;
    - its causes: `reason`, `__cause__`, exceptions in `args`, then `__context__`. An error of what
      was called while another one was handled, as of a second service, is `unknown`.

    An error that says nothing, such as a `ValueError`, is `refused`.
    """
    return _judge(error, _CHAIN_MAX) or "refused"


def _judge(error: BaseException, left: int) -> Outcome | None:
    if left <= 0 or not isinstance(error, Exception):  # a cancellation says nothing about what it ended
        return None
    said = _say(error)
    if said is not None and said != "by_cause":
        return said
    outcomes: set[Outcome] = {_judge(part, left - 1) or "refused" for part in _parts(error)}
    if not isinstance(error, ExceptionGroup):
        found = next((found for cause in _named_causes(error) if (found := _judge(cause, left - 1)) is not None), None)
        outcomes |= {found} if found else set()
    if outcomes:
        return next(outcome for outcome in _OF_GROUP if outcome in outcomes)
    if said == "by_cause":
        return "unknown"
    found = None if error.__context__ is None else _judge(error.__context__, left - 1)
    return "unknown" if found == "not_sent" and _was_raised_later(error) else found


def _say(error: Exception) -> _Said | None:
    """Return what an error says without its causes."""
    if isinstance(error, SessionaryError) and type(error).__name__ in _OWN_UNKNOWN:
        return "unknown"
    retryable = _read(error, "retryable")
    if isinstance(retryable, bool):
        return "not_sent" if retryable else "refused"
    if isinstance(error, Unavailable):
        return "unknown"
    if isinstance(error, OSError) and _was_connecting(error):
        return "not_sent"
    names = [(cls.__module__.partition(".")[0], cls.__name__) for cls in type(error).__mro__]
    said = next((_SAID[name] for name in names if name in _SAID), None)
    if said == "not_sent":  # by a proxy, with a status of its own
        return said
    if (status := status_of(error)) is not None:
        return "unknown" if status in _TOO_LATE_OR_MANY or status >= 500 else "refused"
    if ("grpc", "RpcError") in names:
        return _say_of_grpc(error)
    return _say_by_code(error) or said or _say_by_name(error)


def _say_by_code(error: Exception) -> Outcome | None:
    """Return what the code says that a database, a mail server or a peer answered."""
    state = _read(error, "sqlstate") or _read(error, "pgcode")
    if isinstance(state, str) and len(state) == 5:
        return "not_sent" if state in _SQL_ROLLED_BACK else "unknown" if state[:2] in _SQL_UNKNOWN else "refused"
    state = _read(error, "sqlite_errorname")
    if isinstance(state, str):
        return "refused" if state.startswith(_SQLITE_REFUSED) else "unknown"
    if _read(_read(error, "status"), "name") in _GRPC_UNKNOWN:
        return "unknown"
    if isinstance(code := _read(error, "returncode"), int) and code < 0:  # a signal ended the program
        return "unknown"
    code = _read(error, "smtp_code") or _read(error, "code") or _read(_read(error, "error"), "code")
    if not isinstance(code, int):
        return None
    if _is_of_mail(error) and 400 <= code <= 599:
        return "not_sent" if code < 500 else "refused"  # RFC 5321: of neither came what was asked for
    return "unknown" if code in _RPC_UNKNOWN else None


def _say_by_name(error: Exception) -> _Said | None:
    """Return what the words say that the names of an error's class and its bases have."""
    if isinstance(error, OSError) and _is_of_network(error):
        return "by_cause"
    if isinstance(error, SessionaryError):  # says it above
        return None
    for cls in type(error).__mro__:
        if cls.__module__ == "builtins":
            break
        if _REFUSED_NAME.search(cls.__name__):
            return None
        if _LOST_NAME.search(cls.__name__):
            return "by_cause"
    return "by_cause" if _read(error, "retriable") is True else None


def _parts(error: Exception) -> list[BaseException]:
    """Return the errors in a group, or those that a library kept of each try or each server."""
    kept = error.exceptions if isinstance(error, ExceptionGroup) else _read(error, "errors")
    values = tuple(kept.values()) if isinstance(kept, dict) else kept
    return [each for each in values if isinstance(each, Exception)] if isinstance(values, list | tuple) else []


def _named_causes(error: Exception) -> Iterator[BaseException]:
    """Yield the causes that an error names itself."""
    given = _read(error, "kwargs")  # of botocore
    wrapped = given.get("error") if isinstance(given, Mapping) else None
    for cause in (_read(error, "reason"), error.__cause__, *error.args, wrapped):
        if isinstance(cause, BaseException) and cause is not error:
            yield cause


def _is_of_network(error: OSError) -> bool:
    import errno  # a failure needs it first

    return error.errno in (
        *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EHOSTDOWN),
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE),
    )


def _was_connecting(error: OSError) -> bool:
    """Return whether an error was raised while a connection was made."""
    places = ((frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in _frames(error))
    return any(place in _CONNECTING for place in places)


def _was_raised_later(error: Exception) -> bool:
    """Return whether an error was not raised by the function that handled its `__context__`."""
    raising, handling = _frames(error), _frames(error.__context__)
    return bool(raising) and raising[-1] not in handling


def _frames(error: BaseException | None) -> "list[FrameType]":
    """Return the calls that an error has left, the innermost one last."""
    frames, trace = list["FrameType"](), None if error is None else error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def status_of(error: BaseException) -> int | None:
    """Return the status from 400 to 599 with which a service answered; None without one."""
    status = _status(error)
    return status if status is not None and 400 <= status <= 599 else None


def _status(error: BaseException) -> int | None:
    """Return the status of the answer in an error; None without one."""
    response = _read(error, "response")
    match response:
        case {"Error": {"Code": code}} if code in _AWS_BUSY:
            return 429
        case {"ResponseMetadata": {"HTTPStatusCode": int(status)}}:
            return status
    if _is_of_mail(error):  # whose codes are others
        return None
    holders = (error, response, _read(error, "resp"), _read(error, "meta"), _read(error, "error"))
    for status in (_read(holder, name) for holder in holders for name in _STATUS_NAMES):
        if isinstance(status, int) and 400 <= status <= 599:
            return int(status)
    return None


def _is_of_mail(error: BaseException) -> bool:
    return any(cls.__name__.startswith("SMTP") for cls in type(error).__mro__)


def _say_of_grpc(error: Exception) -> Outcome:
    code = _read(_call(error, "code"), "name")
    if code == "UNAVAILABLE" and f"{_call(error, 'details')}".startswith(_GRPC_NOT_SENT):
        return "not_sent"
    return "unknown" if code is None or code in _GRPC_UNKNOWN else "refused"


def _read(holder: object, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of a library may raise anything
        return None


def _call(holder: object, name: str) -> Any:
    method = _read(holder, name)
    try:
        return method() if callable(method) else None
    except Exception:  # noqa: BLE001 - as above
        return None


# How long a service asks to wait before the next try.


def asked_wait_s(error: BaseException, now_s: float) -> float | None:
    """Return how long the service asks to wait, in seconds; None if it does not ask.

    Read from the headers `retry-after-ms`, `Retry-After` (seconds or a date) and
    `x-ratelimit-reset` of an answer, from the metadata `grpc-retry-pushback-ms`, and from an
    attribute `retry_after` or `retry_after_s`, of the error and its causes. The longest counts.
    `now_s`: seconds since the epoch; a date counts from the answer's own date, if there is one.
    """
    waits = (wait for each in islice(_chain(error), _CHAIN_MAX) if (wait := _asked_by(each, now_s)) is not None)
    return max(waits, default=None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen or not isinstance(each, Exception):
            continue
        seen.add(id(each))
        yield each
        waiting += [*_parts(each), *_named_causes(each)]
        if each.__context__ is not None:
            waiting.append(each.__context__)


def _asked_by(error: BaseException, now_s: float) -> float | None:
    for name in ("retry_after_s", "retry_after"):
        if not isinstance(asked := _read(error, name), bool) and isinstance(asked, int | float):
            return _seconds(asked)
    found = _headers(error)
    for name, unit_s in (("retry-after-ms", 0.001), ("grpc-retry-pushback-ms", 0.001), ("retry-after", 1.0)):
        if (asked := _seconds(found.get(name), unit_s)) is not None:
            return asked
    if "retry-after" in found:
        return _until(found["retry-after"], found.get("date"), now_s)
    reset_s = _seconds(found.get("x-ratelimit-reset")) if found.get("x-ratelimit-remaining") == "0" else None
    if reset_s is not None and reset_s > 1e9:  # a moment; else a duration
        return max(reset_s - now_s, 0.0)
    return reset_s


def _headers(error: BaseException) -> dict[str, str]:
    """Return the headers of the answer in an error, or gRPC's metadata, by their names in small."""
    response = _read(error, "response")
    match response:
        case {"ResponseMetadata": {"HTTPHeaders": pairs}}:
            pass
        case _:
            pairs = _read(error, "headers") or _read(response, "headers") or _call(error, "trailing_metadata")
    items = _call(pairs, "items") or pairs
    found: dict[str, str] = {}
    for item in items if isinstance(items, Iterable) else ():
        if isinstance(item, tuple) and len(item) == 2:
            found.setdefault(f"{item[0]}".lower(), f"{item[1]}")
    return found


def _seconds(asked: object, unit_s: float = 1.0) -> float | None:
    """Return a duration in seconds; None if it is none."""
    try:
        seconds = float(f"{asked}") * unit_s
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e12 else None


def _until(date: str, now: str | None, now_s: float) -> float | None:
    """Return the seconds until an HTTP date; None if it is none."""
    from email.utils import parsedate_to_datetime  # takes long to load

    try:
        until_s = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    with suppress(ValueError):
        now_s = now_s if now is None else parsedate_to_datetime(now).timestamp()
    return max(until_s - now_s, 0.0)
