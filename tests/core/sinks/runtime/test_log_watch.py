"""Whether a sink keeps up with its log."""

from sessionary.sinks.runtime.log_watch import READY_S, LogWatch


class Story:
    """A watch whose log and time the test moves."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.ends: dict[int, int] = {}
        self.watch = LogWatch(lambda: self.ends, self)

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def pass_time(self, seconds: float) -> tuple[bool, str]:
        self.now_s += seconds
        self.watch.ask_once()
        return self.watch.readiness()


def test_a_sink_without_an_assignment_is_not_ready_and_one_without_partitions_is() -> None:
    story = Story()
    assert story.watch.readiness() == (False, "the group has given no assignment")
    story.watch.report_landed({})
    story.ends = {0: 9}
    assert [story.pass_time(READY_S) for _ in range(3)] == [(True, "ready")] * 3
    story.watch.report_landed(None)
    assert story.watch.readiness()[0] is False


def test_a_sink_is_not_ready_once_a_partition_has_stood_still_for_15_s() -> None:
    story = Story()
    story.watch.report_landed({0: 5, 3: 7})
    story.ends = {0: 5, 3: 8}
    assert story.pass_time(1.0) == (True, "ready")
    assert story.pass_time(READY_S - 0.1) == (True, "ready")
    assert story.pass_time(0.1) == (False, "partition 3 stands at offset 7 for 15 s, the log ends at 8")
    # A loop that hangs reports nothing; the time that passes shows nevertheless.
    story.now_s += 60
    assert story.watch.readiness() == (False, "partition 3 stands at offset 7 for 75 s, the log ends at 8")
    story.watch.report_landed({0: 5, 3: 8})
    assert story.pass_time(1.0) == (True, "ready")


def test_each_answer_has_a_number_of_its_own() -> None:
    story = Story()
    story.ends = {0: 5}
    story.pass_time(1.0)
    first = story.watch.answer
    story.ends = {}
    story.pass_time(1.0)
    assert (first.number, first.ends) == (1, {0: 5})
    assert (story.watch.answer.number, story.watch.answer.ends) == (2, {})
