"""`sessionary integrity` on the real broker and the real engine: what only Kafka can tell."""

import json
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.cli.app import run
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import Tick
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import produce_records, rows_equal, settings_for, sink_in_thread
from tests.support.losses import commit_offset
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import environment, run_sql
from tests.support.sink_records import batch_record
from tests.support.waiting import wait_until


def produce_ticks(kafka: KafkaSettings, partition: int, count: int) -> None:
    producer = Producer(kafka.client_config())
    for _ in range(count):
        producer.produce(kafka.topics.events, encode_record(Tick("w1")), partition=partition)
    assert producer.flush(120) == 0


def land_records(kafka: KafkaSettings, clickhouse: ClickHouseSettings, *, expected: int) -> SinkSettings:
    """Run the sinks of history and batches until so many rows of both together are there."""
    settings = settings_for(kafka, clickhouse, instance=None)
    total = "SELECT (SELECT count() FROM {db}.history) + (SELECT count() FROM {db}.batches)"
    with sink_in_thread("history", settings), sink_in_thread("batches", settings):
        wait_until(rows_equal(clickhouse, total, [expected]), 60, "all rows")
    return settings


def found_faults(capfd: pytest.CaptureFixture[str], *, code: int) -> list[tuple[str, int, int, int, int]]:
    capfd.readouterr()
    assert run(["integrity", "--json"]) == code
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    columns = ("fault", "partition", "rows", "first_offset", "last_offset")
    return [tuple(row[column] for column in columns) for row in rows]


def test_losses_after_which_nothing_followed_are_found_in_kafka(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_tables(clickhouse)
    for name, value in environment(kafka, clickhouse).items():
        monkeypatch.setenv(name, value)
    produce_ticks(kafka, 1, 20)
    transactions = [
        batch_record(1, n + 1, first_offset=n * 10, last_offset=n * 10 + 9, applied=0, ticks=10, audited=0)
        for n in (0, 1)
    ]
    produce_records(kafka, kafka.topics.batches, [(1, encode_record(record)) for record in transactions])
    settings = land_records(kafka, clickhouse, expected=22)
    assert found_faults(capfd, code=0) == []
    landed_s = time.time()
    between_s = int(wait_until(lambda: time.time() > int(landed_s) + 1 and time.time(), 10, "a later second"))
    # The group's offset was moved to the end: nothing in ClickHouse says that there was more.
    produce_ticks(kafka, 2, 3)
    commit_offset(settings, "history", 2)
    skipped = ("history_end_missing", 2, 1, 2, 2)
    assert found_faults(capfd, code=1) == [skipped]
    # An emptied ClickHouse. The topic of batches ends with a marker, which is no record.
    for table in ("history", "batches"):
        run_sql(clickhouse, f"TRUNCATE TABLE {clickhouse.clickhouse_database}.{table}")
    assert found_faults(capfd, code=1) == [
        ("history_end_missing", 1, 1, 19, 19),
        skipped,
        ("batches_end_missing", 1, 1, 1, 1),
    ]
    # Kafka still has these records. What it appended at the end of a time or later is not of it.
    end = datetime.fromtimestamp(between_s, UTC)
    assert run(["repair", "--from", "2020-01-01", "--to", f"{end:%Y-%m-%dT%H:%M:%S}", "--json"]) == 0
    assert found_faults(capfd, code=1) == [skipped]
    # What is in place already stays as it is.
    for _ in range(2):
        capfd.readouterr()
        assert run(["repair", "--from", "2020-01-01", "--json"]) == 0
    assert found_faults(capfd, code=0) == []
    assert run_sql(clickhouse, f"SELECT count() FROM {clickhouse.clickhouse_database}.history").split() == ["23"]


def test_a_repair_brings_back_what_kafka_still_has_and_the_rest_stays_a_fault(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_tables(clickhouse)
    for name, value in environment(kafka, clickhouse).items():
        monkeypatch.setenv(name, value)
    produce_ticks(kafka, 1, 20)
    ticks = batch_record(1, 1, first_offset=0, last_offset=19, applied=0, ticks=20, audited=0)
    produce_records(
        kafka, kafka.topics.batches, [(1, encode_record(ticks._replace(started_at=time.time_ns() // 1_000)))]
    )
    land_records(kafka, clickhouse, expected=21)
    run_sql(clickhouse, f"TRUNCATE TABLE {clickhouse.clickhouse_database}.history")
    place, admin = TopicPartition(kafka.topics.events, 1, 12), AdminClient(kafka.client_config())
    admin.delete_records([place])[place].result(120)
    capfd.readouterr()
    assert run(["repair", "--from", "2020-01-01", "--json"]) == 0
    told = {row["sink"]: row for row in map(json.loads, capfd.readouterr().out.splitlines())}["history"]
    assert (told["repaired"], told["first_offset"], told["last_offset"], told["log_start"]) == (8, 12, 19, 12)
    assert run(["integrity", "--late", "0", "--json"]) == 1
    [lost] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (lost["fault"], lost["partition"], lost["rows"]) == ("history_rows_missing", 1, 12)
    assert (lost["first_offset"], lost["last_offset"]) == (0, 11)
