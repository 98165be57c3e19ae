"""A program that measures the rate at which a client sends the spool of a dead process.

    python -m benchmarks.programs.replaying --events 60000

It writes events of recorded runs into a spool, abandons it as a killed process does, and times a
new transport from its start to the last acknowledgement. It prints one line of JSON: events per
second with and without the start, the seconds of the start, and CPU time per event. The exit code
is 1 if an event was lost.
"""

import argparse
import json
import sys
import tempfile
import time
import uuid
from pathlib import Path

from benchmarks.workload.events import Workload, agent_runs
from sessionary.producers import ProducerSettings
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.delivery.spool.transport import SpoolTransport

_CONCURRENT = 500
_FLUSH_S = 240.0


def _leave_spool(settings: ProducerSettings, events: int) -> int:
    """Leave events as a killed process does; return their bytes."""
    own = Spool(settings.spool_folder, str(uuid.uuid4()), settings.spool_bytes_max)
    now_ms = time.time_ns() // 1_000_000
    for event in Workload(agent_runs(), seed=1, concurrent=_CONCURRENT).event_stream(events):
        own.append_frame(Frame(now_ms, event.key, None, event.value), None)
    held = own.bytes_held
    own.abandon()
    return held


def _print_error(error: Exception) -> None:
    sys.stderr.write(f"{error}\n")


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.replaying")
    parser.add_argument("--events", type=int, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as folder:
        settings = ProducerSettings.from_env(spool_dir=Path(folder), spool_bytes_max=2 << 30)
        held = _leave_spool(settings, given.events)
        cpu_s, began_s = time.process_time(), time.monotonic()
        transport = SpoolTransport(settings, str(uuid.uuid4()), _print_error)
        started_s = time.monotonic()
        left = transport.flush(_FLUSH_S)
        ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
        counters = transport.counters
        transport.close(0)
    figures = {
        "per_s": given.events / (ended_s - began_s),
        "per_s_after_start": given.events / (ended_s - started_s),
        "start_s": started_s - began_s,
        "cpu_us": cpu_s / given.events * 1e6,
        "bytes_per_event": held / given.events,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if left or counters.delivered != given.events else 0


if __name__ == "__main__":
    sys.exit(main())
