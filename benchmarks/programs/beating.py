"""A program that measures the cost of many sessions' heartbeats for their process.

    python -m benchmarks.programs.beating --sessions 10000 --seconds 30

It starts the sessions, lets them be silent, and measures after the first round of heartbeats. It
prints one line of JSON: CPU time of the whole process over the wall's, in percent of a core, µs of
CPU time per heartbeat, and heartbeats per second. The exit code is 1 if a heartbeat was dropped.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path

from sessionary.producers import ProducerSettings, SessionClient

_FLUSH_S = 120.0


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.beating")
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool))
        with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings) as client:
            sessions = [client.session(user_id="u1", state={"step": 0}) for _ in range(given.sessions)]
            left = client.flush(_FLUSH_S)
            gc.collect()
            time.sleep(settings.heartbeat_interval_s)
            before, cpu_s, began_s = client.counters.heartbeats, time.process_time(), time.monotonic()
            time.sleep(given.seconds)
            elapsed_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
            counters = client.counters
            beats = counters.heartbeats - before
            for session in sessions:
                session.lifecycle.detach()
    figures = {
        "core_percent": cpu_s / elapsed_s * 100,
        "cpu_us": cpu_s / max(beats, 1) * 1e6,
        "beats_per_s": beats / elapsed_s,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if left or counters.heartbeats_dropped else 0


if __name__ == "__main__":
    sys.exit(main())
