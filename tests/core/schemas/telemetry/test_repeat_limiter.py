"""Which of many repeated lines are written."""

from sessionary.schemas.telemetry.repeat_limiter import REPEAT_S, RepeatLimiter


def test_a_line_passes_once_in_thirty_seconds_with_the_count_of_the_others() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter()
    taken = [limiter.take_line("k", f"line {n}", at_s) for n, at_s in enumerate((0.0, 1.0, REPEAT_S - 0.1, REPEAT_S))]
    assert taken == [[("line 0", 0)], [], [], [("line 3", 2)]]
    assert limiter.take_line("k", "line 4", 2 * REPEAT_S) == [("line 4", 0)], "nothing was suppressed since"


def test_other_keys_are_other_lines() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter()
    assert limiter.take_line(("waits", 0), "a", 0.0) == [("a", 0)]
    assert limiter.take_line(("waits", 1), "b", 0.0) == [("b", 0)]
    assert limiter.take_line(("waits", 0), "c", 0.0) == []


def test_the_end_writes_the_last_suppressed_line_and_counts_those_before_it() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter()
    for n in range(4):
        limiter.take_line("k", f"line {n}", 0.0)
    limiter.take_line("once", "alone", 0.0)
    assert limiter.take_suppressed() == [("line 3", 2)]
    assert limiter.take_suppressed() == []


def test_the_key_that_was_written_first_is_forgotten_and_tells_what_it_suppressed() -> None:
    limiter: RepeatLimiter[str] = RepeatLimiter(keys_max=2)
    for key, at_s in (("a", 0.0), ("a", 1.0), ("b", 2.0)):
        limiter.take_line(key, f"{key} at {at_s:g}", at_s)
    assert limiter.take_line("c", "c at 3", 3.0) == [("a at 1", 0), ("c at 3", 0)]
    assert limiter.take_line("a", "a at 4", 4.0) == [("a at 4", 0)], "it is a new key"
