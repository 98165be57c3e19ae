"""`sessionary integrity check` on the real broker and the real engine: what only Kafka can tell."""

import json
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by the names of its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from sessionary.infra.cli.app import run
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.codec import encode_record
from sessionary.schemas.headers import transaction_header
from sessionary.schemas.records import Tick
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.integrity import landed_ends
from sessionary.sinks.integrity.landed_ends import find_end_faults
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import produce_records, rows_equal, settings_for, sink_in_thread
from tests.integration.test_unreadable_batches import PACKED, send_packed
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
    assert run(["integrity", "check", "--json"]) == code
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
    assert run(["integrity", "repair", "--from", "2020-01-01", "--to", f"{end:%Y-%m-%dT%H:%M:%S}", "--json"]) == 0
    assert found_faults(capfd, code=1) == [skipped]
    # What is in place already stays as it is.
    for _ in range(2):
        capfd.readouterr()
        assert run(["integrity", "repair", "--from", "2020-01-01", "--json"]) == 0
    assert found_faults(capfd, code=0) == []
    assert run_sql(clickhouse, f"SELECT count() FROM {clickhouse.clickhouse_database}.history").split() == ["23"]


def test_v_integrity_knows_where_the_sinks_stand(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing follows the losses, and the view asks no Kafka: the running sink has reported it."""
    monkeypatch.setattr(landed_ends, "EVERY_S", 0.5)
    make_tables(clickhouse)
    settings, database = settings_for(kafka, clickhouse, instance=None), clickhouse.clickhouse_database

    def show_faults() -> list[str]:
        columns = "fault, partition, rows, first_offset, last_offset"
        return run_sql(clickhouse, f"SELECT {columns} FROM {database}.v_integrity ORDER BY ALL").splitlines()

    def wait_reported(*faults: str) -> None:
        with sink_in_thread("history", settings):
            wait_until(lambda: show_faults() == list(faults), 120, f"{faults}")

    for partition, count in ((1, 20), (3, 5)):
        produce_ticks(kafka, partition, count)
    reported = "SELECT count() FROM {db}.landed_ends FINAL WHERE (partition, last_offset) IN ((1, 19), (3, 4))"
    with sink_in_thread("history", settings):
        wait_until(rows_equal(clickhouse, reported, [2]), 120, "both ends to be reported")
    assert show_faults() == []
    # The group's offset was moved to the end; Kafka deleted records before they were read.
    produce_ticks(kafka, 2, 3)
    commit_offset(settings, "history", 2)
    produce_ticks(kafka, 3, 4)
    place, admin = TopicPartition(kafka.topics.events, 3, 9), AdminClient(kafka.client_config())
    admin.delete_records([place])[place].result(120)
    skipped, unread = "history_end_missing\t2\t1\t2\t2", "history_deleted_unread\t3\t4\t5\t8"
    wait_reported(unread, skipped)
    # Everything is gone, and the tables are made again.
    for table in ("history", "landed_ends"):
        run_sql(clickhouse, f"TRUNCATE TABLE {database}.{table}")
    wait_reported(unread, "history_end_missing\t1\t1\t19\t19", skipped)


def test_a_batch_that_cannot_be_read_hides_no_end_but_its_partition_s(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    make_tables(clickhouse)
    settings = settings_for(kafka, clickhouse, instance=None)
    send_packed(kafka)
    produce_ticks(kafka, PACKED, 40)
    produce_ticks(kafka, 1, 3)

    def missing() -> list[tuple[int, int]]:
        faults = find_end_faults(settings, ClickHouseClient(settings).fetch_rows)
        return [(fault.partition, fault.first_offset) for fault in faults if fault.fault == "history_end_missing"]

    commit_offset(settings, "history", 1)
    for behind_it in (1, 10):
        commit_offset(settings, "history", PACKED, behind_it)
        assert missing() == [(1, 2)]
    commit_offset(settings, "history", PACKED, 40)
    assert missing() == [(PACKED, 39), (1, 2)]


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
    assert run(["integrity", "repair", "--from", "2020-01-01", "--json"]) == 0
    reported = {row["sink"]: row for row in map(json.loads, capfd.readouterr().out.splitlines())}["history"]
    assert (reported["repaired"], reported["first_offset"], reported["last_offset"], reported["log_start"]) == (
        8,
        12,
        19,
        12,
    )
    assert run(["integrity", "check", "--late", "0", "--json"]) == 1
    [lost] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (lost["fault"], lost["partition"], lost["rows"]) == ("history_rows_missing", 1, 12)
    assert (lost["first_offset"], lost["last_offset"]) == (0, 11)


def produce_requests(kafka: KafkaSettings, topic: str, partition: int, *numbers: int) -> None:
    """Append a record of each of these transactions of partition 1 to a partition of a topic."""
    producer = Producer(kafka.client_config())
    for number in numbers:
        producer.produce(topic, b"request", partition=partition, headers=[transaction_header(1, number)])
    assert producer.flush(120) == 0


def keep_records(kafka: KafkaSettings, topic: str, retention_ms: int) -> None:
    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    AdminClient(kafka.client_config()).incremental_alter_configs([resource])[resource].result(120)


def test_requests_that_kafka_lost_or_has_twice_are_found(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Transaction n judged the offsets 10 n to 10 n + 9; those of the fourth come a second time."""
    make_tables(clickhouse)
    for name, value in environment(kafka, clickhouse).items():
        monkeypatch.setenv(name, value)
    names, started_at = kafka.topics, time.time_ns() // 1_000

    def transaction(number: int, **counts: int | None) -> tuple[int, bytes]:
        return 1, encode_record(batch_record(1, number, applied=0, audited=0, started_at=started_at, **counts))

    transactions = [
        transaction(1, cleanup=1, tasks=1, migrations=1, quotas=2),
        transaction(2, cleanup=1, tasks=1),
        transaction(3),
        transaction(4, cleanup=1),
        transaction(4, cleanup=1, last_offset=45),
        transaction(5, cleanup=None, tasks=None, migrations=None, quotas=None),
    ]
    produce_records(kafka, names.batches, transactions)
    produce_requests(kafka, names.cleanup, 1, 1, 4, 4, 5, 9)
    produce_requests(kafka, names.tasks, 1, 1, 2, 3, 3)
    produce_requests(kafka, names.quotas, 2, 1)  # a notice is in its tenant's partition
    with sink_in_thread("batches", settings_for(kafka, clickhouse, instance=None)):
        wait_until(rows_equal(clickhouse, "SELECT count() FROM {db}.batches", [6]), 60, "all rows")

    def check() -> tuple[set[tuple[str, int, int, int, int]], str]:
        capfd.readouterr()
        code = run(["integrity", "check", "--late", "0", "--json"])
        printed = capfd.readouterr()
        rows = [json.loads(line) for line in printed.out.splitlines()]
        columns = ("fault", "partition", "rows", "first_offset", "last_offset")
        found = {tuple(row[column] for column in columns) for row in rows if row["fault"] != "batch_doubled"}
        assert code == 1
        return found, printed.err

    lost = ("cleanup_missing", 1, 1, 20, 29), ("migrations_missing", 1, 1, 10, 19), ("quotas_missing", 1, 1, 10, 19)
    found, notes = check()
    assert found == {*lost, ("cleanup_doubled", 1, 1, 40, 45), ("tasks_doubled", 1, 2, 30, 39)}
    assert "partition 1: 1 transactions, of the numbers 5 to 5, do not count their records" in notes
    assert "deleted" not in notes
    # What a topic must still have is missing; what it may have deleted is unknown.
    for topic in (names.cleanup, names.tasks):
        admin, place = AdminClient(kafka.client_config()), TopicPartition(topic, 1, 2)
        admin.delete_records([place])[place].result(120)
    assert ("cleanup_missing", 1, 2, 10, 29) in check()[0]
    keep_records(kafka, names.cleanup, 3_600_000)
    found, notes = check()
    assert {fault for fault, *_ in found} == {"migrations_missing", "quotas_missing", "tasks_doubled", "tasks_missing"}
    assert f"{names.cleanup}-1 is compared from" in notes
