"""Exceptions as events carry them, and the endings that they make."""

import asyncio
import concurrent.futures
import urllib.error
from email.message import Message

import pytest

from sessionary.producers.context.error_info import Ending, ending_of, to_error_info
from sessionary.schemas.types import ErrorInfo


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


class GreenletExit(BaseException):
    """As the package `greenlet` has it."""


GreenletExit.__module__ = "greenlet"

ENDINGS: list[tuple[BaseException | None, Ending]] = [
    *((None, "done"), (GeneratorExit(), "done"), (SystemExit(), "done"), (SystemExit(0), "done")),
    *((asyncio.CancelledError(), "cancelled"), (concurrent.futures.CancelledError(), "cancelled")),
    *((KeyboardInterrupt(), "cancelled"), (GreenletExit(), "cancelled")),
    *((SystemExit(3), "failed"), (SystemExit(143), "failed"), (SystemExit("no disk"), "failed")),
    *((ValueError(), "failed"), (TimeoutError(), "failed"), (BaseException(), "failed"), (StopIteration(), "failed")),
    (BaseExceptionGroup("all", [asyncio.CancelledError(), GeneratorExit()]), "cancelled"),
    (BaseExceptionGroup("all", [asyncio.CancelledError(), ValueError()]), "failed"),
]


@pytest.mark.parametrize(("error", "ending"), ENDINGS, ids=repr)
def test_the_ending_of_a_block(error: BaseException | None, ending: Ending) -> None:
    assert ending_of(error) == ending


def test_an_error_with_a_cancellation_as_its_cause_is_a_failure() -> None:
    late = TimeoutError()
    late.__cause__ = late.__context__ = asyncio.CancelledError()
    assert ending_of(late) == "failed"


@pytest.mark.parametrize(
    ("error", "info"),
    [
        (ValueError("bad"), ErrorInfo("fatal", "ValueError", "bad")),
        (StatusError(503), ErrorInfo("retryable", "http_503", "answer 503")),
        (asyncio.CancelledError(), ErrorInfo("retryable", "cancelled", "CancelledError: ")),
        (KeyboardInterrupt(), ErrorInfo("retryable", "cancelled", "KeyboardInterrupt: ")),
        (SystemExit(3), ErrorInfo("retryable", "SystemExit", "3")),
        (SystemExit(404), ErrorInfo("retryable", "SystemExit", "404")),
        (SystemExit(0), ErrorInfo("retryable", "cancelled", "SystemExit: 0")),
    ],
    ids=repr,
)
def test_an_error_as_an_event_has_it(error: BaseException, info: ErrorInfo) -> None:
    assert to_error_info(error) == info
    assert to_error_info(error, retryable=False) == info._replace(error_class="fatal")
