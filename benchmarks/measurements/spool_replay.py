"""(g) The rate at which a client sends the events in the spool of a dead process.

A new transport takes over a spool of one dead process, and sends it to a broker on the same
machine. It ends with the last acknowledgement. No processor runs, and the client sends nothing of
its own.
"""

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.results import Result, Target

EVENTS, EVENTS_QUICK = 60_000, 2_000
TARGET = 20_000


def _measure_replay(stack: Stack, events: int) -> dict[str, float]:
    words = ["--events", str(events)]
    return stack.run_program("benchmarks.programs.replaying", *words, kafka=stack.new_pipeline(), name="replay")


def run(bench: Bench) -> list[Result]:
    """Measure the replay of one spool."""
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    with running_stack(bench) as stack:
        _measure_replay(stack, EVENTS_QUICK)  # the broker's compiler warms up; not counted
        runs = bench.repeat("spool replay", lambda _n: _measure_replay(stack, events))
    notes = (f"{events:,} events of recorded runs, from the transport's start to the last acknowledgement",)
    return [
        Result(
            "replay of a spool", "events/s", [one["per_s"] for one in runs], Target(">=", TARGET), notes, {"runs": runs}
        ),
        Result("replay, after the files were read", "events/s", [one["per_s_after_start"] for one in runs]),
        Result("CPU per replayed event", "µs", [one["cpu_us"] for one in runs]),
    ]
