"""The log of one round, and its reading by each engine.

A round has one events topic, filled before any engine starts. Our processor writes to the other
topics of the same pipeline, each program on Kafka Streams to those of a separate pipeline. All
have the same live sessions in their changelogs.
"""

import shutil
import time
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.consumption import GroupProgress, follow_commits, steady_rate
from benchmarks.harness.java_build import STREAMS_VERSION
from benchmarks.harness.pipeline import BatchReader, CpuTrace, Worker, preload_events
from benchmarks.harness.proc_stats import compiler_cpu_seconds, rss_bytes
from benchmarks.harness.stack import Stack
from benchmarks.measurements.full_job import STALL_S, job_figures
from benchmarks.measurements.keyed_count.job import make_topics, remove_topics
from benchmarks.measurements.streams_full_job.java_program import StreamsProgram, StreamsRun
from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import preload_engines
from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.kafka.log_progress import LogEndClient
from sessionary.schemas.settings import KafkaSettings

OURS = "ours"
STORES = {"streams-memory": "memory", "streams-rocksdb": "rocksdb"}
ENGINES = (OURS, *STORES)
STREAMS = f"Kafka Streams {STREAMS_VERSION}"
COMMIT_INTERVAL_MS = 100  # Kafka Streams' own with exactly-once; a partition's transactions of ours
LEFT_OUT = 0.5  # of the events: meanwhile Java's compiler is at work
_ANSWER_S = 10.0
_GRACE_S = 20.0


class RoundLog(NamedTuple):
    """The topics of a round. `ends`: where the events end, by partition."""

    kafka: KafkaSettings
    outputs: Mapping[str, KafkaSettings]  # by engine
    events: int
    ends: Mapping[int, int]


class EngineRun(NamedTuple):
    """One run of an engine over the log, without its beginning."""

    events_per_s: float
    cpu_us: float  # per event
    broker_cpu_us: float  # per event
    start_s: float  # from the program's start to its first commit
    memory_bytes: int  # resident, at the end
    compiler_cpu_us: float = 0.0  # per event, of Java's just-in-time compiler; a part of `cpu_us`


def application_of(kafka: KafkaSettings) -> str:
    """Return the application id of the program that writes to a pipeline; it names its group."""
    return f"{kafka.topic_prefix}.streams"


def changelog_of(kafka: KafkaSettings) -> str:
    """Return the name that Kafka Streams gives to the program's changelog."""
    return f"{application_of(kafka)}-sessions-changelog"


def make_log(stack: Stack, bench: Bench, workload: Workload, live: int, events: int) -> RoundLog:
    """Fill the changelogs with `live` sessions, then the events topic. Blocks."""
    kafka = stack.new_pipeline()
    outputs = {OURS: kafka, **{engine: stack.new_pipeline() for engine in STORES}}
    changelogs = [changelog_of(outputs[engine]) for engine in STORES]
    make_topics(kafka.bootstrap_servers, changelogs, {"cleanup.policy": "compact"})
    size = preload_engines(kafka, workload.templates, live, changelogs)
    bench.print_progress(f"  changelogs of {size / 1e6:,.0f} MB")
    preload_events(kafka, workload.event_stream(events), bench.print_progress)
    client = LogEndClient(AdminConnection(kafka), committed_only=False)
    ends = client.ask_ends(kafka.topics.events, range(kafka.partitions), _ANSWER_S)
    found = {partition: end.offset for partition, end in ends.items()}
    if sum(found.values()) != events:
        raise RuntimeError(f"{events:,} events were written, but the partitions end at {found}")
    return RoundLog(kafka, outputs, events, found)


def drop_log(stack: Stack, log: RoundLog) -> None:
    """Delete the topics of a round."""
    for engine, kafka in log.outputs.items():
        stack.drop_pipeline(kafka)
        if engine != OURS:
            remove_topics(kafka.bootstrap_servers, [changelog_of(kafka)])


def run_engine(stack: Stack, bench: Bench, program: StreamsProgram, log: RoundLog, engine: str) -> EngineRun:
    """Let an engine read a whole log. Blocks. Raises `RunFailed`, or `RuntimeError`."""
    return _run_ours(stack, bench, log) if engine == OURS else _run_streams(stack, bench, program, log, engine)


def _run_ours(stack: Stack, bench: Bench, log: RoundLog) -> EngineRun:
    """Measure from commit to commit, by the broker's time stamps on the batch records."""
    reader = BatchReader(log.kafka)
    worker = Worker(stack, log.kafka, commit_interval_ms=str(COMMIT_INTERVAL_MS))
    try:
        broker_cpu = CpuTrace(stack.broker_pid if stack.own_broker else None)
        with CpuTrace(worker.pid) as cpu, broker_cpu:
            reader.wait_judged(log.events, lambda: stack.check_running(worker.child), bench.print_progress, STALL_S)
        memory = rss_bytes(worker.pid)
    finally:
        worker.stop()
        reader.close()
    found = job_figures(reader.batches, cpu, broker_cpu, log.events, LEFT_OUT)
    first_s = min(batch.at_s for batch in reader.batches if batch.record.applied)
    return EngineRun(found.events_per_s, found.cpu_us, found.broker_cpu_us, first_s - worker.started_s, memory)


def _run_streams(stack: Stack, bench: Bench, program: StreamsProgram, log: RoundLog, engine: str) -> EngineRun:
    """Measure from commit to commit, by samples of the group's offsets, ten a second."""
    kafka = log.outputs[engine]
    application, folder = application_of(kafka), stack.folder / kafka.topic_prefix
    places = kafka.bootstrap_servers, application, log.kafka.topics.events, f"{kafka.topic_prefix}."
    words = program.command(StreamsRun(*places, kafka.partitions, STORES[engine], folder, COMMIT_INTERVAL_MS))
    progress = GroupProgress(stack, log.kafka.topics.events, application, kafka.partitions, log.ends)
    began_s, clock_s = time.monotonic(), time.time()
    child = stack.run(words, name=engine)
    try:
        with CpuTrace(child.pid, compiler_cpu_seconds) as compiler:
            samples = follow_commits(progress, child, log.events, bench.print_progress)
        memory = rss_bytes(child.pid)
    finally:
        child.stop(_GRACE_S)
        progress.close()
        shutil.rmtree(folder, ignore_errors=True)
    first_s = next(sample.at_s for sample in samples if sample.committed)
    rate = steady_rate(samples, round(log.events * LEFT_OUT))
    last_s = samples[-1].at_s - began_s + clock_s
    compiler_us = compiler.cpu_between(last_s - rate.elapsed_s, last_s) / rate.events * 1e6
    return EngineRun(rate.per_s, rate.cpu_us, rate.broker_cpu_us, first_s - began_s, memory, compiler_us)
