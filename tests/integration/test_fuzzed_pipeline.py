"""Fuzzed records on a real broker: nothing halts, each has its outcome, and valid ones go on.

A setting of the rules changes while the first half is folded. `FUZZED_RECORDS` in the
environment sets how many records there are. Records whose header names are not UTF-8 have a test of
their own, because reading them back would end this process.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Message, Producer

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.records import AuditRecord, BatchRecord, RejectedEvent
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from tests.core.record_fuzzer import FuzzedRecord
from tests.fuzz.fuzz_run import VERDICT, FuzzRun
from tests.integration.pipeline_rig import PipelineRig
from tests.integration.processor_load import (
    OUTAGE_GRACE_MS,
    OUTAGE_MS,
    Sender,
    agent_of_partition,
    count_judged,
    wait_caught_up,
)
from tests.integration.refold import refold
from tests.support.broken_headers import BrokenMessage
from tests.support.event_factory import TICK
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.waiting import wait_until

RECORDS = int(os.environ.get("FUZZED_RECORDS", "100000"))
SEED = 41
WORK_EVENTS = 5
OPERATOR = {"op": {"principal": "on-call", "roles": ["operator"]}}
# Reasons that need neither days of log time, nor sessions that are full, nor an operator.
QUICK_REASONS = {
    *("not_member", "broken_chain", "hash_mismatch", "producer_conflict", "owner_alive", "too_old", "unknown_run"),
    *("unknown_call", "call_in_progress", "call_succeeded", "unknown_artifact"),
}


class RecordedRun(FuzzRun):
    """A fuzz run that keeps its records: the rows of its own fold decide what comes next."""

    skipped_share = failed_share = 0.0  # the worker folds each record, and fails on none

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made: list[FuzzedRecord] = []

    def _build_rows(self, fuzzed: FuzzedRecord) -> None:
        super()._build_rows(fuzzed)  # some checks depend on the event's type
        self.made.append(fuzzed)


def recorded_run(seed: int, count: int) -> RecordedRun:
    run = RecordedRun(seed)
    run.fold_records(count)
    del run.made[count:]
    return run


def send_fuzzed(kafka: KafkaSettings, records: Sequence[FuzzedRecord]) -> None:
    """Send records to partition 0, in order. Large ones fit a batch because they are compressed."""
    producer = Producer(
        {
            **kafka.client_config(),
            "compression.type": "gzip",
            "message.max.bytes": 64 << 20,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
    )
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        errors.extend([error] if error is not None else ())

    for key, value, source, _ in records:
        headers: Any = None if isinstance(source, BrokenMessage) else source.headers()
        while True:
            try:
                producer.produce(kafka.topics.events, value, key, 0, headers=headers, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(300) == 0
    assert errors == []


class FoundOutcomes(NamedTuple):
    """What became of the records of a log, by offset."""

    rejected: Counter[tuple[int, int, str]]
    audited: Counter[tuple[int, int, int, str, str | None, str | None]]


def outcomes_of(rejected: Sequence[RejectedEvent], audits: Sequence[AuditRecord]) -> FoundOutcomes:
    return FoundOutcomes(
        Counter((one.source_partition, one.source_offset, one.reason) for one in rejected),
        Counter(
            # An agent's error code may be long, and is cut where a record would not fit its topic.
            (one.source_partition, one.source_offset, one.source_n, one.kind, one.transition, one.reason_code[:100])
            for one in audits
        ),
    )


def stored_outcomes(kafka: KafkaSettings) -> FoundOutcomes:
    rejected, audits = (read_records(kafka, topic) for topic in (kafka.topics.rejected, kafka.topics.audit))
    return outcomes_of(
        [one for one in rejected if isinstance(one, RejectedEvent)],
        [one for one in audits if isinstance(one, AuditRecord)],
    )


def refolded_outcomes(kafka: KafkaSettings, log: dict[int, list[LogRecord]]) -> FoundOutcomes:
    settings = PartitionSettings(kafka.topics.events, kafka.partitions, OUTAGE_MS, OUTAGE_GRACE_MS)
    trail = [one for one in read_records(kafka, kafka.topics.audit) if isinstance(one, AuditRecord)]
    expected = refold(log, settings, audits=trail)
    return outcomes_of(expected.rejected, expected.audits)


_DAYS = 31  # that finished runs are kept


def activate_rules(rig: PipelineRig) -> None:
    settings = OperatorSettings.model_validate({"control_url": rig.control_url, "operator_token": "op"})
    client = ControlApiClient(settings)

    def are_in_force() -> bool:
        try:
            partitions = client.activate_rules(NEWEST_RULES.version, _DAYS)["partitions"]
        except SessionaryError:  # a partition is busy
            return False
        return all(found["finished_run_days"] == _DAYS for found in partitions)

    wait_until(are_in_force, 300, "the setting in force", pause_s=0.5)


@pytest.mark.timeout(3_000)
def test_fuzzed_records_halt_nothing_and_valid_ones_go_on(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    rig = PipelineRig(kafka, clickhouse, processes)
    runs = [recorded_run(SEED, RECORDS // 2), recorded_run(SEED + 1, RECORDS // 2)]
    halves = [run.made for run in runs]
    records = [*halves[0], *halves[1]]
    judged = sum(not (record.key is None and record.value == TICK) for record in records)
    worker = rig.start_processor(
        outage_ms=str(OUTAGE_MS), outage_grace_ms=str(OUTAGE_GRACE_MS), api_tokens=json.dumps(OPERATOR)
    )
    rig.start_sinks(["history"])
    send_fuzzed(kafka, halves[0])
    # A slow worker must have judged enough of them before.
    wait_until(lambda: count_judged(kafka) >= 0.3 * RECORDS, 600, "a part to be judged before", pause_s=0.5)
    activate_rules(rig)
    send_fuzzed(kafka, halves[1])
    agents = [agent_of_partition(partition, kafka.partitions) for partition in range(kafka.partitions)]
    sender = Sender(kafka)
    for agent in agents:
        sender.send(*agent.start(), *(agent.work() for _ in range(WORK_EVENTS)))
    valid = len(sender.flush())
    wait_caught_up(kafka, 1_200)
    assert set(rig.partition_states().values()) == {"open"}, "no partition is halted"
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)

    stored = read_topic(kafka, kafka.topics.events)
    log: dict[int, list[LogRecord]] = {}
    batches = [one for one in read_records(kafka, kafka.topics.batches) if isinstance(one, BatchRecord)]
    ends = {batch.partition: batch.last_offset for batch in batches}
    for one in stored:
        if one.offset <= ends[one.partition]:
            log.setdefault(one.partition, []).append(
                LogRecord(one.offset, one.timestamp_ms, one.key, one.value, one.headers)
            )
    found = stored_outcomes(kafka)
    assert found == refolded_outcomes(kafka, log)
    judged_by_batches = sum(batch.applied + batch.duplicate + batch.rejected + batch.fenced_beats for batch in batches)
    assert judged_by_batches + sum(batch.ticks for batch in batches) == sum(map(len, log.values()))
    # A verdict of a quota counts as a tick, unless it is rejected.
    verdicts = sum(run.seen[VERDICT] for run in runs)
    assert 0 <= judged + valid - judged_by_batches <= verdicts < RECORDS / 40
    assert {reason for _, _, reason in found.rejected} >= QUICK_REASONS
    assert "internal_error" not in {reason for _, _, reason in found.rejected}
    assert sum(batch.rejected for batch in batches) == found.rejected.total() > judged / 3
    assert sum(batch.audited for batch in batches) == found.audited.total()
    last = Counter(batch.partition for batch in batches for _ in range(batch.applied))
    assert all(last[partition] >= 4 + WORK_EVENTS for partition in range(kafka.partitions))
    rejected_keys = {one.key for one in read_records(kafka, kafka.topics.rejected) if isinstance(one, RejectedEvent)}
    assert not rejected_keys & {agent.key.encoded() for agent in agents}

    wait_until(lambda: rig.lag(f"{kafka.topic_prefix}.sink.history", kafka.topics.events) == 0, 120, "the history")
    ((rows,),) = rig.sql("SELECT count() FROM {db}.history FINAL")
    letters = [one for one in read_records(kafka, kafka.topics.sink_rejected) if isinstance(one, RejectedEvent)]
    # A number may decode and exceed its column: such a record is a dead letter, with all its bytes.
    assert int(rows) + len(letters) == len(stored)
    assert len({one.source_offset for one in letters}) == len(letters) < len(stored) / 1_000
    assert {one.value for one in letters} <= {record.value for record in records}
