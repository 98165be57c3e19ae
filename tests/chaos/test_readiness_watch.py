"""What counts as ready although it stands still, and what does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from tests.chaos.readiness_watch import (
    READY_S_MAX,
    Readiness,
    ReadinessRule,
    TimelyProgress,
    count_partitions,
    ends_at_work,
    ends_elsewhere,
    read_readiness,
)

STEP_S = 5.0
STEPS = int(READY_S_MAX / STEP_S)


def stalled_after(progress: TimelyProgress, *ends: dict[int, int], step_s: float = STEP_S) -> set[int]:
    """Return what stands still after observations of these ends, with the position 5."""
    found: set[int] = set()
    for number, end in enumerate(ends):
        found = set(progress.observe({0: 5}, end, 100.0 + number * step_s))
    return found


def test_a_position_behind_the_log_s_end_stands_still_after_the_bound() -> None:
    assert stalled_after(TimelyProgress(), *[{0: 9}] * STEPS) == set()
    assert stalled_after(TimelyProgress(), *[{0: 9}] * (STEPS + 1)) == {0}
    assert stalled_after(TimelyProgress(), *[{0: 5}] * 50) == set()


def test_time_without_answers_does_not_count() -> None:
    assert stalled_after(TimelyProgress(), *[{0: 9}] * STEPS, {}, *[{0: 9}] * STEPS) == set()
    assert stalled_after(TimelyProgress(), *[{0: 9}] * 9, step_s=READY_S_MAX) == set()


def test_while_a_broker_is_stalled_the_partitions_of_the_others_are_judged() -> None:
    leaders = {0: "broker-1", 1: "broker-2", 2: "broker-3"}
    ends = {0: 9, 1: 9, 2: 9, 3: 9}
    assert ends_elsewhere(ends, leaders, {"broker-2"}) == {0: 9, 2: 9}, "that of partition 3 is unknown"
    assert ends_elsewhere(ends, leaders, {"broker-1", "broker-3"}) == {1: 9}
    assert ends_elsewhere(ends, dict.fromkeys(leaders, "broker"), {"broker"}) == {}


def test_time_in_which_a_partition_is_halted_does_not_count() -> None:
    ends, ready = {0: 9, 1: 9, 2: 9}, Readiness(is_ready=True, partitions=frozenset({0, 1}))
    assert ends_at_work(ends, [ready, Readiness(is_ready=False, partitions=frozenset({2}))]) == {0: 9, 1: 9}
    halted, again = Readiness(is_ready=True), [ends_at_work({0: 9}, [ready])] * STEPS
    assert stalled_after(TimelyProgress(), *[ends_at_work({0: 9}, [halted])] * STEPS, *again) == set()
    assert stalled_after(TimelyProgress(), *again, *again) == {0}


def test_only_a_process_that_says_that_it_is_ready_is_named() -> None:
    stalled = TimelyProgress()
    stalled_after(stalled, *[{0: 9}] * (STEPS + 1))
    found = stalled.observe({0: 5}, {0: 9}, 100.0 + (STEPS + 1) * STEP_S)
    rule = ReadinessRule()
    rule.judge_process("w1", found, Readiness(is_ready=False))
    rule.judge_process("w1", {}, Readiness(is_ready=True))
    assert rule.sentences == []
    for _ in range(2):
        rule.judge_process("w1", found, Readiness(is_ready=True))
    assert rule.sentences == ["w1 said that it was ready: partition 0 at offset 5 for 40 s, the log ends at 9"]


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Serve one answer to every request; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_readiness_is_read_from_processors_and_sinks() -> None:
    states = b'{"0": "open", "1": "opening", "2": "halted: log_gap", "3": "stands at offset 7"}'
    with answering(200, b'{"ready": true, "partitions": ' + states + b"}") as url:
        assert read_readiness(url) == Readiness(is_ready=True, partitions=frozenset({0, 3}))
    with answering(200, b"ready\n") as url:
        assert read_readiness(url) == Readiness(is_ready=True)
    with answering(503, b"partition 0 stands") as url:
        assert read_readiness(url) == Readiness(is_ready=False)
    assert read_readiness(url) == Readiness(is_ready=False)


def test_partitions_of_a_worker_are_counted_whether_it_is_ready_or_not() -> None:
    states = b'{"0": "open", "1": "opening", "2": "halted: log_gap", "3": "stands at offset 7"}'
    for status, ready in ((200, b"true"), (503, b"false")):
        with answering(status, b'{"ready": ' + ready + b', "partitions": ' + states + b"}") as url:
            assert count_partitions(url) == 3
    with answering(503, b"partition 0 stands") as url:
        assert count_partitions(url) == 0
    assert count_partitions(url) == 0
