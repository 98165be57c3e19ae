"""The events are legal, and the same for the same seed."""

from collections import Counter

from benchmarks.workload.events import Workload, agent_runs
from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import partition_of
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from tests.support.judges import JUDGE

EVENTS = 3_000


BEGAN_MS = 1_795_219_200_000


def test_the_same_seed_gives_the_same_bytes(workload: Workload) -> None:
    events = list(workload.event_stream(EVENTS))
    assert events == list(workload.event_stream(EVENTS))
    assert events == list(Workload(agent_runs(), seed=1, concurrent=40).event_stream(EVENTS))
    assert events[0] != next(Workload(agent_runs(), seed=2, concurrent=40).event_stream(1))


def test_the_judge_applies_every_event_and_archives_what_ended(workload: Workload) -> None:
    folds = [PartitionState(number, PartitionSettings("events", 4), Decoder(), JUDGE) for number in range(4)]
    for fold in folds:
        fold.finish_loading()
    batches = [fold.begin() for fold in folds]
    for number, event in enumerate(workload.event_stream(EVENTS)):
        partition = partition_of(event.key, 4)
        record = LogRecord(number, BEGAN_MS + number * 10, event.key, event.value, event.headers)
        assert batches[partition].apply(record)
    outcomes = [batch.finish() for batch in batches]
    assert [letter.reason for outcome in outcomes for _, letter in outcome.records_on("rejected")] == []
    assert sum(outcome.counts.applied for outcome in outcomes) == EVENTS
    moves = Counter(record.transition for outcome in outcomes for _, record in outcome.records_on("audit"))
    assert {"T01", "T02", "T04", "T05", "T10", "T11", "T13", "T14"} <= moves.keys()


def test_sessions_go_on_side_by_side(workload: Workload) -> None:
    assert len({event.key for event in workload.event_stream(EVENTS)}) > 40
