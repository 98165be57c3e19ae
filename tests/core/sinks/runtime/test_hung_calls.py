import threading

from sessionary.sinks.runtime.hung_calls import CallWatchdog


def test_a_call_that_exceeds_its_limit_is_reported_once() -> None:
    hung = threading.Event()
    watchdog = CallWatchdog(0.01, check_every_s=0.01)
    watchdog.start(hung.set)
    with watchdog.watch_call():
        assert hung.wait(30)


def test_without_a_call_nothing_is_reported() -> None:
    hung = threading.Event()
    watchdog = CallWatchdog(0.0, check_every_s=0.001)
    with watchdog.watch_call():
        assert not hung.is_set()
    watchdog.start(hung.set)
    assert not hung.wait(0.05)
