"""When a partition's last transaction was acknowledged, if no other one follows."""

import functools
import signal
from collections import Counter, defaultdict

from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import BatchAcknowledged, BatchRecord
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    Agent,
    Sender,
    agent_of_partition,
    count_judged,
    start_processor,
    wait_judged,
)
from tests.integration.test_processor_road import LASTING, SHORT
from tests.support import Processes, read_records, read_topic, wait_until


def read_both(kafka: KafkaSettings) -> tuple[list[BatchRecord], list[BatchAcknowledged]]:
    records = read_records(kafka, kafka.topics.batches)
    return (
        [record for record in records if isinstance(record, BatchRecord)],
        [record for record in records if isinstance(record, BatchAcknowledged)],
    )


def is_last_reported(kafka: KafkaSettings) -> bool:
    batches, reported = read_both(kafka)
    return bool(reported) and reported[-1].number == batches[-1].number


def test_a_worker_that_ends_reports_its_last_acknowledgements(kafka: KafkaSettings, processes: Processes) -> None:
    worker = start_processor(processes, kafka, "w1")
    sender, agent = Sender(kafka), Agent()
    sender.send(*agent.start())
    wait_judged(kafka, len(sender.flush()))
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    batches, reported = read_both(kafka)
    last = batches[-1]
    expected = [(last.partition, last.number, "w1")]
    assert [(one.partition, one.number, one.instance) for one in reported[-1:]] == expected
    assert all(one.acknowledged_at >= last.started_at for one in reported)


def test_an_idle_partition_reports_its_last_acknowledgement_while_its_worker_goes_on(
    kafka: KafkaSettings, processes: Processes
) -> None:
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


def records_by_partition(kafka: KafkaSettings) -> dict[int, list[BatchRecord | BatchAcknowledged]]:
    """Return the records of the topic of batches, in the order of each partition's log."""
    found: dict[int, list[BatchRecord | BatchAcknowledged]] = defaultdict(list)
    for record in read_records(kafka, kafka.topics.batches):
        assert isinstance(record, BatchRecord | BatchAcknowledged)
        found[record.partition].append(record)
    return found


def is_reported(kafka: KafkaSettings, partition: int, judged: int) -> bool:
    """Return whether so many records were judged, and the partition's last record is a report."""
    records = records_by_partition(kafka).get(partition, [])
    batches = [one for one in records if isinstance(one, BatchRecord)]
    if sum(one.applied + one.rejected for one in batches) < judged:
        return False
    return isinstance(records[-1], BatchAcknowledged) and records[-1].number == batches[-1].number


def test_reports_take_no_number_and_no_batch_is_reported_twice(kafka: KafkaSettings, processes: Processes) -> None:
    """An idle partition begins again, and stays idle while another one works and is reported."""
    start_processor(processes, kafka, "w1")
    sender, judged = Sender(kafka), Counter[int]()
    for partition in (0, 0, 1):
        events = agent_of_partition(partition, kafka.partitions).start(LASTING)
        sender.send(*events)
        sender.flush()
        judged[partition] += len(events)
        is_idle = functools.partial(is_reported, kafka, partition, judged[partition])
        wait_until(is_idle, 60, f"a report on partition {partition}", pause_s=0.3)
    # The report on partition 1 was due two seconds after its last transaction, and that began after
    # the last report on partition 0: so the worker had looked many times for more to report there.
    found = records_by_partition(kafka)
    assert found.keys() == {0, 1}
    for records in found.values():
        numbers = [one.number for one in records if isinstance(one, BatchRecord)]
        reports = [one.number for one in records if isinstance(one, BatchAcknowledged)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert reports == sorted(set(reports) & set(numbers))
    values, decoder = (stored.value or b"" for stored in read_topic(kafka, kafka.topics.batches)), Decoder()
    sizes = [len(value) for value in values if isinstance(decoder.decode_record(value), BatchAcknowledged)]
    assert 0 < max(sizes) <= 64
