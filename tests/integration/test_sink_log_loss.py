"""A sink whose log lost records, or is another one, on the real broker and the real engine."""

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.ports import free_port
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import query_numbers, rows_equal, settings_for, sink_in_thread
from tests.integration.test_integrity_command import produce_ticks
from tests.integration.test_sinks_flow import scrape_metrics
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import make_topic_again, run_sql
from tests.support.waiting import wait_until

_DISTINCT = "uniqExactIf(source_offset, source_partition = {})"
_COUNTS = f"SELECT {_DISTINCT.format(1)}, {_DISTINCT.format(2)} FROM {{db}}.history"


def is_blocked(settings: SinkSettings, partition: int, reason: str) -> bool:
    group = settings.group_id("history")
    labels = f'group="{group}",partition="{partition}",reason="{reason}",sink="history"'
    return f"sessionary_sink_partition_blocked{{{labels}}} 1.0" in scrape_metrics(settings)


def store_first_rows(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> SinkSettings:
    """Let a sink store three records of partition 1; return its settings."""
    make_tables(clickhouse)
    settings = settings_for(kafka, clickhouse, metrics_port=free_port())
    produce_ticks(kafka, 1, 3)
    with sink_in_thread("history", settings):
        wait_until(rows_equal(clickhouse, _COUNTS, [3, 0]), 60, "the first rows")
    return settings


def test_records_deleted_before_they_were_read_halt_their_partition_and_no_other(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    settings = store_first_rows(kafka, clickhouse)
    produce_ticks(kafka, 1, 4)
    place = TopicPartition(kafka.topics.events, 1, 5)
    admin = AdminClient(kafka.client_config())  # the answer needs it
    admin.delete_records([place])[place].result(120)
    produce_ticks(kafka, 2, 2)
    with sink_in_thread("history", settings):
        wait_until(lambda: is_blocked(settings, 1, "log_gap"), 60, "the partition to be blocked")
        wait_until(rows_equal(clickhouse, _COUNTS, [3, 2]), 60, "the other partition's rows")
        assert "partition 1: log_gap" in scrape_metrics(settings, "/healthz")
    accepting = settings.model_copy(update={"sink_accept_gaps": "1"})
    with sink_in_thread("history", accepting):
        wait_until(rows_equal(clickhouse, _COUNTS, [5, 2]), 60, "the rows after the gap")


def test_a_topic_that_was_made_again_halts_its_partitions(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> None:
    settings = store_first_rows(kafka, clickhouse)
    make_topic_again(kafka, kafka.topics.events)
    produce_ticks(kafka, 1, 5)
    with sink_in_thread("history", settings):
        wait_until(lambda: is_blocked(settings, 1, "topic_replaced"), 60, "the partition to be halted")
    accepting = settings.model_copy(update={"sink_accept_gaps": "0,1,2,3"})
    with sink_in_thread("history", accepting):
        wait_until(rows_equal(clickhouse, _COUNTS, [5, 0]), 60, "rows of the new topic")
    # They have the offsets of the former topic's rows, and replace none of them.
    run_sql(clickhouse, f"OPTIMIZE TABLE {clickhouse.clickhouse_database}.history FINAL")
    assert query_numbers(clickhouse, "SELECT count(), uniqExact(topic_id) FROM {db}.history") == [8, 2]


def test_a_copy_of_a_topic_is_read_on_where_the_former_one_was_left(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    settings = store_first_rows(kafka, clickhouse)
    make_topic_again(kafka, kafka.topics.events)
    produce_ticks(kafka, 1, 5)  # the first three are the copied ones
    copy = ask_topic_id(AdminConnection(kafka), kafka.topics.events, 60)
    accepting = settings.model_copy(update={"sink_accept_topics": copy})
    with sink_in_thread("history", accepting):
        wait_until(rows_equal(clickhouse, _COUNTS, [5, 0]), 60, "the rows of the new topic")
    assert query_numbers(clickhouse, "SELECT count(), uniqExact(topic_id) FROM {db}.history") == [5, 2]
    make_topic_again(kafka, kafka.topics.events)
    produce_ticks(kafka, 1, 9)
    with sink_in_thread("history", accepting):  # the copy was accepted, this topic was not
        wait_until(lambda: is_blocked(settings, 1, "topic_replaced"), 60, "the partition to be halted")
