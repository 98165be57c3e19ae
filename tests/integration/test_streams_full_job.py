"""The program on Kafka Streams judges as the processor does: also what has to be rejected."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.bench import Bench, Options
from benchmarks.harness.pipeline import BatchReader, Worker
from benchmarks.harness.stack import Stack
from benchmarks.measurements.streams_full_job.compare import measure_round
from benchmarks.measurements.streams_full_job.engines import ENGINES, RoundLog, make_log, run_engine
from benchmarks.measurements.streams_full_job.java_program import StreamsProgram, build_program
from benchmarks.measurements.streams_full_job.outputs import EngineOutputs, find_differences, read_outputs
from benchmarks.workload.events import EventRecord, Workload, agent_runs
from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Envelope

STALL_S = 120.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> StreamsProgram:
    return build_program(tmp_path_factory.mktemp("program"))


class FaultyWorkload(Workload):
    """Some events are missing, doubled, of another epoch or service, or have a wrong number."""

    def event_stream(self, events: int) -> Iterator[EventRecord]:
        """Yield `events` events."""
        yielded = 0
        for n, event in enumerate(super().event_stream(2 * events)):
            for faulty in with_faults(n, event):
                yield faulty
                yielded += 1
                if yielded == events:
                    return


def with_faults(n: int, event: EventRecord) -> Iterator[EventRecord]:
    """Yield what becomes of the n-th event."""
    if n % 97 == 13:
        return
    if n % 71 == 5:
        event = changed(event, lambda envelope: envelope._replace(epoch=envelope.epoch + 1))
    elif n % 73 == 5:
        event = changed(event, lambda envelope: envelope._replace(epoch=envelope.epoch - 1))
    elif n % 79 == 5:
        event = changed(event, lambda envelope: envelope._replace(service_id="other-service"))
    elif n % 83 == 5:
        event = changed(event, lambda envelope: envelope._replace(producer_seq=0))
    elif n % 61 == 5:
        event = changed(event, lambda envelope: envelope._replace(context_bytes=300_000_000))
    yield event
    if n % 89 == 7:
        yield event


def changed(event: EventRecord, change: Callable[[Envelope], Envelope]) -> EventRecord:
    """Return the event with another envelope."""
    known = Decoder().decode_event(event.value)
    assert isinstance(known, Event)
    return event._replace(value=encode_event(known._replace(envelope=change(known.envelope))))


def judge_log(stack: Stack, bench: Bench, log: RoundLog) -> EngineOutputs:
    """Let a processor judge a log with faults; return what it wrote."""
    reader, worker = BatchReader(log.kafka), Worker(stack, log.kafka)
    try:
        reader.wait_judged(log.events, lambda: stack.check_running(worker.child), bench.print_progress, STALL_S)
    finally:
        worker.stop()
        reader.close()
    return read_outputs(log.kafka, log.ends)


def test_the_audit_trail_is_the_same(kafka: KafkaSettings, tmp_path: Path, program: StreamsProgram) -> None:
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    workload = Workload(agent_runs(), concurrent=100)
    try:
        runs, outputs = measure_round(stack, bench, program, workload, 50, 60_000)
    finally:
        stack.stop()
    assert set(runs) == set(ENGINES)
    assert all(run.events_per_s > 0 and run.cpu_us > 0 and run.memory_bytes > 0 for run in runs.values())
    made = {record.transition for record in outputs.audit.values()}
    assert {"T01", "T02", "T03", "T04", "T05", "T10", "T11", "T12", "T13"} <= made
    assert outputs.cleanups
    assert outputs.rejected == 0


def test_rejections_gaps_and_duplicates_are_the_same(
    kafka: KafkaSettings, tmp_path: Path, program: StreamsProgram
) -> None:
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    try:
        log = make_log(stack, bench, FaultyWorkload(agent_runs(), concurrent=50), 20, 20_000)
        run_engine(stack, bench, program, log, "streams-memory")
        ours, theirs = judge_log(stack, bench, log), read_outputs(log.outputs["streams-memory"], log.ends)
    finally:
        stack.stop()
    assert find_differences(ours, theirs) == []
    rejected = {record.reason_code for record in ours.audit.values() if record.kind == "rejection"}
    assert {
        *("unknown_session", "stale_epoch", "future_epoch", "not_owner", "invalid_value"),
        *("version_conflict", "illegal_transition", "phase_order"),
    } <= rejected
    assert {"gap", "context_limit"} <= {record.kind for record in ours.audit.values()}
