from sessionary.sinks.core.retry_pause import RetryPause


def test_each_fault_in_a_row_doubles_the_pause_up_to_10_seconds() -> None:
    pause = RetryPause()
    for expected_s in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        pause.extend("network", 100.0)
        assert pause.holds_back(100.0 + expected_s - 0.001)
        assert not pause.holds_back(100.0 + expected_s)
        assert pause.is_active
        assert pause.reason == "network"


def test_a_pause_that_has_ended_holds_nothing_back_and_starts_short_again() -> None:
    pause = RetryPause()
    assert not pause.is_active
    pause.extend("network", 100.0)
    pause.extend("network", 100.0)
    pause.end()
    assert not pause.is_active
    assert not pause.holds_back(0.0)
    assert pause.reason is None
    pause.extend("commit", 100.0)
    assert not pause.holds_back(100.25)
