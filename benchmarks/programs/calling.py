"""A program that makes recorded tool calls, or starts tasks, at a fixed rate, and measures them.

    python -m benchmarks.programs.calling calls --rate 200 --seconds 20 --warm-up-s 5
    python -m benchmarks.programs.calling tasks --rate 50 --seconds 20 --warm-up-s 5

Many agents of one process call in turn. A call is due at a fixed time; one that begins late,
because its agent still waits for its last call, is late by `late_ms`. The first `--warm-up-s` are
left out.

    calls   from the call of the decorated function to the first line of its body: the reservation
            is then in the log, judged, and its verdict known; each agent in runs of its session
    tasks   from the call of `start_task` to the id that it returns: the broker has acknowledged the
            request then; no worker takes it, so no length of a task counts; each agent in sessions
            of fifty tasks

It prints one line of JSON: p50, p95, p99 and the largest latency in ms, calls, `late_ms`, and the
calls per second that were made. The exit code is 1 if a call failed.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.results import quantile
from sessionary.producers import ProducerSettings, SessionClient, tool

_AGENTS_PER_CALL_S = 0.2  # How long a call may take without making the next one of its agent late
_CALLS_IN_A_ROW = 50  # in a run, or of a session, which may have up to 64 open tasks
_TIMEOUT_S = 60.0


@tool(effect="read", deadline=60)
def _note_granted(begun_ns: int) -> int:
    """Return how long the call waited, in ns."""
    return time.perf_counter_ns() - begun_ns


class _Agent(threading.Thread, ABC):
    """Makes every `of`-th call, fifty in a row."""

    def __init__(self, client: SessionClient, number: int, of: int, rate: float, calls: int) -> None:
        super().__init__(name=f"agent-{number}", daemon=True)
        self._client = client
        self._user_id = f"u{number}"
        self._after_s = [n / rate for n in range(number, calls, of)]
        self.began_s = 0.0
        self.made: list[tuple[float, float]] = []  # when it was due, s; latency, ms
        self.late_s = 0.0
        self.failure: Exception | None = None

    def prepare(self) -> None:
        """Do what is not measured, before the start."""

    def run(self) -> None:
        """Make the calls."""
        try:
            for first in range(0, len(self._after_s), _CALLS_IN_A_ROW):
                self.call_in_a_row([self.began_s + after_s for after_s in self._after_s[first:][:_CALLS_IN_A_ROW]])
        except Exception as error:  # noqa: BLE001 - the main thread tells of it
            self.failure = error

    @abstractmethod
    def call_in_a_row(self, due_s: Sequence[float]) -> None:
        """Make a call at each of these times, by `note_call`."""

    def note_call(self, due_s: float, call: Callable[[], float]) -> None:
        """Make a call when it is due; `call` returns its latency in ms."""
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self.late_s = max(self.late_s, -left_s)
        self.made.append((due_s, call()))


class _Caller(_Agent):
    """Makes tool calls."""

    def prepare(self) -> None:
        self._session = self._client.session(user_id=self._user_id)

    def call_in_a_row(self, due_s: Sequence[float]) -> None:
        with self._session.run("calls"):
            for each_s in due_s:
                self.note_call(each_s, lambda: _note_granted(time.perf_counter_ns()) / 1e6)


class _Asker(_Agent):
    """Starts tasks."""

    def call_in_a_row(self, due_s: Sequence[float]) -> None:
        task_ids: list[str] = []
        with self._client.session(user_id=self._user_id) as session:

            def start_task() -> float:
                begun_ns = time.perf_counter_ns()
                task_ids.append(session.start_task("training", {"epochs": 10}, timeout_s=_TIMEOUT_S))
                return (time.perf_counter_ns() - begun_ns) / 1e6

            for each_s in due_s:
                self.note_call(each_s, start_task)
        reported = self._client.check_task_status(task_ids[-1])
        if reported.get("status") != "started":
            raise RuntimeError(f"the task was not accepted: {reported}")


AGENTS: Mapping[str, type[_Agent]] = {"calls": _Caller, "tasks": _Asker}


def make_calls(
    client: SessionClient, agent_type: type[_Agent], rate: float, seconds: float, warm_up_s: float
) -> dict[str, float]:
    """Make the calls, and return the figures. Raises what a call raised."""
    of, calls = max(1, round(rate * _AGENTS_PER_CALL_S)), round(rate * seconds)
    agents = [agent_type(client, number, of, rate, calls) for number in range(of)]
    for agent in agents:
        agent.prepare()
    client.flush(30)
    began_s = time.monotonic() + 0.5
    for agent in agents:
        agent.began_s = began_s
        agent.start()
    for agent in agents:
        agent.join()
    took_s = time.monotonic() - began_s
    for agent in agents:
        if agent.failure is not None:
            raise agent.failure
    counted = sorted(ms for agent in agents for due_s, ms in agent.made if due_s >= began_s + warm_up_s)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        **{name: quantile(counted, share) for name, share in shares.items()},
        "max": counted[-1],
        "calls": len(counted),
        "late_ms": max(agent.late_s for agent in agents) * 1e3,
        "per_s": calls / took_s,
    }


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.calling")
    parser.add_argument("what", choices=AGENTS)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool))
        with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings) as client:
            figures = make_calls(client, AGENTS[given.what], given.rate, given.seconds, given.warm_up_s)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
