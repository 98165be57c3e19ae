"""What a failure says about its call: by its status, its class, and its causes."""

import errno
import socket
import ssl
import subprocess
import urllib.error
from asyncio import CancelledError
from collections.abc import Callable
from email.message import Message
from http.client import BadStatusLine, IncompleteRead, RemoteDisconnected
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.producers.context.failure_class import asked_wait_s, outcome_of
from sessionary.producers.durable.errors import ToolCallInProgress
from sessionary.producers.errors import Unavailable
from tests.core.producers.context.test_error_info import SaidError, StatusError, http_error


def named(module: str, name: str, *bases: type[BaseException], **attributes: object) -> Any:
    """Return a class of exceptions as a library has it."""
    return type(name, bases or (Exception,), {"__module__": module, **attributes})


def raised(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    """Return `error` as it is after `raise error from cause`, while `context` was handled."""
    error.__context__, error.__cause__ = context, cause
    return error


def connecting(error: Exception) -> Exception:
    """Return `error` as `socket.create_connection` raises it."""
    scope: dict[str, Any] = {"__name__": "socket"}
    exec("def create_connection(error):\n    raise error", scope)
    try:
        scope["create_connection"](error)
    except Exception as caught:  # noqa: BLE001 - it is given back
        return caught
    raise AssertionError


READ_TIMEOUT = named("httpx", "ReadTimeout", named("httpx", "TransportError"))
CONNECT_ERROR = named("httpx", "ConnectError", named("httpx", "TransportError"))
API_TIMEOUT = named("openai", "APITimeoutError", named("openai", "APIConnectionError", named("openai", "APIError")))
REFUSAL = named("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=409))
RETRY_ERROR = named("tenacity", "RetryError")
RPC_ERROR = named("grpc", "RpcError")
CLIENT_ERROR = named("botocore.exceptions", "ClientError")


def rpc_error(code: str, details: str = "") -> Exception:
    error: Exception = named("grpc._channel", "_InactiveRpcError", RPC_ERROR)(details)
    error.code = lambda: SimpleNamespace(name=code, value=(0, code))  # type: ignore[attr-defined]
    error.details = lambda: details  # type: ignore[attr-defined]
    return error


def aws_error(code: str, status: int) -> Exception:
    error: Exception = CLIENT_ERROR(code)
    error.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    return error


def urllib3_error(name: str, *args: object) -> Exception:
    error: Exception = named("urllib3.exceptions", name)(*args)
    return error


NOT_SENT = [
    *(ConnectionRefusedError("closed"), socket.gaierror(-2, "no such name"), ssl.SSLCertVerificationError("untrusted")),
    urllib.error.URLError(ConnectionRefusedError("closed")),
    *(connecting(TimeoutError("slow")), connecting(OSError(errno.EHOSTUNREACH, "no way"))),
    *(connecting(OSError("Tunnel connection failed: 503")), connecting(ConnectionResetError("in the handshake"))),
    urllib.error.URLError(connecting(TimeoutError("slow"))),
    *(CONNECT_ERROR(), SaidError(retryable=True), ToolCallInProgress("send", "k")),
    raised(RETRY_ERROR("all tries"), cause=CONNECT_ERROR()),
    raised(named("openai", "APIConnectionError")("Connection error."), cause=CONNECT_ERROR()),
    raised(RuntimeError("my own"), context=CONNECT_ERROR()),
    named("requests.exceptions", "ConnectionError", OSError)(urllib3_error("NewConnectionError")),
    urllib3_error("EmptyPoolError"),
    named("aiohttp.client_exceptions", "ClientHttpProxyError", status=407)(),
    rpc_error("UNAVAILABLE", "failed to connect to all addresses; last error: refused"),
    rpc_error("UNAVAILABLE", "errors resolving nothing.invalid:1: not found"),
    ExceptionGroup("both", [CONNECT_ERROR(), ConnectionRefusedError()]),
]
UNKNOWN = [
    *(TimeoutError("slow"), ConnectionResetError("gone"), BrokenPipeError("gone"), ConnectionAbortedError("gone")),
    *(RemoteDisconnected("gone"), IncompleteRead(b""), BadStatusLine("x"), ssl.SSLEOFError("gone")),
    *(OSError(errno.EHOSTUNREACH, "no way"), urllib.error.URLError(TimeoutError("slow"))),
    *(StatusError(408), StatusError(429), StatusError(500), StatusError(529), http_error(429), http_error(502)),
    *(Unavailable("silent", 1.0), subprocess.TimeoutExpired("make", 1.0)),
    *(READ_TIMEOUT(), API_TIMEOUT(), raised(RETRY_ERROR("all tries"), cause=READ_TIMEOUT())),
    raised(API_TIMEOUT(), cause=READ_TIMEOUT()),
    raised(ValueError("my own"), context=READ_TIMEOUT()),
    raised(TimeoutError(), cause=raised(CancelledError(), context=CONNECT_ERROR())),
    named("requests.exceptions", "ConnectionError", OSError)(
        urllib3_error("ProtocolError", "Connection aborted.", RemoteDisconnected("gone"))
    ),
    named("requests.exceptions", "ConnectionError", OSError)("nothing more"),
    *(aws_error("ThrottlingException", 400), aws_error("InternalError", 500)),
    named("botocore.exceptions", "HTTPClientError", kwargs={"error": ConnectionResetError()})(),
    *map(rpc_error, ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN")),
    ExceptionGroup("both", [CONNECT_ERROR(), StatusError(404), READ_TIMEOUT()]),
]
REFUSED = [
    *(ValueError("bad"), TypeError("bad"), PermissionError("not yours"), FileNotFoundError("gone"), KeyError("gone")),
    *(FileExistsError("there is one"), urllib.error.URLError("unknown scheme"), SaidError(retryable=False)),
    *(StatusError(400), StatusError(401), StatusError(403), StatusError(404), StatusError(409), StatusError(422)),
    *(http_error(404), REFUSAL(), aws_error("AccessDenied", 403), http_error(302)),
    raised(REFUSAL(), cause=READ_TIMEOUT(), context=READ_TIMEOUT()),  # a refusal is one, whatever came before
    raised(RETRY_ERROR("all tries"), cause=REFUSAL()),
    *map(rpc_error, ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED", "UNIMPLEMENTED", "UNAUTHENTICATED")),
    named("httpx", "LocalProtocolError", named("httpx", "TransportError"))(),
    named("aiohttp", "ContentTypeError", named("aiohttp", "ClientError"), status=200)(),
    ExceptionGroup("both", [CONNECT_ERROR(), StatusError(404)]),
]


@pytest.mark.parametrize("error", NOT_SENT, ids=repr)
def test_what_was_not_sent_may_be_made_again(error: Exception) -> None:
    assert outcome_of(error) == "not_sent"


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_what_was_sent_and_not_refused_may_have_taken_effect(error: Exception) -> None:
    assert outcome_of(error) == "unknown"


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_everything_else_is_refused(error: Exception) -> None:
    assert outcome_of(error) == "refused"


def test_causes_in_a_circle_end() -> None:
    first, second = ValueError(), ValueError()
    first.__context__ = second
    second.args = (first,)
    assert outcome_of(first) == "refused"
    assert asked_wait_s(first, 0.0) is None


def test_a_property_that_raises_says_nothing() -> None:
    def broken(self: object) -> int:
        raise RuntimeError

    error = named(
        "some", "LibraryError", status=property(broken), response=property(broken), headers=property(broken)
    )()
    assert outcome_of(error) == "refused"
    assert asked_wait_s(error, 0.0) is None


NOW_S = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def of_urllib(**headers: str) -> Exception:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://x", 429, "said", message, None)


def of_response(**headers: str) -> Exception:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return named("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=429, headers=found))()  # type: ignore[no-any-return]


def of_aws(**headers: str) -> Exception:
    found = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    response = {"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": found}}
    return named("botocore.exceptions", "ClientError", response=response)()  # type: ignore[no-any-return]


def of_grpc(**headers: str) -> Exception:
    error = rpc_error("UNAVAILABLE")
    pairs = tuple((name.replace("_", "-").lower(), value) for name, value in headers.items())
    error.trailing_metadata = lambda: pairs  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("make", [of_urllib, of_response, of_aws, of_grpc])
@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry_After": "20"}, 20),
        ({"Retry_After": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30),
        ({"Retry_After": "Tue, 14 Nov 2023 22:13:50 GMT", "Date": "Tue, 14 Nov 2023 22:13:45 GMT"}, 5),
        ({"Retry_After": "Tue, 14 Nov 2023 22:13:00 GMT"}, 0),
        ({"Retry_After": "7", "retry_after_ms": "1500"}, 1.5),
        ({"grpc_retry_pushback_ms": "250"}, 0.25),
        ({"X_RateLimit_Reset": "1700000040", "X_RateLimit_Remaining": "0"}, 40),
        ({"X_RateLimit_Reset": "9", "X_RateLimit_Remaining": "0"}, 9),
        ({"X_RateLimit_Reset": "9", "X_RateLimit_Remaining": "4"}, None),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": "-5"}, None),
        ({"Retry_After": "nan"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_wait_that_a_service_asks_for(
    make: Callable[..., Exception], headers: dict[str, str], wait_s: float | None
) -> None:
    assert asked_wait_s(make(**headers), NOW_S) == wait_s
    assert asked_wait_s(raised(RuntimeError("my own"), cause=make(**headers)), NOW_S) == wait_s
    assert asked_wait_s(ExceptionGroup("all", [ValueError(), make(**headers)]), NOW_S) == wait_s


def test_an_error_may_say_itself_how_long_to_wait() -> None:
    assert asked_wait_s(Unavailable("silent", 3.0), NOW_S) == 3
    assert asked_wait_s(named("bot", "FloodError", retry_after=12)(), NOW_S) == 12


def test_a_failure_of_a_second_service_is_not_that_of_the_first_one() -> None:
    def call_second() -> None:
        raise KeyError("no id in the answer")

    def call_both() -> None:
        try:
            raise ConnectionRefusedError
        except ConnectionError:
            call_second()

    def wrap() -> None:
        try:
            raise ConnectionRefusedError
        except ConnectionError:
            raise LookupError("the service is away")  # noqa: B904 - as many do

    with pytest.raises(KeyError) as failed:
        call_both()
    assert outcome_of(failed.value) == "unknown"
    with pytest.raises(LookupError) as wrapped:
        wrap()
    assert outcome_of(wrapped.value) == "not_sent"
