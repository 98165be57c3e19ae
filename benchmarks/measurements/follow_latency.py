"""(z) The time in which an update reaches the followers of the session in other processes.

A real client updates its sessions, at a fixed rate; other processes follow all of them over the
control API. Broker and processor are separate processes, with their default settings.
"""

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.harness.verdict_times import VerdictTimes
from benchmarks.measurements.call_latency import judged_pipeline, late_notes, latency_results, load_words
from benchmarks.measurements.latency import warm_broker
from benchmarks.results import Result, quantile
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.settings import KafkaSettings
from tests.support.reading import read_topic

RATE, RATE_QUICK = 200, 20
SESSIONS, SESSIONS_QUICK = 50, 5
FOLLOWERS, FOLLOWERS_QUICK = 3, 2
P99_MS_MAX = 150.0
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _verdict_times_ms(kafka: KafkaSettings) -> dict[int, float]:
    """Return when each update's transaction was acknowledged, by the time in its content (ns)."""
    verdicts, decoder, found = VerdictTimes(kafka), Decoder(), dict[int, float]()
    for stored in read_topic(kafka, kafka.topics.events):
        event = decoder.decode_event(stored.value)
        if isinstance(event, Event) and isinstance(event.payload, StateUpdated):
            verdict_ms = verdicts.acknowledged_ms(stored.partition, stored.offset)
            if verdict_ms is not None:
                found[json.loads(event.payload.state_json)["sent_ns"]] = verdict_ms
    return found


def _shares_of(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {**{name: quantile(ordered, share) for name, share in _SHARES.items()}, "max": ordered[-1]}


def measure_following(stack: Stack, bench: Bench, rate: int, sessions: int, followers: int) -> dict[str, Any]:
    """Measure once; return the latencies in ms, and what `programs.following` prints.

    `committed` has those from the acknowledged transaction on.
    """
    out = stack.folder / "reported"
    with judged_pipeline(stack) as (kafka, fields):
        words = [*load_words(bench, rate), "--sessions", f"{sessions}", "--followers", f"{followers}"]
        words += ["--out", str(out)]
        printed = stack.run_program("benchmarks.programs.following", *words, kafka=kafka, name="following", **fields)
        verdicts_ms = _verdict_times_ms(kafka)
    reported = [(int(sent), int(at)) for sent, at in (line.split() for line in out.read_text().splitlines())]
    committed = [at / 1e6 - verdicts_ms[sent] for sent, at in reported if sent in verdicts_ms]
    return {**_shares_of([(at - sent) / 1e6 for sent, at in reported]), "committed": _shares_of(committed), **printed}


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    quick = bench.options.quick
    rate, sessions, followers = (RATE_QUICK, SESSIONS_QUICK, FOLLOWERS_QUICK) if quick else (RATE, SESSIONS, FOLLOWERS)
    with running_stack(bench) as stack:
        if not quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat(f"{rate} updates/s", lambda _: measure_following(stack, bench, rate, sessions, followers))
    notes = (
        f"from the call of `update_state` to the view at each of {followers} followers, which are processes of their "
        f"own and follow all of {sessions} sessions; default settings of the processor; the first seconds are left out",
        "from the verdict: since the processor knew that the transaction with the update is committed",
        *late_notes(found),
    )
    committed = [one["committed"] for one in found]
    return [
        *latency_results(f"update → followers at {rate}/s", found, notes, P99_MS_MAX),
        *(
            Result(f"verdict → followers at {rate}/s, {name}", "ms", [one[share] for one in committed])
            for name, share in (("p50", "p50"), ("p99", "p99"), ("largest", "max"))
        ),
        Result("updates that were reported as part of a later one", "updates", [one["skipped"] for one in found]),
    ]
