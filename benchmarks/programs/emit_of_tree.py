"""A program that measures the cost of `emit` with the client of the tree in which it runs.

    python emit_of_tree.py EVENTS RATE

It is started by its path, with the tree's folders first on PYTHONPATH. It uses no more than what
every release of the client has: three verbs of work, in turn, in one session with the spool. RATE:
events per second; 0: as fast as possible.

It prints one line of JSON: µs per call (mean, p50, p99), CPU time per event of the whole process in
µs, and the file of the client's package, which identifies the tree. The exit code is 1 if an event
was lost.
"""

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sessionary import producers
from sessionary.producers import ProducerSettings, Session, SessionClient

_FLUSH_S = 120.0
_WARM_UP = 200
_TEXT = "the agent thinks about what comes next, and says so in a sentence " * 5


def emit_events(session: Session, events: int, rate: float) -> list[int]:
    """Call verbs, at `rate` per second unless that is 0; return the time of each call in ns."""
    verbs: tuple[Callable[[], str], ...] = (
        lambda: session.activity("llm", _TEXT),
        lambda: session.usage(model="large", tokens_in=1_200, tokens_out=300, model_cost_usd_nanos=5_400_000),
        lambda: session.progress(1, 3, "collected"),
    )
    spent: list[int] = []
    began_s = time.monotonic()
    for number in range(events):
        while rate and (left_s := began_s + number / rate - time.monotonic()) > 0:
            time.sleep(left_s)
        verb = verbs[number % len(verbs)]
        before_ns = time.perf_counter_ns()
        verb()
        spent.append(time.perf_counter_ns() - before_ns)
    return spent


def main(events: str, rate: str) -> int:
    """Measure, print, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool))
        with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings) as client:
            session = client.session(user_id="u1", state={"step": 0})
            emit_events(session, _WARM_UP, 0)
            client.flush(_FLUSH_S)
            gc.collect()
            cpu_s = time.process_time()
            spent = sorted(emit_events(session, int(events), float(rate)))
            left = client.flush(_FLUSH_S)
            cpu_s = time.process_time() - cpu_s
            counters = client.counters
    figures = {
        "mean_us": sum(spent) / len(spent) / 1e3,
        "p50_us": spent[len(spent) // 2] / 1e3,
        "p99_us": spent[int(len(spent) * 0.99)] / 1e3,
        "cpu_us": cpu_s / len(spent) * 1e6,
        "client": producers.__file__,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if left or counters.delivered != counters.sent else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
