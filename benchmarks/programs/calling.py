"""A program that makes recorded tool calls at a fixed rate, and measures when each is granted.

    python -m benchmarks.programs.calling --rate 200 --seconds 20 --warm-up-s 5

Many agents of one process call in turn, each in a run of its own session. A call is due at a fixed
time; one that begins late, because its agent still waits for its last call, is late by `late_ms`.
Latency is from the call of the decorated function to the first line of its body: the reservation is
then in the log, judged, and its verdict known. The first `--warm-up-s` are left out.

It prints one line of JSON: p50, p95, p99 and the largest latency in ms, calls, `late_ms`, and the
calls per second that were made. The exit code is 1 if a call failed.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.results import quantile
from sessionary.producers import ProducerSettings, Session, SessionClient, tool

_AGENTS_PER_CALL_S = 0.2  # How long a call may take without making the next one of its agent late
_CALLS_PER_RUN = 50


@tool(effect="read", deadline=60)
def _note_granted(begun_ns: int) -> int:
    """Return how long the call waited, in ns."""
    return time.perf_counter_ns() - begun_ns


class _Agent(threading.Thread):
    """Makes every `of`-th call, in runs of fifty."""

    def __init__(self, session: Session, number: int, of: int, rate: float, calls: int, began_s: float) -> None:
        super().__init__(name=f"agent-{number}", daemon=True)
        self._session = session
        self._due_s = [began_s + n / rate for n in range(number, calls, of)]
        self.made: list[tuple[float, float]] = []  # when it was due, s; latency, ms
        self.late_s = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        """Make the calls."""
        try:
            for first in range(0, len(self._due_s), _CALLS_PER_RUN):
                with self._session.run("calls"):
                    for due_s in self._due_s[first : first + _CALLS_PER_RUN]:
                        self._call_at(due_s)
        except Exception as error:  # noqa: BLE001 - the main thread tells of it
            self.failure = error

    def _call_at(self, due_s: float) -> None:
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self.late_s = max(self.late_s, -left_s)
        self.made.append((due_s, _note_granted(time.perf_counter_ns()) / 1e6))


def make_calls(client: SessionClient, rate: float, seconds: float, warm_up_s: float) -> dict[str, float]:
    """Make the calls, and return the figures. Raises what a call raised."""
    of, calls = max(1, round(rate * _AGENTS_PER_CALL_S)), round(rate * seconds)
    sessions = [client.session(user_id=f"u{number}") for number in range(of)]
    client.flush(30)
    began_s = time.monotonic() + 0.5
    agents = [_Agent(session, n, of, rate, calls, began_s) for n, session in enumerate(sessions)]
    for agent in agents:
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
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool))
        with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings) as client:
            figures = make_calls(client, given.rate, given.seconds, given.warm_up_s)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
