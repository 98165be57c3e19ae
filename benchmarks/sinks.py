"""(f) Sinks: rows per second into the local engine, and the time from an audit record to its visible row.

Throughput: a processor first judges events made from agent runs, one in 200 of them broken, so that all four topics
hold what one and the same work comes to, in its natural proportions. Then the sink processes carry it into an empty
database. Delay: the whole pipeline runs at a steady rate; every audit record's append time (the broker's stamp) is
compared with when a query first saw its row.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from benchmarks.bench import Bench
from benchmarks.events import EventRecord, Workload
from benchmarks.full_job import make_workload
from benchmarks.latency import quantile
from benchmarks.pipeline import BatchReader, CpuTrace, Worker, preload
from benchmarks.results import Result, Target
from benchmarks.stack import Stack, broker, environment
from sessionary.infra.clickhouse import ClickHouse
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

# About 800,000 rows: each event makes one of the history, one in nine an audit record.
EVENTS, EVENTS_QUICK = 700_000, 5_000
RATE, RATE_QUICK = 500, 100
SECONDS, SECONDS_QUICK = 30.0, 5.0
KINDS = ("audit", "history", "rejected", "batches")
# A sink waits for its own inserts, and nearly all rows are the history's: two processes share its partitions.
PROCESSES = {
    "audit": "audit",
    "history-1": "history",
    "history-2": "history",
    "rejected": "rejected",
    "batches": "batches",
}
_BROKEN_EVERY = 200
WARM_UP_SHARE = 0.1
_COMMAND = str(Path(sys.executable).parent / "sessionary")
_LOOK_S = 1.0  # each look costs the engine some ms; the figures are from the rows' own stamps
_DELAY_LOOK_S = 0.05
_STALL_S = 120.0
_ARRIVAL_S = 30.0
_WARM_UP_S = 8.0  # the sinks are still joining their groups


class Load(NamedTuple):
    """One throughput run: rows by kind, and when they landed, s after the first tenth of all."""

    rows_per_s: float
    elapsed_s: float
    rows: Mapping[str, int]
    first_s: Mapping[str, float]
    last_s: Mapping[str, float]
    cpu_s: Mapping[str, float]  # of each sink, and of the engine

    @property
    def counted(self) -> float:
        """Rows within the time."""
        return self.rows_per_s * self.elapsed_s


def with_broken(events: Iterator[EventRecord]) -> Iterator[EventRecord]:
    """Put a record that nobody can read behind every 200th event."""
    for number, event in enumerate(events, 1):
        yield event
        if number % _BROKEN_EVERY == 0:
            yield EventRecord(event.key, b"\xc3\x01 broken", [])


def _judged_topics(stack: Stack, bench: Bench, workload: Workload, events: int) -> tuple[KafkaSettings, dict[str, int]]:
    """Return a pipeline whose topics hold it all, and how many records each sink is to find."""
    kafka = stack.pipeline()
    written = preload(kafka, with_broken(workload.stream(events)), bench.say)
    reader, worker = BatchReader(kafka), Worker(stack, kafka)
    try:
        reader.wait_judged(written, lambda: stack.check(worker.child), bench.say, _STALL_S)
        worker.stop()
        known = -1
        while known != len(reader.batches):
            known = len(reader.batches)
            reader.read(1.0)
        records = [record for _, record in reader.batches]
    finally:
        worker.stop()
        reader.close()
    return kafka, {
        "audit": sum(record.audited for record in records),
        "history": _end(kafka, kafka.topics.events),
        "rejected": sum(record.refused for record in records),
        "batches": len(records),
    }


def _end(kafka: KafkaSettings, topic: str) -> int:
    """Return the number of records of a topic that was never written in transactions nor cleaned."""
    consumer = Consumer({**kafka.client_config(), "group.id": "benchmark"})
    try:
        places = [TopicPartition(topic, number) for number in range(kafka.partitions)]
        return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    finally:
        consumer.close()


def start_sinks(stack: Stack, kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> dict[str, Child]:
    """Make the tables and start the `PROCESSES`; the database's name keeps their groups apart from other runs'."""
    env = environment(kafka, clickhouse, pipeline=clickhouse.clickhouse_database)
    migrated = stack.run([_COMMAND, "db", "migrate"], env=env, name="migrate")
    if not migrated.wait(60) or migrated.exit_code != 0:
        raise RuntimeError(f"the migration ended with {migrated.exit_code}:\n{migrated.log.read_text()[-2_000:]}")
    return {name: stack.run([_COMMAND, "sink", kind], env=env, name=f"sink-{name}") for name, kind in PROCESSES.items()}


def _stop(children: Sequence[Child]) -> None:
    for child in children:
        child.stop(20.0)


def _load(stack: Stack, bench: Bench, kafka: KafkaSettings, wanted: Mapping[str, int]) -> Load:
    settings = stack.clickhouse()
    sinks = start_sinks(stack, kafka, settings)
    clickhouse = ClickHouse(settings)
    sql = "SELECT " + ", ".join(f"(SELECT count() FROM {kind}) AS {kind}" for kind in KINDS)
    cpu = {name: CpuTrace(sink.pid) for name, sink in sinks.items()}
    cpu["engine"] = CpuTrace(stack.clickhouse_pid)
    try:
        for trace in cpu.values():
            trace.start()
        moved_s, known = time.monotonic(), -1
        while (rows := clickhouse.one(sql)) != dict(wanted):
            stack.check(*sinks.values())
            if (total := sum(rows.values())) != known:
                known, moved_s = total, time.monotonic()
            elif time.monotonic() - moved_s > _STALL_S:
                raise RuntimeError(f"rows {rows}, wanted {dict(wanted)}, and none more for {_STALL_S:g} s")
            time.sleep(_LOOK_S)
    finally:
        for trace in cpu.values():
            trace.stop()
        _stop([*sinks.values()])
    found = _landed(clickhouse, wanted, cpu)
    bench.say(f"  {found.rows_per_s:,.0f} rows/s")
    return found


def _landed(clickhouse: ClickHouse, wanted: Mapping[str, int], cpu: Mapping[str, CpuTrace]) -> Load:
    """Compute the figures from the engine's own stamp on every row.

    The first tenth of the rows, in which the sinks join their groups one after the other, is left out.
    """
    tables = " UNION ALL ".join(
        f"SELECT '{kind}' AS kind, toUnixTimestamp64Milli(landed_at) AS at_ms FROM {kind}" for kind in KINDS
    )
    spans = clickhouse.rows(f"SELECT kind, min(at_ms) AS low, max(at_ms) AS high FROM ({tables}) GROUP BY kind")
    low = clickhouse.one(f"SELECT quantileExactLow({WARM_UP_SHARE})(at_ms) AS low FROM ({tables})")["low"]
    high = max(row["high"] for row in spans)
    later = clickhouse.one(f"SELECT count() AS n FROM ({tables}) WHERE at_ms > {int(low)}")["n"]
    elapsed_s = (high - low) / 1e3
    if not elapsed_s:
        raise RuntimeError("too few rows: all landed in one moment")
    return Load(
        rows_per_s=later / elapsed_s,
        elapsed_s=elapsed_s,
        rows=wanted,
        first_s={row["kind"]: (row["low"] - low) / 1e3 for row in spans},
        last_s={row["kind"]: (row["high"] - low) / 1e3 for row in spans},
        cpu_s={name: trace.between(low / 1e3, high / 1e3) for name, trace in cpu.items()},
    )


def _delays_ms(stack: Stack, rate: float, seconds: float) -> list[float]:
    """Run the whole pipeline at a rate; return each audit record's way to its row, sorted."""
    kafka, settings = stack.pipeline(), stack.clickhouse()
    worker = Worker(stack, kafka)
    sinks = start_sinks(stack, kafka, settings)
    try:
        worker.wait_ready()
        out = stack.folder / f"{kafka.topic_prefix}.sent"
        words = ("client", "--rate", str(rate), "--seconds", str(seconds), "--out", str(out))
        sender = stack.start("benchmarks.sender", *words, env=environment(kafka), name="sender")
        visible = _watched(stack, ClickHouse(settings), kafka.partitions, sender, [worker.child, *sinks.values()])
        appended = _appended(kafka)
    finally:
        _stop([*sinks.values()])
        worker.stop()
    began_s = min(at_s for places in appended.values() for _, at_s in places)
    return sorted(
        (visible_at(visible[partition], offset) - at_s) * 1e3
        for partition, places in appended.items()
        for offset, at_s in places
        if at_s >= began_s + min(_WARM_UP_S, seconds / 2) and visible[partition] and offset <= visible[partition][-1][0]
    )


def visible_at(looks: Sequence[tuple[int, float]], offset: int) -> float:
    """Return when a row of at least this offset was first seen; `looks` are (highest offset, moment) in order."""
    return next(at_s for highest, at_s in looks if highest >= offset)


def _watched(
    stack: Stack, clickhouse: ClickHouse, partitions: int, sender: Child, others: Sequence[Child]
) -> dict[int, list[tuple[int, float]]]:
    """Look at the table until it has not grown for two seconds after the sender's end. A look is timed by its end."""
    seen: dict[int, list[tuple[int, float]]] = {partition: [] for partition in range(partitions)}
    grown_s = time.monotonic()
    while not sender.wait(_DELAY_LOOK_S) or time.monotonic() - grown_s < 2.0:
        stack.check(*others)
        rows = clickhouse.rows("SELECT src_partition AS p, max(src_offset) AS o FROM audit GROUP BY src_partition")
        at_s = time.time()
        for row in rows:
            looks = seen[row["p"]]
            if not looks or row["o"] > looks[-1][0]:
                looks.append((row["o"], at_s))
                grown_s = time.monotonic()
        if sender.exit_code is not None:
            time.sleep(_DELAY_LOOK_S)
    if sender.exit_code != 0:
        raise RuntimeError(f"the sender ended with {sender.exit_code}")
    return seen


def _appended(kafka: KafkaSettings) -> dict[int, list[tuple[int, float]]]:
    """Return offset and append time of every committed audit record, by partition."""
    found: dict[int, list[tuple[int, float]]] = {partition: [] for partition in range(kafka.partitions)}
    consumer = Consumer(
        {
            **kafka.client_config(),
            "group.id": "benchmark",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(kafka.topics.audit, partition, 0) for partition in found])
    ends, deadline_s = 0, time.monotonic() + _ARRIVAL_S
    while ends < kafka.partitions and time.monotonic() < deadline_s:
        for message in consumer.consume(1_000, 0.2):
            if message.error() is not None:
                ends += 1
                continue
            found[message.partition() or 0].append((message.offset() or 0, message.timestamp()[1] / 1e3))
    consumer.close()
    return found


def run(bench: Bench) -> list[Result]:
    """Measure both."""
    quick = bench.options.quick
    events = bench.events(EVENTS, EVENTS_QUICK)
    rate, seconds = (RATE_QUICK, SECONDS_QUICK) if quick else (RATE, SECONDS)
    workload = make_workload(bench)
    with broker(bench) as stack:
        kafka, wanted = bench.once(
            f"topics of {events:,} events", lambda: _judged_topics(stack, bench, workload, events)
        )
        stack.clickhouse()
        # A broker and an engine that have just started compile themselves and ask for memory, once.
        bench.once("warm-up, not counted", lambda: _load(stack, bench, kafka, wanted))
        loads = bench.repeat(f"sinks, {sum(wanted.values()):,} rows", lambda _: _load(stack, bench, kafka, wanted))
        delays = bench.repeat(f"audit record to row at {rate:,} events/s", lambda _: _delays_ms(stack, rate, seconds))
    return [*_throughput(loads), *_delay(delays, rate)]


def _throughput(loads: list[Load]) -> list[Result]:
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
            f"CPU of {what} per row", "µs", [spent * 1e6 / load.counted for spent, load in zip(cpu, loads, strict=True)]
        )
        for what, cpu in (("all sinks", sinks_s), ("the engine", engine_s))
    ]
    for kind in KINDS:
        spans = [load.last_s[kind] - load.first_s[kind] for load in loads if kind in load.last_s]
        if spans and min(spans) > 0:
            rates = [loads[0].rows[kind] / span for span in spans]
            results.append(Result(f"sink {kind}", "rows/s", rates))
    return results


def _delay(delays: list[list[float]], rate: float) -> list[Result]:
    notes = (
        f"audit record's append time to the row's first sight by a query, at {rate:,} events/s for the whole pipeline; "
        f"the first {_WARM_UP_S:g} s, in which the sinks join their groups, left out; looks every "
        f"{_DELAY_LOOK_S * 1e3:g} ms; a sink gathers rows for up to half a second",
    )
    if not all(delays):
        raise RuntimeError("no row became visible")
    p50, p95 = ([quantile(run, share) / 1e3 for run in delays] for share in (0.5, 0.95))
    details = {"records": [len(run) for run in delays]}
    return [
        Result("audit record to visible row, p50", "s", p50, None, notes, details),
        Result("audit record to visible row, p95", "s", p95, Target("<=", 2.0)),
    ]


__all__ = ["run", "visible_at", "with_broken"]
