"""(f) Sinks: rows per second into the local engine, and the delay of a row (see `sink_delay`).

A processor first judges events made from agent runs, and broken ones in between, so that all four
topics hold the records of the same work in their natural proportions. Then the sink processes write
them into an empty database.
"""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import BatchReader, CpuTrace, Worker, preload_events
from benchmarks.harness.sink_processes import PROCESSES, start_sinks, stop_sinks
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.measurements.sink_delay import delay_results, measure_delays
from benchmarks.results import Result, Target
from benchmarks.workload.events import EventRecord, Workload
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import KafkaSettings

# About 800,000 rows: each event makes a row of history, one in nine an audit record.
EVENTS, EVENTS_QUICK = 700_000, 5_000
RATE, RATE_QUICK = 500, 100
SECONDS, SECONDS_QUICK = 30.0, 5.0
KINDS = ("audit", "history", "rejected", "batches")
_BROKEN_EVERY = 200
WARM_UP_SHARE = 0.1
_LOOK_S = 1.0  # between two queries; each costs the engine some ms
_STALL_S = 120.0


class SinkLoad(NamedTuple):
    """One throughput run. Times are s after the first tenth of all rows was inserted."""

    rows_per_s: float
    elapsed_s: float
    rows: Mapping[str, int]
    first_s: Mapping[str, float]
    last_s: Mapping[str, float]
    cpu_s: Mapping[str, float]  # by sink process, and of the engine

    @property
    def rows_counted(self) -> float:
        """Rows after the first tenth."""
        return self.rows_per_s * self.elapsed_s


def with_broken(events: Iterator[EventRecord]) -> Iterator[EventRecord]:
    """Yield the events, with an undecodable record after every 200th one."""
    for number, event in enumerate(events, 1):
        yield event
        if number % _BROKEN_EVERY == 0:
            yield EventRecord(event.key, b"\xc3\x01 broken", [])


def judged_topics(stack: Stack, bench: Bench, workload: Workload, events: int) -> tuple[KafkaSettings, dict[str, int]]:
    """Return a pipeline whose topics hold all records, and how many of them each sink must find."""
    kafka = stack.new_pipeline()
    written = preload_events(kafka, with_broken(workload.event_stream(events)), bench.print_progress)
    reader, worker = BatchReader(kafka), Worker(stack, kafka)
    try:
        reader.wait_judged(written, lambda: stack.check_running(worker.child), bench.print_progress, _STALL_S)
        worker.stop()
        known = -1
        while known != len(reader.batches):
            known = len(reader.batches)
            reader.read_batches(1.0)
        records = [record for _, record in reader.batches]
    finally:
        worker.stop()
        reader.close()
    return kafka, {
        "audit": sum(record.audited for record in records),
        "history": _topic_size(kafka, kafka.topics.events),
        "rejected": sum(record.rejected for record in records),
        "batches": len(records),
    }


def _topic_size(kafka: KafkaSettings, topic: str) -> int:
    """Return the number of records of a topic without transactions and without deleted records."""
    consumer = Consumer({**kafka.client_config(), "group.id": "benchmark"})
    try:
        places = [TopicPartition(topic, number) for number in range(kafka.partitions)]
        return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    finally:
        consumer.close()


def measure_load(
    stack: Stack, bench: Bench, kafka: KafkaSettings, wanted: Mapping[str, int], python_path: str | None = None
) -> SinkLoad:
    """Let the sinks write a pipeline's topics into a new database, until it has all rows.

    `python_path`: as of `start_sinks`. Raises `RuntimeError` if a sink ends or stands still.
    """
    settings = stack.new_database()
    sinks = start_sinks(stack, kafka, settings, python_path=python_path)
    clickhouse = ClickHouseClient(settings)
    sql = "SELECT " + ", ".join(f"(SELECT count() FROM {kind}) AS {kind}" for kind in KINDS)
    cpu = {name: CpuTrace(sink.pid) for name, sink in sinks.items()}
    cpu["engine"] = CpuTrace(stack.clickhouse_pid)
    try:
        for trace in cpu.values():
            trace.start()
        moved_s, known = time.monotonic(), -1
        while (rows := clickhouse.fetch_one(sql)) != dict(wanted):
            stack.check_running(*sinks.values())
            if (total := sum(rows.values())) != known:
                known, moved_s = total, time.monotonic()
            elif time.monotonic() - moved_s > _STALL_S:
                raise RuntimeError(f"rows {rows}, wanted {dict(wanted)}, and no more for {_STALL_S:g} s")
            time.sleep(_LOOK_S)
    finally:
        for trace in cpu.values():
            trace.stop()
        stop_sinks(sinks.values())
    found = _load_figures(clickhouse, wanted, cpu)
    bench.print_progress(f"  {found.rows_per_s:,.0f} rows/s")
    return found


def _load_figures(clickhouse: ClickHouseClient, wanted: Mapping[str, int], cpu: Mapping[str, CpuTrace]) -> SinkLoad:
    """Compute the figures from the engine's time stamp on every row.

    The first tenth of the rows, in which the sinks join their groups, is left out.
    """
    tables = " UNION ALL ".join(
        f"SELECT '{kind}' AS kind, toUnixTimestamp64Milli(landed_at) AS at_ms FROM {kind}" for kind in KINDS
    )
    spans = clickhouse.fetch_rows(f"SELECT kind, min(at_ms) AS low, max(at_ms) AS high FROM ({tables}) GROUP BY kind")
    low = clickhouse.fetch_one(f"SELECT quantileExactLow({WARM_UP_SHARE})(at_ms) AS low FROM ({tables})")["low"]
    high = max(row["high"] for row in spans)
    later = clickhouse.fetch_one(f"SELECT count() AS n FROM ({tables}) WHERE at_ms > {int(low)}")["n"]
    elapsed_s = (high - low) / 1e3
    if not elapsed_s:
        raise RuntimeError("too few rows: all were inserted at the same time; give a larger --events")
    return SinkLoad(
        rows_per_s=later / elapsed_s,
        elapsed_s=elapsed_s,
        rows=wanted,
        first_s={row["kind"]: (row["low"] - low) / 1e3 for row in spans},
        last_s={row["kind"]: (row["high"] - low) / 1e3 for row in spans},
        cpu_s={name: trace.cpu_between(low / 1e3, high / 1e3) for name, trace in cpu.items()},
    )


def run(bench: Bench) -> list[Result]:
    """Measure throughput and delay."""
    quick = bench.options.quick
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    rate, seconds = (RATE_QUICK, SECONDS_QUICK) if quick else (RATE, SECONDS)
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        kafka, wanted = bench.run_once(
            f"topics of {events:,} events", lambda: judged_topics(stack, bench, workload, events)
        )
        stack.new_database()
        # A new broker compiles its code, and a new engine allocates memory, on the first load.
        bench.run_once("warm-up, not counted", lambda: measure_load(stack, bench, kafka, wanted))
        loads = bench.repeat(
            f"sinks, {sum(wanted.values()):,} rows", lambda _: measure_load(stack, bench, kafka, wanted)
        )
        delays = bench.repeat(
            f"audit record to row at {rate:,} events/s", lambda _: measure_delays(stack, rate, seconds)
        )
    return [*_throughput_results(loads), *delay_results(delays, rate)]


def _throughput_results(loads: list[SinkLoad]) -> list[Result]:
    rows = ", ".join(f"{count:,} {kind}" for kind, count in loads[0].rows.items())
    notes = (
        f"{rows}; {len(PROCESSES)} sink processes, two of them for the history, one engine; one load before, not "
        "counted; the first tenth, in which the sinks join their groups one after the other, left out",
        "of one sink: its rows over the time from its own first landed row to its last; all four share the machine",
    )
    details = {"runs": [load._asdict() for load in loads]}
    total = [load.rows_per_s for load in loads]
    results = [Result("sinks together", "rows/s", total, Target(">=", 50_000), notes, details)]
    sinks_s = [sum(load.cpu_s[name] for name in PROCESSES) for load in loads]
    engine_s = [load.cpu_s["engine"] for load in loads]
    results += [
        Result(
            f"CPU of {what} per row",
            "µs",
            [spent * 1e6 / load.rows_counted for spent, load in zip(cpu, loads, strict=True)],
        )
        for what, cpu in (("all sinks", sinks_s), ("the engine", engine_s))
    ]
    for kind in KINDS:
        spans = [load.last_s[kind] - load.first_s[kind] for load in loads if kind in load.last_s]
        if spans and min(spans) > 0:
            rates = [loads[0].rows[kind] / span for span in spans]
            results.append(Result(f"sink {kind}", "rows/s", rates))
    return results
