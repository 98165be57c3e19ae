"""A running exporter serves every metric of lag, and records, commits and rows move them."""

import itertools
import time
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.lag.metrics import HELP
from sessionary.schemas.codec import encode_record
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.sink_rig import produce_records
from tests.integration.test_lag import running_exporter
from tests.support.clickhouse_rows import insert_records
from tests.support.metrics_page import metric_values, read_page
from tests.support.pipelines import run_sql
from tests.support.sink_records import audit_record
from tests.support.waiting import wait_until

_RECORDS = 5_000
_STEP = 5


def test_an_exporter_serves_every_metric_and_the_pipeline_moves_them(
    kafka: KafkaSettings, tables: ClickHouseSettings
) -> None:
    """A member of a sink's group commits a few records a round: it has a lag that shrinks."""
    topic, moved = kafka.topics.audit, set[str]()
    produce_records(kafka, topic, [(0, b"record")] * _RECORDS)
    run_sql(  # a transaction that counts a clean-up, and landed long enough ago to be compared
        tables,
        f"INSERT INTO {tables.clickhouse_database}.batches (partition, number, last_offset, started_at, landed_at, "
        "cleanup, tasks, migrations, quotas) SELECT 0, 1, 9, now64(6) - 300, now64(3) - 200, 1, 0, 0, 0",
    )
    group = f"{kafka.topic_prefix}.sink.audit"
    member = Consumer({**kafka.client_config(), "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    with closing(member), running_exporter(kafka, tables, window_s=2.0) as port:
        wait_until(lambda: len(member.assignment()) + (member.poll(0.1) is None) > 1, 60, "an assignment")
        offsets = itertools.count(_STEP, _STEP)

        def have_moved() -> bool:
            at_us = time.time_ns() // 1_000
            line = encode_record(audit_record(1, at_us, at=at_us))
            insert_records(tables, "audit", [line], at_us - 2_000_000, f"t{at_us}")
            member.commit(offsets=[TopicPartition(topic, 0, next(offsets))], asynchronous=False)
            member.poll(0)
            page = metric_values(port)
            moved.update(name.partition("{")[0] for name, value in page.items() if value > 0)
            return moved >= set(HELP)

        wait_until(have_moved, 60, f"a series above 0 of each of {sorted(HELP)}", pause_s=0.3)
        _, text = read_page(f"http://127.0.0.1:{port}/metrics")
        assert [name for name in HELP if f"# HELP {name} " not in text] == []
        newest = f'sessionary_lag_log_end_offset{{partition="0",topic="{topic}"}}'
        assert metric_values(port)[newest] == _RECORDS + 1, "the records and the marker of their transaction"
        checked = 'sessionary_integrity_checked_timestamp_seconds{source="kafka"}'
        wait_until(lambda: metric_values(port).get(checked, 0.0) > 0, 60, "a look at what the sinks wrote last")
        looked = 'sessionary_integrity_checked_timestamp_seconds{source="requests"}'
        wait_until(lambda: metric_values(port).get(looked, 0.0) > 0, 60, "a look at the topics of requests")
        lost = 'sessionary_integrity_findings{kind="cleanup_missing",table="cleanup"}'
        assert metric_values(port)[lost] == 1, "a transaction that counts a clean-up which the topic lacks"


def test_the_exporter_tells_the_states_of_groups_and_partitions(kafka: KafkaSettings) -> None:
    """A topic that is gone, absent roles, a member that stands still, logs that lost records."""
    admin, gone, topic = AdminClient(kafka.client_config()), kafka.topics.batches, kafka.topics.audit
    admin.delete_topics([gone])[gone].result(120)
    produce_records(kafka, topic, [(partition, b"record") for partition in (0, 1, 2) for _ in range(5)])
    group = f"{kafka.topic_prefix}.sink.audit"
    place = TopicPartition(topic, 1, 3)
    admin.delete_records([place])[place].result(120)
    consumer = Consumer({**kafka.client_config(), "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 1, 1), TopicPartition(topic, 2, 99)], asynchronous=False)
    consumer.subscribe([topic])
    wanted = {
        f'partition_state{{group="{kafka.topic_prefix}.sink.batches",partition="",state="no_topic",topic="{gone}"}}',
        f'partition_state{{group="{group}",partition="0",state="stall",topic="{topic}"}}',
        f'partition_state{{group="{group}",partition="1",state="log_gap",topic="{topic}"}}',
        f'partition_state{{group="{group}",partition="2",state="log_truncated",topic="{topic}"}}',
        f'group_state{{group="{kafka.topic_prefix}.processor",state="absent"}}',
        f'group_state{{group="{group}",state="stable"}}',
    }
    with closing(consumer), running_exporter(kafka, window_s=2.0) as port:

        def are_reported() -> bool:
            consumer.poll(0)
            page = metric_values(port)
            return all(page.get(f"sessionary_lag_{series}") == 1.0 for series in wanted)

        wait_until(are_reported, 60, "all states")
