"""(x) The freeze of a planned migration: from the source's last event to the target's first one.

Two real clients, in separate processes; broker and processor likewise, with their default
settings. Beside them a third client sends 200 events/s. All times are of the log: the broker's
stamps on events, and the times at which the processor's transactions were acknowledged.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, environment, running_stack
from benchmarks.harness.verdict_times import VerdictTimes
from benchmarks.machine import Json
from benchmarks.measurements.call_latency import judged_pipeline
from benchmarks.measurements.latency import warm_broker
from benchmarks.programs.migrating import SOURCE, TARGET
from benchmarks.results import Result, Target, quantile
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.support.reading import read_records, read_topic

MIGRATIONS, MIGRATIONS_QUICK = 200, 5
WARM_UP, WARM_UP_QUICK = 20, 1  # migrations before them, which are left out
EVENTS_PER_S = 200
P50_MS_MAX, P99_MS_MAX = 150.0, 300.0
PARTS = (
    "source's last event → the target has loaded it",
    "loaded → prepared",
    "prepared → the target accepts",
    "accepted → completed",
    "completed → the target's first event",
    "first event → its verdict",
)
_LOAD_S = 900.0  # Longer than all migrations; the load is stopped then
_STOP_S = 20.0
_WORK = "session_activity"


class _Sent(NamedTuple):
    """An event that was accepted."""

    partition: int
    offset: int
    appended_ms: float
    name: str
    service_id: str


class Freezes(NamedTuple):
    """The findings of one run; times in ms."""

    freezes: Sequence[float]
    parts: Sequence[Sequence[float]]  # per migration, in the order of `PARTS`
    migrate: Sequence[float]  # of the call in the source's process
    unknown: int  # migrations of which the log lacks a time


def _accepted_events(kafka: KafkaSettings, sessions: Sequence[str]) -> dict[str, list[_Sent]]:
    """Return the events of sessions that were not rejected, in the log's order."""
    rejected = (record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent))
    rejected_at = {(record.source_partition, record.source_offset) for record in rejected}
    wanted, decoder, found = set(sessions), Decoder(), defaultdict[str, list[_Sent]](list)
    for stored in read_topic(kafka, kafka.topics.events):
        event = decoder.decode_event(stored.value)
        if not isinstance(event, Event) or event.envelope.session_id not in wanted:
            continue
        if (stored.partition, stored.offset) not in rejected_at:
            sent = stored.partition, stored.offset, float(stored.timestamp_ms)
            found[event.envelope.session_id].append(_Sent(*sent, event.envelope.event_type, event.envelope.service_id))
    return found


def split_freeze(events: Sequence[_Sent], verdicts: VerdictTimes) -> list[float] | None:
    """Return the parts of a session's freeze, ms; None if the log lacks a time.

    Raises `RuntimeError` if the source's events and the target's are not in order.
    """

    def find(name: str, service_id: str) -> list[_Sent]:
        return [sent for sent in events if (sent.name, sent.service_id) == (name, service_id)]

    last, loaded = find(_WORK, SOURCE)[-1], find("session_migration_loaded", TARGET)[-1]
    (accepted,), first = find("session_migration_accepted", TARGET), find(_WORK, TARGET)[0]
    if not last.offset < loaded.offset < accepted.offset < first.offset:
        raise RuntimeError(f"an event was accepted while the session was held: {last}, {loaded}, {accepted}, {first}")
    moments: list[float] = [last.appended_ms]
    for sent in (loaded, accepted, first):
        verdict_ms = verdicts.acknowledged_ms(sent.partition, sent.offset)
        if verdict_ms is None:
            return None
        moments += [sent.appended_ms, verdict_ms]
    return [after - before for before, after in itertools.pairwise(moments)]


def measure_freezes(stack: Stack, bench: Bench, migrations: int, warm_up: int) -> Freezes:
    """Move sessions beside the load, and read the log. Raises `RuntimeError`."""
    with judged_pipeline(stack) as (kafka, fields):
        words = ("client", "--rate", f"{EVENTS_PER_S}", "--seconds", f"{_LOAD_S:g}")
        out = ("--out", str(stack.folder / "load"))
        load = stack.start("benchmarks.programs.sender", *words, *out, env=environment(kafka), name="load")
        try:
            asked = ("--migrations", f"{migrations}")
            reported = stack.run_program(
                "benchmarks.programs.migrating", *asked, kafka=kafka, name="migrating", **fields
            )
            stack.check_running(load)
        finally:
            load.stop(_STOP_S)
        found = _read_freezes(kafka, reported, warm_up)
    bench.print_progress(f"  freeze p50 {quantile(sorted(found.freezes), 0.5):.1f} ms")
    return found


def _read_freezes(kafka: KafkaSettings, reported: dict[str, Any], warm_up: int) -> Freezes:
    sessions = reported["sessions"][warm_up:]
    events, verdicts = _accepted_events(kafka, sessions), VerdictTimes(kafka)
    split = [split_freeze(events[session], verdicts) for session in sessions]
    parts = [each for each in split if each is not None]
    if not parts:
        raise RuntimeError("the log has the times of no migration")
    freezes = [sum(each) for each in parts]
    return Freezes(freezes, parts, reported["migrate_ms"][warm_up:], len(split) - len(parts))


def freeze_results(found: Sequence[Freezes]) -> list[Result]:
    """Return the figures of all runs."""
    notes = (
        f"one session at a time moves between two processes, beside {EVENTS_PER_S} events/s of other sessions; its own "
        "agent sends an event every 5 ms; no calls are in flight; the first migrations are left out",
        "from the broker's stamp on the source's last event that was accepted to the acknowledged transaction with the "
        "target's first one; the parts add up to it in each migration, their quantiles do not",
        f"{len(found[0].freezes)} migrations in a run",
    )

    def shares(values: Sequence[Sequence[float]], share: float) -> list[float]:
        return [quantile(sorted(each), share) for each in values]

    details: dict[str, Json] = {"unknown": [one.unknown for one in found]}
    freezes = [one.freezes for one in found]
    results = [
        Result("freeze, p50", "ms", shares(freezes, 0.5), Target("<=", P50_MS_MAX), notes, details),
        Result("freeze, p99", "ms", shares(freezes, 0.99), Target("<=", P99_MS_MAX)),
        Result("freeze, largest", "ms", [max(each) for each in freezes]),
    ]
    for place, name in enumerate(PARTS):
        part = [[each[place] for each in one.parts] for one in found]
        results += [Result(f"{name}, p50", "ms", shares(part, 0.5)), Result(f"{name}, p99", "ms", shares(part, 0.99))]
    migrate = [one.migrate for one in found]
    return [*results, Result("call of `migrate` → its return, p50", "ms", shares(migrate, 0.5))]


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    quick = bench.options.quick
    warm_up = WARM_UP_QUICK if quick else WARM_UP
    migrations = warm_up + bench.event_count(MIGRATIONS, MIGRATIONS_QUICK)
    with running_stack(bench) as stack:
        if not quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat("migrations", lambda _: measure_freezes(stack, bench, migrations, warm_up))
    return freeze_results(found)
