"""Foreign producers write events in transactions: aborted, and open for long."""

import itertools

from confluent_kafka import Producer

from sessionary.infra.local.ports import free_port
from sessionary.schemas.ids import partition_of
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.runtime.log_probe import probe_log
from sessionary.stream_processors.settings import ProcessorSettings
from tests.integration.processor_load import Agent, Sender, count_judged, start_processor
from tests.integration.sink_rig import query_numbers, rows_equal, settings_for, sink_in_thread
from tests.support import Processes, read_topic, wait_until
from tests.support.metrics_page import read_page
from tests.support.migrated_tables import make_tables

_HISTORY = "SELECT countIf(session_id != ''), countIf(value_bytes = 'foreign') FROM {db}.history FINAL"
_names = itertools.count(1)
_SEND_S = 120.0


def open_transaction(kafka: KafkaSettings, *places: tuple[int, bytes]) -> Producer:
    """Write `foreign` to partitions under keys, in a transaction that stays open."""
    producer = Producer(
        {
            **kafka.client_config(),
            "transactional.id": f"{kafka.topic_prefix}-foreign-{next(_names)}",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(_SEND_S)
    producer.begin_transaction()
    for partition, key in places:
        producer.produce(kafka.topics.events, b"foreign", key, partition)
    assert producer.flush(_SEND_S) == 0
    return producer


def test_what_a_foreign_producer_aborted_is_judged_by_no_processor_and_in_no_history(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    make_tables(clickhouse)
    agent, sender = Agent(), Sender(kafka)
    key = agent.key.encoded()
    place = partition_of(key, kafka.partitions), key
    sender.send(*agent.start())
    sender.flush()
    open_transaction(kafka, place, place).abort_transaction(_SEND_S)
    open_transaction(kafka, place).commit_transaction(_SEND_S)
    sender.send(agent.work())
    sender.flush()
    start_processor(processes, kafka, "w1")
    with sink_in_thread("history", settings_for(kafka, clickhouse)):
        wait_until(lambda: count_judged(kafka) == 6, 30, "the committed records are judged")
        wait_until(rows_equal(clickhouse, _HISTORY, [6, 1]), 30, "their history rows")
    assert len(read_topic(kafka, kafka.topics.rejected)) == 1
    assert query_numbers(clickhouse, _HISTORY) == [6, 1]


def test_a_partition_that_an_open_transaction_holds_up_is_named_until_it_ends(
    kafka: KafkaSettings, processes: Processes
) -> None:
    port = free_port()
    worker = start_processor(processes, kafka, "w1", api_port=str(port))
    agent, sender = Agent(), Sender(kafka)
    key = agent.key.encoded()
    partition = partition_of(key, kafka.partitions)
    sender.send(*agent.start())
    sender.flush()
    wait_until(lambda: count_judged(kafka) == 4, 30, "the worker is at work")
    foreign = open_transaction(kafka, (partition, key))
    sender.send(agent.work())
    sender.flush()

    def metrics() -> str:
        return read_page(f"http://127.0.0.1:{port}/metrics")[1]

    held = f'sessionary_processor_held_records{{partition="{partition}"}}'
    wait_until(lambda: held in metrics(), 30, "the metric")
    said = f"partition {partition} is held up at offset"
    wait_until(lambda: said in worker.log.read_text(), 60, "the line in the log")
    assert count_judged(kafka) == 4
    foreign.abort_transaction(_SEND_S)
    wait_until(lambda: count_judged(kafka) == 5, 30, "the event behind it is judged")
    wait_until(lambda: held not in metrics(), 30, "the metric is gone")


def test_behind_a_position_are_no_records_if_all_of_them_were_aborted(kafka: KafkaSettings) -> None:
    settings = ProcessorSettings(**kafka.model_dump())
    open_transaction(kafka, (0, b"k"), (0, b"k")).abort_transaction(_SEND_S)
    log = probe_log(settings, 0, 0)
    assert log.end_offset > 0
    assert log.first_offset is None
