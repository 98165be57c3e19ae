"""When a partition's last transaction was acknowledged, if no other one follows."""

import signal

import pytest

from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import BatchAcknowledged, BatchRecord
from sessionary.schemas.rules import FIRST_RULES, NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import RuleSet
from tests.integration.processor_load import Agent, Sender, begin_with, count_judged, start_processor, wait_judged
from tests.integration.test_processor_road import SHORT
from tests.support import Processes, read_records, wait_until


def read_both(kafka: KafkaSettings) -> tuple[list[BatchRecord], list[BatchAcknowledged]]:
    records = read_records(kafka, kafka.topics.batches)
    return (
        [record for record in records if isinstance(record, BatchRecord)],
        [record for record in records if isinstance(record, BatchAcknowledged)],
    )


def is_last_reported(kafka: KafkaSettings) -> bool:
    batches, reported = read_both(kafka)
    return bool(reported) and reported[-1].number == batches[-1].number


@pytest.mark.parametrize("rules", [FIRST_RULES, NEWEST_RULES], ids=lambda rules: f"rules {rules.version}")
def test_a_worker_that_ends_reports_its_last_acknowledgements(
    kafka: KafkaSettings, processes: Processes, rules: RuleSet
) -> None:
    begin_with(kafka, rules)
    worker = start_processor(processes, kafka, "w1")
    sender, agent = Sender(kafka), Agent()
    sender.send(*agent.start())
    wait_judged(kafka, len(sender.flush()))
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    batches, reported = read_both(kafka)
    last = batches[-1]
    expected = [(last.partition, last.number, "w1")] if rules.version >= 2 else []
    assert [(one.partition, one.number, one.instance) for one in reported[-1:]] == expected
    assert all(one.acknowledged_at >= last.started_at for one in reported)


def test_an_idle_partition_reports_its_last_acknowledgement_while_its_worker_goes_on(
    kafka: KafkaSettings, processes: Processes
) -> None:
    begin_with(kafka, NEWEST_RULES)
    start_processor(processes, kafka, "w1")
    sender, agent = Sender(kafka), Agent()
    partition = partition_of(agent.key.encoded(), kafka.partitions)
    sender.send(*agent.start(SHORT))
    wait_judged(kafka, len(sender.flush()))
    # While the session lives, ticks keep the partition busy. It times out and is archived.
    # On a busy machine it may be idle for a moment before: then an earlier batch is reported too.
    wait_until(lambda: is_last_reported(kafka), 60, "the last batch's acknowledgement", pause_s=0.3)
    assert {one.partition for one in read_both(kafka)[1]} == {partition}
    assert count_judged(kafka) == len(sender.places)
