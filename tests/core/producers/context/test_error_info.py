"""Which failures may pass by themselves."""

import errno
import socket
import urllib.error
from email.message import Message
from http.client import IncompleteRead, RemoteDisconnected

import pytest

from sessionary.producers.context.error_info import is_retryable
from sessionary.producers.durable.errors import ToolCallInProgress
from sessionary.producers.errors import Unavailable


def http_error(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", status, "said", Message(), None)


class StatusError(Exception):
    """As the libraries of models raise it."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"answer {status_code}")
        self.status_code = status_code


class SaidError(Exception):
    """An error that says itself whether it may pass."""

    def __init__(self, *, retryable: bool) -> None:
        super().__init__("said")
        self.retryable = retryable


RETRYABLE = [
    *(TimeoutError("slow"), ConnectionResetError("gone"), RemoteDisconnected("gone"), IncompleteRead(b"")),
    *(socket.gaierror(-3, "again"), OSError(errno.EHOSTUNREACH, "no way"), urllib.error.URLError(TimeoutError("slow"))),
    *(StatusError(429), StatusError(500), StatusError(503), http_error(429), http_error(502)),
    *(Unavailable("silent", 1.0), SaidError(retryable=True), ToolCallInProgress("send", "k")),
]
FATAL = [
    *(ValueError("bad"), TypeError("bad"), PermissionError("not yours"), FileNotFoundError("gone"), KeyError("gone")),
    *(FileExistsError("there is one"), StatusError(400), StatusError(403), StatusError(404), StatusError(409)),
    *(http_error(404), SaidError(retryable=False), KeyboardInterrupt(), urllib.error.URLError("unknown scheme")),
]


@pytest.mark.parametrize("error", RETRYABLE, ids=repr)
def test_what_may_pass_is_retryable(error: BaseException) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize("error", FATAL, ids=repr)
def test_everything_else_is_fatal(error: BaseException) -> None:
    assert not is_retryable(error)
