"""What a transaction's producer does while its records wait for a broker's answer."""

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import BatchResult, Counts, JudgedRecords
from sessionary.stream_processors.runtime import transaction
from sessionary.stream_processors.runtime.job import Job, PlainProduced, Transaction, processor_job
from sessionary.stream_processors.runtime.transaction import TransactionWriter
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import nothing_stored
from tests.support.mock_cluster import mock_cluster
from tests.support.waiting import wait_until

_ANSWER_MS, _STATISTICS_MS, _WAIT_S = 5, 100, 10.0
_TRANSACTIONS, _RECORDS, _BURST, _PAUSE_S = 5, 10_000, 50, 0.0002
_OUTCOME = BatchResult({}, (), Position(1, 0, 0, 1, 0), Counts(1, 0, 0, 0, 0, 0, 0, 0), JudgedRecords())


def test_a_thread_whose_records_wait_for_an_answer_does_not_poll_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a linger of 2 ms librdkafka's thread goes round four to seven times for each record.

    With ours it goes round 150 times in all, and thousands of times if the machine lets the thread
    that queues the records stand for longer than the linger.
    """
    rounds: dict[str, int] = {}  # of the thread of each broker

    def note_rounds(statistics: str) -> None:
        rounds.update((name, broker["wakeups"]) for name, broker in json.loads(statistics)["brokers"].items())

    monkeypatch.setattr(
        transaction,
        "Producer",
        lambda config, logger: Producer(
            {**config, "statistics.interval.ms": _STATISTICS_MS, "stats_cb": note_rounds}, logger=logger
        ),
    )
    with mock_cluster() as cluster:
        settings = ProcessorSettings(bootstrap_servers=cluster.bootstrap_servers)
        changelog = settings.topics.changelog
        cluster.create_topic(changelog, leaders=[1])
        product = processor_job(settings)
        job = Job(
            product.new_state,
            lambda partition, outcome, started_at, stored=nothing_stored: Transaction(_slow_records(changelog), {}),
            product.row_codec,
        )
        writer = TransactionWriter(settings, job, 0, lambda: True)
        writer.fence_former_owner()
        cluster.slow_down(1, _ANSWER_MS)
        for _ in range(_TRANSACTIONS):
            writer.write_result(_OUTCOME, 0)
        rounds.clear()
        wait_until(lambda: writer._producer.poll(0) >= 0 and rounds, _WAIT_S, "librdkafka's statistics")
        writer.discard()
    assert sum(rounds.values()) < _TRANSACTIONS * _RECORDS


def _slow_records(topic: str) -> Iterator[PlainProduced]:
    for n in range(_RECORDS):
        if n % _BURST == 0:
            time.sleep(_PAUSE_S)
        yield topic, b"key-%d" % n, b"row" * 50, None
