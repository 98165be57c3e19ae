"""A program that measures the cost of a client's call for its agent.

    python -m benchmarks.programs.emitting --policy spool|block --events 100000 [--rate 1000]

It emits the events of recorded runs in one session, as fast as possible or at a rate. It prints one
line of JSON: µs per call (mean, p50, p99), CPU time per event of the agent's thread and of the
whole process (with its delivery threads), and events per second from the first call to the last
acknowledgement. The exit code is 1 if an event was lost.
"""

import argparse
import gc
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.workload.events import agent_runs, make_templates
from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.schemas.events import EVENT_TYPES, Payload

_FLUSH_S = 120.0
_WARM_UP = 200


def _run_payloads() -> Iterator[Payload]:
    """Return the events of recorded runs, repeated, without those that begin or end a session."""
    lines = [line.payload for template in make_templates(agent_runs()[:20], 1) for line in template.lines]
    kept = [payload for payload in lines if not EVENT_TYPES[type(payload)].startswith("session_")]
    return itertools.cycle(kept)


def _emit_events(session: Session, payloads: Iterator[Payload], events: int, rate: float | None) -> list[int]:
    """Emit events, at `rate` per second if given; return the time of each call in ns."""
    spent: list[int] = []
    began_s = time.monotonic()
    for number in range(events):
        if rate is not None:
            while (left_s := began_s + number / rate - time.monotonic()) > 0:
                time.sleep(left_s)
        payload = next(payloads)
        before_ns = time.perf_counter_ns()
        session.emit(payload)
        spent.append(time.perf_counter_ns() - before_ns)
    return spent


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.emitting")
    parser.add_argument("--policy", choices=("spool", "block"), required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    payloads = _run_payloads()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool), delivery_policy=given.policy)
        with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings) as client:
            session = client.session(user_id="u1", state={"step": 0})
            _emit_events(session, payloads, _WARM_UP, None)
            client.flush(_FLUSH_S)
            gc.collect()
            cpu_s, agent_s, began_s = time.process_time(), time.thread_time(), time.monotonic()
            spent = _emit_events(session, payloads, given.events, given.rate)
            agent_s = time.thread_time() - agent_s
            left = client.flush(_FLUSH_S)
            elapsed_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
            counters = client.counters
    spent.sort()
    figures = {
        "mean_us": statistics.fmean(spent) / 1e3,
        "p50_us": spent[len(spent) // 2] / 1e3,
        "p99_us": spent[int(len(spent) * 0.99)] / 1e3,
        "max_us": spent[-1] / 1e3,
        "agent_cpu_us": agent_s / given.events * 1e6,
        "cpu_us": cpu_s / given.events * 1e6,
        "delivered_per_s": given.events / elapsed_s,
        "spooled": counters.spooled,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    lost = left or counters.dropped or counters.failed or counters.delivered != counters.sent
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
