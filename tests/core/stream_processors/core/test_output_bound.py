"""No transaction writes far more than the bound of a batch's output, whatever makes it large."""

from collections.abc import Iterator, Sequence

import pytest

from sessionary.schemas.records import Tombstone
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import DAY_MS, ChunkSizes
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import DECODER, SETTINGS, START_MS, OracleRig
from tests.support.event_factory import TICK, EventFactory, snapshot
from tests.support.judges import JUDGE
from tests.support.signing import with_signature

BOUND = PartitionSettings("t", 1).output_bytes_max
SESSIONS = 60
STATE_JSON = '{"a":"' + 200_000 * "a" + '"}'
ROW_BYTES = 2 * len(STATE_JSON)  # content and snapshot
JOB = processor_job(ProcessorSettings(partitions=1))


class Log:
    """A partition's log and its fold."""

    def __init__(self, settings: PartitionSettings = SETTINGS) -> None:
        self.fold = PartitionState(0, settings, DECODER, JUDGE)
        self.fold.finish_loading()
        self.records: list[LogRecord] = []
        self.at_ms = START_MS

    def append(self, key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        self.records.append(LogRecord(len(self.records), self.at_ms, key, value, headers))

    def fold_batches(self) -> Iterator[BatchResult]:
        """Fold the rest of the log; yield what each transaction writes."""
        while self.fold.position.next_offset < len(self.records):
            batch = self.fold.begin()
            for record in self.records[self.fold.position.next_offset :]:
                if not batch.apply(record):
                    break
            yield batch.finish()
            self.fold.merge(batch)

    def transaction_bytes(self) -> list[int]:
        """Fold the rest of the log; return the size of each transaction."""
        return [
            sum(len(key or b"") + len(value or b"") for _, key, value, _ in JOB.transaction(0, outcome, 0).records)
            for outcome in self.fold_batches()
        ]


def log_of_large_sessions() -> tuple[Log, list[EventFactory]]:
    log, agents = Log(), [EventFactory(f"s{n}") for n in range(SESSIONS)]
    for agent in agents:
        key = agent.key.encoded()
        log.append(key, agent.event_bytes("session_created", snapshot=snapshot("first", STATE_JSON)))
        for phase in ("validating", "connecting"):
            log.append(key, agent.event_bytes("session_phase_changed", phase=phase))
        log.append(key, agent.event_bytes("session_started"))
    return log, agents


def test_heartbeats_of_sessions_with_a_large_state_are_several_transactions() -> None:
    log, agents = log_of_large_sessions()
    assert max(log.transaction_bytes()) < BOUND + 2 * ROW_BYTES
    for agent in agents:
        log.append(agent.key.encoded(), agent.event_bytes("heartbeat"))
    assert sum(len(record.value or b"") for record in log.records[-SESSIONS:]) < 100_000
    sizes = log.transaction_bytes()
    assert sum(sizes) > SESSIONS * ROW_BYTES > BOUND
    assert max(sizes) < BOUND + ROW_BYTES
    assert len(sizes) == 2  # and not more than needed


def test_deadlines_of_sessions_with_a_large_state_are_several_transactions() -> None:
    log, _ = log_of_large_sessions()
    log.transaction_bytes()
    for _ in range(60):
        log.at_ms += 1_000
        log.append(None, TICK)
    outcomes = list(log.fold_batches())
    assert sum(outcome.counts.timers for outcome in outcomes) == SESSIONS
    assert max(len(outcome.rows) for outcome in outcomes) * ROW_BYTES < BOUND + 2 * ROW_BYTES


def test_a_row_that_is_touched_often_counts_once() -> None:
    log, agent = Log(), EventFactory()
    log.append(agent.key.encoded(), agent.event_bytes("session_created", snapshot=snapshot("first", STATE_JSON)))
    for phase in ("validating", "connecting"):
        log.append(agent.key.encoded(), agent.event_bytes("session_phase_changed", phase=phase))
    log.append(agent.key.encoded(), agent.event_bytes("session_started"))
    for _ in range(1_000):
        log.append(agent.key.encoded(), agent.event_bytes("heartbeat"))
    (size,) = log.transaction_bytes()
    assert ROW_BYTES < size < 2 * ROW_BYTES


def test_rejected_records_count_with_their_headers() -> None:
    log, agent = Log(), EventFactory()
    headers = [("trace", bytes(1 << 20))]
    for _ in range(40):
        log.append(agent.key.encoded(), agent.event_bytes("session_activity"), headers)
    sizes = log.transaction_bytes()
    assert sum(sizes) > 40 << 20
    assert max(sizes) < BOUND + (2 << 20)


def test_tasks_that_are_asked_for_again_count_with_their_inputs() -> None:
    """The event that asks is small, whatever it asks for."""
    log, (agent, *_) = log_of_large_sessions()
    key, size = agent.key.encoded(), 100_000
    for n in range(20):
        fields = {"mode": "detached", "task_type": "train", "input_json": f'"{size * "a"}"'}
        log.append(key, agent.event_bytes("run_queued", {"run_id": f"r{n}"}, **fields))
    log.transaction_bytes()
    for n in range(40):
        operator = EventFactory("s0", service="control-api", producer=f"operator-{n}")
        value = operator.event_bytes("requests_repeated")
        log.append(key, value, with_signature(key, value))
    sizes = log.transaction_bytes()
    assert sum(sizes) > 40 * 20 * size > BOUND
    assert max(sizes) < BOUND + 2 * 20 * size


@pytest.mark.parametrize("output_bytes_max", [1, 500, 1 << 20])
def test_tombstones_that_vanish_together_are_gone_before_a_record_is_judged(output_bytes_max: int) -> None:
    unpacked = SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=99))
    rig, agents = OracleRig(unpacked), [EventFactory(f"s{n}") for n in range(9)]
    for agent in agents:
        rig.start(agent)
        assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    rig.advance(301_000, step_ms=5_000)
    assert {type(row) for row in rig.fold.rows.values()} == {Tombstone}
    late = TOMBSTONE_MS + DAY_MS
    last = LogRecord(len(rig.log), rig.at + late, agents[-1].key.encoded(), agents[-1].event_bytes("session_activity"))
    log = Log(unpacked._replace(output_bytes_max=output_bytes_max))
    log.records = [*rig.log, last]
    outcomes = list(log.fold_batches())
    gone = [sum(row is None for row in outcome.rows.values()) for outcome in outcomes]
    assert sum(gone) == len(agents)
    assert max(gone) == {1: 1, 500: 4, 1 << 20: 9}[output_bytes_max]
    (rejected,) = (record for outcome in outcomes for _, record in outcome.records_on("rejected"))
    assert rejected.reason == "unknown_session"
    assert not log.fold.rows
