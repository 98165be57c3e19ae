"""A running exporter serves every metric of lag, and records, commits and rows move them."""

import itertools
import time
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from sessionary.infra.lag.metrics import HELP
from sessionary.schemas.codec import encode_record
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.sink_rig import produce_records
from tests.integration.test_lag import running_exporter
from tests.support.clickhouse_rows import insert_records
from tests.support.metrics_page import metric_values, read_page
from tests.support.migrated_tables import make_tables
from tests.support.sink_records import audit_record
from tests.support.waiting import wait_until

_RECORDS = 5_000
_STEP = 5


def test_an_exporter_serves_every_metric_and_the_pipeline_moves_them(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    """A member of a sink's group commits a few records a round: it has a lag that shrinks."""
    make_tables(clickhouse)
    topic, moved = kafka.topics.audit, set[str]()
    produce_records(kafka, topic, [(0, b"record")] * _RECORDS)
    group = f"{kafka.topic_prefix}.sink.audit"
    member = Consumer({**kafka.client_config(), "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    with closing(member), running_exporter(kafka, clickhouse, window_s=2.0) as port:
        wait_until(lambda: len(member.assignment()) + (member.poll(0.1) is None) > 1, 60, "an assignment")
        offsets = itertools.count(_STEP, _STEP)

        def have_moved() -> bool:
            at_us = time.time_ns() // 1_000
            line = encode_record(audit_record(1, at_us, at=at_us))
            insert_records(clickhouse, "audit", [line], at_us - 2_000_000, f"t{at_us}")
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
