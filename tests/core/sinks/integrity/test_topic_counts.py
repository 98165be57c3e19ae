"""Requests against the counts of transactions; `tests/integration` has the servers."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sessionary.sinks.integrity import topic_counts
from sessionary.sinks.integrity.landed_ends import EndFault, without_dismissed
from sessionary.sinks.integrity.topic_counts import (
    TopicComparison,
    TransactionId,
    WrittenCount,
    compare_topics,
    find_count_faults,
)
from sessionary.sinks.settings import SinkGroupSettings
from tests.core.sinks.integrity.fake_topics import FakeBatches, FakeMessage, FakeTopics

HOUR_S = 3_600
PARTITIONS = 4


def faults_of(wanted: dict[TransactionId, int], found: dict[TransactionId, int]) -> list[EndFault]:
    """Transaction n judged the offsets 10 n to 10 n + 9."""
    counts = {place: WrittenCount(records, 10 * place[1], 10 * place[1] + 9) for place, records in wanted.items()}
    return list(find_count_faults("cleanup", counts, found))


def test_missing_and_doubled_records_of_neighbours_are_summed() -> None:
    wanted = {(0, 1): 1, (0, 2): 3, (0, 3): 1, (1, 1): 2, (1, 2): 1, (2, 5): 0, (2, 6): 1}
    found = {(0, 1): 1, (0, 2): 1, (1, 1): 5, (1, 2): 1, (2, 5): 2}
    assert faults_of(wanted, found) == [
        EndFault("cleanup_missing", 0, 3, 20, 39),
        EndFault("cleanup_doubled", 1, 3, 10, 19),
        EndFault("cleanup_doubled", 2, 2, 50, 59),
        EndFault("cleanup_missing", 2, 1, 60, 69),
    ]


def test_transactions_whose_records_are_there_part_the_faults_beside_them() -> None:
    wanted = {(0, 1): 1, (0, 2): 0, (0, 3): 1, (0, 5): 1, (0, 8): 2, (0, 9): 0}
    assert faults_of(wanted, {(0, 5): 1, (0, 9): 1}) == [
        EndFault("cleanup_missing", 0, 2, 10, 39),
        EndFault("cleanup_missing", 0, 2, 80, 89),
        EndFault("cleanup_doubled", 0, 1, 90, 99),
    ]


def test_what_is_counted_and_there_is_no_fault_and_other_transactions_are_not_compared() -> None:
    assert faults_of({(0, 1): 1, (0, 2): 0}, {(0, 1): 1, (0, 3): 7, (4, 1): 1}) == []


def test_a_dismissed_fault_covers_those_within_it_and_none_that_grew() -> None:
    dismissed = [{"fault": "cleanup_missing", "partition": 1, "rows": 2, "first": 10, "last": 39}]
    fault = EndFault("cleanup_missing", 1, 2, 10, 39)
    covered = [fault, fault._replace(rows=1), fault._replace(first_offset=20, last_offset=29)]
    others = [
        fault._replace(rows=3),
        fault._replace(first_offset=9),
        fault._replace(last_offset=40),
        fault._replace(partition=2),
        fault._replace(fault="tasks_missing"),
    ]
    assert without_dismissed([*covered, *others], lambda _: dismissed) == others
    assert without_dismissed(others, lambda _: []) == others


class Pipeline:
    """A pipeline `p` of four partitions, whose transactions began two hours ago unless named."""

    def __init__(self) -> None:
        self.now_s = time.time()
        self.topics, self.batches = FakeTopics(), FakeBatches(self.now_s)

    def write(self, number: int, *, age_s: float = 2 * HOUR_S, lost: bool = False, **counts: int) -> None:
        """Let transaction `number` of partition 1 write records, or lose them."""
        self.batches.add(1, number, self.now_s - age_s, **counts)
        for topic, records in counts.items():
            for _ in range(0 if lost else records):
                self.topics.append(f"p.{topic}", 1, (1, number), self.now_s - age_s)

    def compare(self, since_s: int = 0, timeout_s: float = 60.0) -> TopicComparison:
        settings = SinkGroupSettings(topic_prefix="p", partitions=PARTITIONS)
        return compare_topics(settings, self.batches.fetch_rows, since_s, 120, timeout_s)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    made = Pipeline()
    monkeypatch.setattr(topic_counts, "AdminConnection", lambda _: made.topics)
    monkeypatch.setattr(topic_counts, "Consumer", lambda _: made.topics)
    return made


def test_a_topic_that_may_not_be_read_hides_no_fault_of_the_others(pipeline: Pipeline) -> None:
    pipeline.write(1, cleanup=1, tasks=1, migrations=1, quotas=1)
    pipeline.write(2, cleanup=1, tasks=1, migrations=1, lost=True)
    pipeline.topics.refused["p.tasks"] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    found = pipeline.compare()
    assert found.faults == [EndFault(f"{topic}_missing", 1, 1, 20, 29) for topic in ("cleanup", "migrations")]
    [note] = [note for note in found.notes if "is not compared" in note]
    assert note.startswith("p.tasks is not compared: ")
    assert "uthoriz" in note


def test_a_partition_without_a_leader_hides_no_fault_of_the_others(pipeline: Pipeline) -> None:
    pipeline.write(1, cleanup=1, lost=True)
    for place in (("p.cleanup", 0), ("p.cleanup", 3), ("p.quotas", 2)):
        pipeline.topics.refused[place] = KafkaError.LEADER_NOT_AVAILABLE
    found = pipeline.compare()
    assert found.faults == [EndFault("cleanup_missing", 1, 1, 10, 19)]
    assert any(note.startswith("p.cleanup, partition 0, 3, is not compared: ") for note in found.notes)
    # A notice of any transaction may be in any partition.
    assert any(note.startswith("p.quotas is not compared: partition 2: ") for note in found.notes)


def test_transactions_are_read_back_to_where_the_topics_begin(pipeline: Pipeline) -> None:
    pipeline.write(1, age_s=30 * 24 * HOUR_S, cleanup=1, lost=True)
    pipeline.write(2, age_s=10 * HOUR_S, cleanup=1, lost=True)
    for topic in topic_counts.COUNTED_TOPICS:
        for partition in range(PARTITIONS):
            pipeline.topics.starts[f"p.{topic}", partition] = 5
    assert pipeline.compare().faults == [EndFault("cleanup_missing", 1, 1, 20, 29)]
    assert pipeline.batches.scanned
    assert all(numbers == [2] for numbers in pipeline.batches.scanned)


def test_what_landed_after_the_beginning_is_not_compared(pipeline: Pipeline) -> None:
    """Its records may be behind the ends that were read."""
    pipeline.write(1, cleanup=1, lost=True)
    pipeline.write(2, age_s=200, cleanup=1, lost=True)
    late = pipeline.batches.rows.pop()
    pipeline.batches.rows.append(late._replace(landed_s=pipeline.now_s - 119))
    assert pipeline.compare().faults == [EndFault("cleanup_missing", 1, 1, 10, 19)]


def test_records_of_transactions_that_count_none_are_found_in_few_queries(pipeline: Pipeline) -> None:
    for number in range(1, 12_001):
        pipeline.write(number, tasks=1)
    for number in (7, 12_001):
        pipeline.topics.append("p.cleanup", 1, (1, number), pipeline.now_s)
    pipeline.batches.add(1, 12_001, pipeline.now_s - HOUR_S)
    assert pipeline.compare().faults == [EndFault("cleanup_doubled", 1, 2, 70, 120_019)]
    assert len(pipeline.batches.scanned) <= 4


@pytest.mark.parametrize(
    ("start", "retention"), [(5, {"retention.ms": "604800000"}), (5, {"retention.ms": "-1"}), (0, {}), (5, {})]
)
def test_what_a_topic_had_to_delete_before_a_change_is_not_missing(
    pipeline: Pipeline, start: int, retention: dict[str, str]
) -> None:
    """Its retention was raised, or it was made anew: its first record is two days old."""
    pipeline.topics.config = {"retention.bytes": "-1", **retention}
    pipeline.topics.starts["p.cleanup", 1] = start
    pipeline.write(1, age_s=72 * HOUR_S, cleanup=1, lost=True)
    pipeline.write(2, age_s=48 * HOUR_S, cleanup=1)
    pipeline.write(3, age_s=47 * HOUR_S, cleanup=1, lost=True)
    found = pipeline.compare()
    assert found.faults == [EndFault("cleanup_missing", 1, 1, 30, 39)]
    assert any(note.startswith("p.cleanup is compared from ") for note in found.notes)


def test_a_topic_without_records_is_compared_for_a_day_unless_it_keeps_them_for_less(pipeline: Pipeline) -> None:
    pipeline.topics.starts["p.cleanup", 1] = 5
    pipeline.write(1, age_s=25 * HOUR_S, cleanup=1, lost=True)
    pipeline.write(2, age_s=23 * HOUR_S, cleanup=1, lost=True)
    assert pipeline.compare().faults == [EndFault("cleanup_missing", 1, 1, 20, 29)]
    pipeline.topics.config["retention.ms"] = str(22 * HOUR_S * 1_000)
    assert pipeline.compare().faults == []
    pipeline.topics.config.clear()  # who asks may not know it
    found = pipeline.compare()
    assert found.faults == []
    assert any(note.startswith("p.cleanup, partition 1, is not compared: it deleted records") for note in found.notes)


def test_of_a_time_all_is_compared_if_older_records_are_still_there(pipeline: Pipeline) -> None:
    for number, lost in ((1, False), (2, True), (3, False)):
        pipeline.write(number, age_s=(72 - number) * HOUR_S, cleanup=1, lost=lost)
    since_s = int(pipeline.now_s) - 70 * HOUR_S - 60
    assert pipeline.compare(since_s).faults == [EndFault("cleanup_missing", 1, 1, 20, 29)]


def test_a_log_of_which_nothing_arrives_is_given_up_and_the_others_are_compared(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_counts, "SILENT_S", 0.01)
    for number in (1, 2):
        pipeline.write(number, cleanup=1, tasks=1)
    pipeline.topics.records["p.cleanup", 1].pop()
    pipeline.topics.silent.add(("p.tasks", 1))
    found = pipeline.compare(timeout_s=10.0)
    assert found.faults == [EndFault("cleanup_missing", 1, 1, 20, 29)]
    assert any(note == "p.tasks, partition 1, is not compared: Kafka sent nothing for 0.01 s" for note in found.notes)


def test_a_follower_s_earlier_end_is_not_the_end(pipeline: Pipeline) -> None:
    for number in (1, 2):
        pipeline.write(number, cleanup=1)
    early = FakeMessage(("p.cleanup", 1), 1, code=KafkaError._PARTITION_EOF)
    pipeline.topics.answers = [[early]]
    assert pipeline.compare().faults == []


def test_what_an_open_transaction_hides_is_not_missing(pipeline: Pipeline) -> None:
    """One on quotas hides notices of every partition; one that has just begun hides nothing old."""
    for number in (1, 2, 3):
        pipeline.write(number, cleanup=1, quotas=1)
    pipeline.topics.opened["p.quotas", 1] = 1
    found = pipeline.compare()
    assert found.faults == []
    assert any("a transaction is open at offset 1, and hides what follows" in note for note in found.notes)
    pipeline.topics.opened = {("p.quotas", 1): 3}
    pipeline.topics.append("p.quotas", 1, (1, 4), pipeline.now_s)
    pipeline.topics.records["p.cleanup", 1].pop()
    assert pipeline.compare().faults == [EndFault("cleanup_missing", 1, 1, 30, 39)]


@pytest.mark.parametrize("topic", ["audit", "rejected"])
def test_what_a_sink_reads_is_compared_with_its_topic_too(pipeline: Pipeline, topic: str) -> None:
    counts: dict[str, Any] = {topic: 2}
    for number in (1, 2, 3):
        pipeline.write(number, **counts)
    pipeline.topics.records[f"p.{topic}", 1].pop(2)
    pipeline.topics.append(f"p.{topic}", 1, (1, 3), pipeline.now_s)
    assert pipeline.compare().faults == [
        EndFault(f"{topic}_topic_missing", 1, 1, 20, 29),
        EndFault(f"{topic}_topic_doubled", 1, 1, 30, 39),
    ]
    settings = SinkGroupSettings(topic_prefix="p", partitions=PARTITIONS)
    requests = compare_topics(settings, pipeline.batches.fetch_rows, topics=topic_counts.REQUEST_TOPICS)
    assert requests.faults == []
    assert f"{topic}_topic_missing" in topic_counts.count_faults(topic_counts.COUNTED_TOPICS)


def test_outputs_that_name_no_transaction_are_not_missing(pipeline: Pipeline) -> None:
    """Those of an older release; what followed them by some minutes is compared."""
    pipeline.write(1, age_s=3 * HOUR_S, audit=1, lost=True)
    pipeline.topics.append("p.audit", 1, None, pipeline.now_s - 3 * HOUR_S)
    pipeline.write(2, audit=1)
    pipeline.write(3, age_s=HOUR_S, audit=1, lost=True)
    found = pipeline.compare()
    assert found.faults == [EndFault("audit_topic_missing", 1, 1, 30, 39)]
    assert any(note.startswith("p.audit is compared from ") for note in found.notes)
