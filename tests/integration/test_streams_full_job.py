"""The program on Kafka Streams judges as the processor does: also what has to be rejected."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

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
from sessionary.schemas.events import (
    Heartbeat,
    MessageAppended,
    ProgressReported,
    SessionActivity,
    SessionCreated,
    SessionStarted,
    ToolCallFailed,
    ToolCallStarted,
    UsageRecorded,
)
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.limits import NUMBER_MAX
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.sequencing import PRODUCERS_MAX, RANGES_MAX
from tests.support.reading import read_records

STALL_S = 120.0
LATE_BY = 200  # events
GAPS, PRODUCERS = RANGES_MAX + 4, PRODUCERS_MAX + 6


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> StreamsProgram:
    return build_program(tmp_path_factory.mktemp("program"))


class FaultyWorkload(Workload):
    """Some events are missing, late, doubled or wrong; some sessions have very short limits."""

    def event_stream(self, events: int) -> Iterator[EventRecord]:
        """Yield `events` events."""
        yielded, late = 0, deque[tuple[int, EventRecord]]()
        for n, event in enumerate(super().event_stream(2 * events)):
            if n % 97 == 13:
                if n & 1:
                    late.append((n + LATE_BY, event))
                continue
            due = [late.popleft()[1]] if late and late[0][0] <= n else []
            for faulty in (*with_faults(n, event), *due):
                yield faulty
                yielded += 1
                if yielded == events:
                    return


def with_faults(n: int, event: EventRecord) -> Iterator[EventRecord]:
    """Yield what becomes of the n-th event."""
    known = event_of(event)
    if isinstance(known.payload, SessionCreated):
        yield from too_old_sessions(n, event)
        event = changed(event, shorten_limits)
    fault = next((fault for divisor, fault in FAULTS.items() if n % divisor == 5), None)
    if fault is not None:
        event = changed(event, fault)
    yield event
    if n % 89 == 7:
        yield event
    if n % 101 == 7:
        yield changed(event, lambda one: of_envelope(one, event_id=f"{one.envelope.event_id}-2"))
    if n % 47 == 7:
        yield changed(event, lambda one: beat_of(one, n % 3 - 1))
    if isinstance(known.payload, SessionStarted) and n % 4 == 0:
        yield from foreign_activities(event)


def too_old_sessions(n: int, created: EventRecord) -> Iterator[EventRecord]:
    """Yield now and then a session whose id says that it was made in 2022."""
    if n % 5 == 0:
        key = SessionKey(event_of(created).envelope.tenant_id, f"01800000-0000-7000-8000-{n:012x}")
        yield changed(created, lambda one: of_envelope(one, session_id=key.session_id))._replace(key=key.encoded())


def foreign_activities(started: EventRecord) -> Iterator[EventRecord]:
    """Yield more gaps, and events of more producers, than a session's ledgers list."""
    for seq in (*range(1, 2 * GAPS, 2), 3, 4, 2 * GAPS - 2):
        yield changed(started, partial(activity_of, producer_id="jumping", seq=seq))
    for n in (*range(PRODUCERS), 0):
        yield changed(started, partial(activity_of, producer_id=f"producer-{n}", seq=1))


def activity_of(event: Event, producer_id: str, seq: int) -> Event:
    changes = {"event_type": "session_activity", "producer_id": producer_id, "producer_seq": seq}
    return of_envelope(event, event_id=f"{producer_id}-{seq}", **changes)._replace(payload=SessionActivity("work"))


def beat_of(event: Event, epoch: int) -> Event:
    """Return a heartbeat; `epoch` is added to the event's."""
    changes = {"event_type": "heartbeat", "producer_seq": 0, "epoch": event.envelope.epoch + epoch}
    return of_envelope(event, **changes)._replace(payload=Heartbeat(1))


def shorten_limits(event: Event) -> Event:
    """Let sessions of two kinds end by their clocks, and calls of a third one."""
    assert isinstance(event.payload, SessionCreated)
    limits, kind = event.payload.limits, int(event.envelope.session_id[-1], 16)
    if kind < 4:
        limits = limits._replace(archive_delay_ms=1, release_limit_ms=1, hold_ms=1)
    elif kind < 8:
        limits = limits._replace(model_ms=1, tool_ms=1, network_ms=1, grace_ms=2, override=True)
    elif kind < 12:
        limits = limits._replace(tool_ms=1, recovery_ms=1, context_limit_bytes=1_000, override=kind != 8)
    return event._replace(payload=event.payload._replace(limits=limits))


def with_bad_values(event: Event) -> Event:
    """Return an event whose payload has a value that is wrong, if it has one that can be."""
    payload: Any = event.payload
    if isinstance(payload, MessageAppended):
        payload = payload._replace(content="é" * 17_000)
    elif isinstance(payload, UsageRecorded):
        payload = payload._replace(tokens_in=-1)
    elif isinstance(payload, ProgressReported):
        payload = payload._replace(progress=math.inf)
    elif isinstance(payload, ToolCallStarted):
        payload = payload._replace(try_number=2)
    elif isinstance(payload, ToolCallFailed):
        payload = payload._replace(error=payload.error._replace(code="x" * 257))
    elif getattr(payload, "snapshot", None) is not None:
        payload = payload._replace(snapshot=payload.snapshot._replace(content_hash="0" * 64))
    return event._replace(payload=payload)


def of_envelope(event: Event, **changes: Any) -> Event:
    """Return the event with other values in its envelope."""
    return event._replace(envelope=event.envelope._replace(**changes))


# By a number that no other one divides; at most one fault has an event.
FAULTS: Mapping[int, Callable[[Event], Event]] = {
    71: lambda event: of_envelope(event, epoch=event.envelope.epoch + 1),
    73: lambda event: of_envelope(event, epoch=event.envelope.epoch - 1),
    79: lambda event: of_envelope(event, service_id="other-service"),
    83: lambda event: of_envelope(event, producer_seq=0),
    61: lambda event: of_envelope(event, context_bytes=300_000_000),
    103: lambda event: of_envelope(event, producer_seq=NUMBER_MAX + 1),
    107: lambda event: of_envelope(event, agent_role="x" * 257),
    109: lambda event: of_envelope(event, tenant_id="other-tenant"),
    113: lambda event: of_envelope(event, session_id="00000000-0000-4000-8000-000000000001"),
    127: lambda event: of_envelope(event, producer_id="-"),
    131: lambda event: of_envelope(event, data_classes=("personal", "medical")),
    31: with_bad_values,
}


def event_of(record: EventRecord) -> Event:
    """Return a record's event."""
    known = Decoder().decode_event(record.value)
    assert isinstance(known, Event)
    return known


def changed(record: EventRecord, change: Callable[[Event], Event]) -> EventRecord:
    """Return a record with another event."""
    return record._replace(value=encode_event(change(event_of(record))))


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


def read_rejected(kafka: KafkaSettings) -> Mapping[tuple[int, int], RejectedEvent]:
    """Return the rejected events by partition and offset."""
    found = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    by_place = {(record.source_partition, record.source_offset): record for record in found}
    assert len(by_place) == len(found)
    return by_place


def test_rejections_gaps_duplicates_and_deadlines_are_the_same(
    kafka: KafkaSettings, tmp_path: Path, program: StreamsProgram
) -> None:
    bench = Bench(Options(quick=True))
    stack = Stack(bench, tmp_path, kafka.bootstrap_servers)
    try:
        log = make_log(stack, bench, FaultyWorkload(agent_runs(), concurrent=50), 20, 40_000)
        run_engine(stack, bench, program, log, "streams-memory")
        ours, theirs = judge_log(stack, bench, log), read_outputs(log.outputs["streams-memory"], log.ends)
        rejected = read_rejected(log.kafka)
        assert rejected == read_rejected(log.outputs["streams-memory"])
    finally:
        stack.stop()
    assert find_differences(ours, theirs) == []
    assert {
        *("unknown_session", "session_archived", "too_old", "invalid_limits", "unknown_cleanup", "unknown_call"),
        *("foreign_tenant", "key_mismatch", "not_owner", "not_member", "invalid_value", "hash_mismatch"),
        *("stale_epoch", "future_epoch", "late", "late_filler", "producer_conflict"),
        *("version_conflict", "illegal_transition", "phase_order"),
    } <= {record.reason for record in rejected.values()}
    assert {"transition", "rejection", "gap", "context_limit", "limits_override", "tool_call", "release"} <= {
        record.kind for record in ours.audit.values()
    }
    assert {"T06", "T08", "T09", "T14"} <= {record.transition for record in ours.audit.values()}
    assert any("its snapshot is left out" in record.reason for record in ours.audit.values())
