"""The user's callbacks, and what they raise."""

import logging
import threading
from asyncio import CancelledError

import pytest

from sessionary.producers import EventRejected
from sessionary.producers.verdicts.notifications import Callbacks, Notifications

REJECTED = EventRejected("session", "event", "session_activity", "late")


def notifications_that_raise(raised: BaseException) -> tuple[Notifications, list[Exception]]:
    def fail(rejected: EventRejected) -> None:
        raise raised

    errors: list[Exception] = []
    return Notifications(Callbacks(errors.append, on_rejected=fail)), errors


def test_an_exception_of_a_callback_goes_to_on_error() -> None:
    bug = RuntimeError("a bug of the user's")
    notifications, errors = notifications_that_raise(bug)
    notifications.notify(REJECTED)
    assert errors == [bug]


@pytest.mark.parametrize("raised", [SystemExit(1), CancelledError(), GeneratorExit()])
def test_what_is_no_exception_is_logged_and_ends_no_thread(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    notifications, errors = notifications_that_raise(raised)
    with caplog.at_level(logging.ERROR, "sessionary.producers"):
        notifications.notify(REJECTED)
    assert errors == []
    assert "a callback of the client raised" in caplog.text


def test_an_interrupt_passes_in_the_main_thread_only() -> None:
    notifications, errors = notifications_that_raise(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        notifications.notify(REJECTED)
    passed: list[bool] = []

    def notify() -> None:
        notifications.notify(REJECTED)
        passed.append(True)

    thread = threading.Thread(target=notify)
    thread.start()
    thread.join(60)
    assert (passed, errors, notifications.rejected) == ([True], [], 2)


def test_what_on_error_raises_reaches_nothing() -> None:
    def fail(error: Exception) -> None:
        raise SystemExit(1)

    notifications = Notifications(Callbacks(fail))
    notifications.notify(REJECTED)
    notifications.report(RuntimeError("x"))
    assert notifications.rejected == 1
