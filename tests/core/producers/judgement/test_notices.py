"""The user's callbacks, and what they raise."""

import logging
import threading
from asyncio import CancelledError

import pytest

from sessionary.producers import EventRefused
from sessionary.producers.judgement.notices import Callbacks, Notices

REFUSED = EventRefused("session", "event", "session_activity", "late")


def notices_that_raise(raised: BaseException) -> tuple[Notices, list[Exception]]:
    def fail(refused: EventRefused) -> None:
        raise raised

    errors: list[Exception] = []
    return Notices(Callbacks(errors.append, on_refused=fail)), errors


def test_an_exception_of_a_callback_goes_to_on_error() -> None:
    bug = RuntimeError("a bug of the user's")
    notices, errors = notices_that_raise(bug)
    notices.tell(REFUSED)
    assert errors == [bug]


@pytest.mark.parametrize("raised", [SystemExit(1), CancelledError(), GeneratorExit()])
def test_what_is_no_exception_is_logged_and_ends_no_thread(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    notices, errors = notices_that_raise(raised)
    with caplog.at_level(logging.ERROR, "sessionary.producers"):
        notices.tell(REFUSED)
    assert errors == []
    assert "a callback of the client raised" in caplog.text


def test_an_interrupt_passes_in_the_main_thread_only() -> None:
    notices, errors = notices_that_raise(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        notices.tell(REFUSED)
    passed: list[bool] = []

    def tell() -> None:
        notices.tell(REFUSED)
        passed.append(True)

    thread = threading.Thread(target=tell)
    thread.start()
    thread.join(60)
    assert (passed, errors, notices.refused) == ([True], [], 2)


def test_what_on_error_raises_reaches_nothing() -> None:
    def fail(error: Exception) -> None:
        raise SystemExit(1)

    notices = Notices(Callbacks(fail))
    notices.tell(REFUSED)
    notices.report(RuntimeError("x"))
    assert notices.refused == 1
