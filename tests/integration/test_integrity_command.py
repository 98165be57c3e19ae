"""`sessionary integrity check` on the real broker and the real engine: what only Kafka can tell."""

import json
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import cast

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
from sessionary.schemas.events import ArtifactCreated, RunStarted, SessionActivity, ToolCallStarted
from sessionary.schemas.headers import transaction_header
from sessionary.schemas.records import BatchAcknowledged, Tick
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.sink_kinds import SinkKind
from sessionary.sinks.integrity import landed_ends
from sessionary.sinks.integrity.landed_ends import find_end_faults
from sessionary.sinks.settings import SinkSettings
from tests.integration.pipeline_rig import COMMAND
from tests.integration.sink_rig import produce_records, rows_equal, settings_for, sink_in_thread
from tests.integration.test_unreadable_batches import PACKED, send_packed
from tests.support import Processes
from tests.support.losses import commit_offset, delete_rows
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import environment, run_sql, set_environment
from tests.support.sink_records import DAY_US, agent_event, audit_record, batch_record
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


def found_faults(capfd: pytest.CaptureFixture[str], *options: str, code: int) -> list[tuple[str, int, int, int, int]]:
    capfd.readouterr()
    assert run(["integrity", "check", "--json", *options]) == code
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
    set_environment(monkeypatch, kafka, clickhouse)
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
    set_environment(monkeypatch, kafka, clickhouse)
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
    assert run(["integrity", "repair", "--from", "2020-01-01", "--late", "0", "--json"]) == 1
    printed = capfd.readouterr()
    assert "history_rows_missing: 12 (partition 1, offsets 0 to 11)" in printed.err
    reported = {row["sink"]: row for row in map(json.loads, printed.out.splitlines())}["history"]
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
    admin = AdminClient(kafka.client_config())
    admin.incremental_alter_configs([resource])[resource].result(120)


def test_requests_that_kafka_lost_or_has_twice_are_found(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Transaction n judged the offsets 10 n to 10 n + 9; those of the fourth come a second time."""
    make_tables(clickhouse)
    set_environment(monkeypatch, kafka, clickhouse)
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
    assert "is not compared: " not in notes
    # What a topic must still have is missing; what it may have deleted is unknown.
    for topic in (names.cleanup, names.tasks):
        admin, place = AdminClient(kafka.client_config()), TopicPartition(topic, 1, 2)
        admin.delete_records([place])[place].result(120)
    assert ("cleanup_missing", 1, 2, 10, 29) in check()[0]
    keep_records(kafka, names.cleanup, 60_000)
    found, notes = check()
    assert {fault for fault, *_ in found} == {"migrations_missing", "quotas_missing", "tasks_doubled", "tasks_missing"}
    assert f"{names.cleanup} is compared from" in notes


def land_all(clickhouse: ClickHouseSettings, settings: SinkSettings, **rows: int) -> None:
    """Run the sinks of these tables until they have so many rows."""
    counts = ", ".join(f"(SELECT count() FROM {{db}}.{table})" for table in rows)
    with ExitStack() as running:
        for table in rows:
            running.enter_context(sink_in_thread(cast(SinkKind, table), settings))
        wait_until(rows_equal(clickhouse, f"SELECT {counts}", [*rows.values()]), 60, f"{rows}")


def run_repair(capfd: pytest.CaptureFixture[str], *, code: int) -> tuple[dict[str, list[int]], str]:
    """Repair all; return the sums of read, repaired and copies by table, and what stderr says."""
    capfd.readouterr()
    assert run(["integrity", "repair", "--from", "2020-01-01", "--late", "0", "--json"]) == code
    printed = capfd.readouterr()
    sums: dict[str, list[int]] = {}
    for row in map(json.loads, printed.out.splitlines()):
        found = [row[name] for name in ("read", "repaired", "copies")]
        sums[row["sink"]] = [one + other for one, other in zip(sums.get(row["sink"], [0, 0, 0]), found, strict=True)]
    return sums, printed.err


def encoded_audit(partition: int, number: int) -> tuple[int, bytes]:
    """Return the audit record of a transaction, in a trail without gaps."""
    at = time.time_ns() // 1_000
    states = {"from_state": "Active", "to_state": "Active", "at": at, "retain_until": at + 365 * DAY_US}
    source = {"source_partition": partition, "source_offset": number, "batch_number": number}
    return partition, encode_record(audit_record(partition, number, **states, **source))


def encoded_batch(partition: int, number: int, **fields: int) -> tuple[int, bytes]:
    """Return the record of a transaction without an event."""
    times = {"started_at": time.time_ns() // 1_000, "previous_acknowledged_at": None}
    return partition, encode_record(batch_record(partition, number, applied=0, **{**times, **fields}))


def test_a_repair_inserts_no_copy_and_says_what_it_cannot_bring_back(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Kafka has the outputs of transaction 2 twice, and has lost the audit record of number 3."""
    make_tables(clickhouse)
    set_environment(monkeypatch, kafka, clickhouse)
    audits = [encoded_audit(1, number) for number in (1, 2)]
    produce_records(kafka, kafka.topics.audit, [*audits, audits[1]])
    batches = [encoded_batch(1, 1), again := encoded_batch(1, 2), again, encoded_batch(1, 3)]
    acknowledged = 1, encode_record(BatchAcknowledged(1, 3, time.time_ns() // 1_000, "p1"))
    produce_records(kafka, kafka.topics.batches, [*batches, acknowledged, acknowledged])
    settings, database = settings_for(kafka, clickhouse, instance=None), clickhouse.clickhouse_database
    land_all(clickhouse, settings, audit=3, batches=4)
    tables = ("audit", "batches", "batch_acknowledgements")
    for table in tables:
        run_sql(clickhouse, f"OPTIMIZE TABLE {database}.{table} FINAL")

    def count_rows() -> list[str]:
        return [run_sql(clickhouse, f"SELECT count() FROM {database}.{table}").strip() for table in tables]

    assert count_rows() == ["2", "3", "1"]
    for _ in range(2):
        done, said = run_repair(capfd, code=1)
        assert (done["audit"], done["batches"]) == ([3, 0, 1], [6, 0, 2])
        assert count_rows() == ["2", "3", "1"]
        assert "0 rows were missing and are back" in said
        assert "audit_rows_missing: 1 (partition 1, offsets 30 to 39)" in said
    # A record that Kafka has twice and ClickHouse has not is one row.
    run_sql(clickhouse, f"TRUNCATE TABLE {database}.audit")
    assert run_repair(capfd, code=1)[0]["audit"] == [3, 2, 1]
    assert count_rows() == ["2", "3", "1"]


def test_two_processes_that_repair_at_once_store_each_row_once_and_a_loss_that_comes_again_is_repaired_again(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    processes: Processes,
) -> None:
    make_tables(clickhouse)
    set_environment(monkeypatch, kafka, clickhouse)
    produce_ticks(kafka, 1, 300)
    produce_records(
        kafka, kafka.topics.batches, [encoded_batch(1, 1, audited=0, ticks=300, first_offset=0, last_offset=299)]
    )
    settings, database = settings_for(kafka, clickhouse, instance=None), clickhouse.clickhouse_database
    land_all(clickhouse, settings, history=300, batches=1)
    repair, env = ["integrity", "repair", "--late", "0", "--json", "--from"], environment(kafka, clickhouse)
    for turn in range(2):
        delete_rows(clickhouse, "history", "source_offset % 3 = 1")
        run_sql(clickhouse, f"SYSTEM STOP MERGES {database}.history")  # they would hide a row that is doubled
        children = [
            processes.run([COMMAND, *repair, since], env=env, name=f"repair-{turn}-{since}")
            for since in ("2020-01-01", "2020-01-02")
        ]
        assert [(child.wait(120), child.exit_code) for child in children] == [(True, 0)] * 2
        lines = [line for child in children for line in child.log.read_text("utf-8").splitlines()]
        repaired = [json.loads(line)["repaired"] for line in lines if line.startswith('{"sink": "history"')]
        assert max(repaired) == 100
        stored = run_sql(clickhouse, f"SELECT count(), uniqExact(source_offset) FROM {database}.history")
        assert stored.split() == ["300", "300"]
        run_sql(clickhouse, f"SYSTEM START MERGES {database}.history")  # rows cannot be deleted without
    assert run_repair(capfd, code=0)[0]["history"] == [300, 0, 0]


def test_rows_that_run_events_lacks_are_found_and_made_from_history(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_tables(clickhouse)
    set_environment(monkeypatch, kafka, clickhouse)
    events = [
        agent_event(SessionActivity("llm"), seq=1),
        agent_event(RunStarted("attached", "report"), seq=2, run_id="r1"),
        agent_event(RunStarted("attached", "report"), seq=3, run_id="r2"),
        agent_event(ArtifactCreated("a", "text", "s3://a"), seq=4),
        agent_event(ToolCallStarted("c1", "search", "key", "{}", 1, True, False), seq=5),
        agent_event(ToolCallStarted("c2", "search", "c2", "{}", 1, True, False), seq=6),
    ]
    produce_records(kafka, kafka.topics.events, [(1, event) for event in events])
    counts = {"audited": 0, "first_offset": 0, "last_offset": 5}
    produce_records(kafka, kafka.topics.batches, [encoded_batch(1, 1, duplicate=6, **counts)])
    settings, database = settings_for(kafka, clickhouse, instance=None), clickhouse.clickhouse_database
    land_all(clickhouse, settings, history=len(events), batches=1)
    select = f"SELECT * FROM {database}.run_events ORDER BY source_offset"
    whole = run_sql(clickhouse, select)
    assert len(whole.splitlines()) == 4
    assert found_faults(capfd, code=0) == []
    delete_rows(clickhouse, "run_events", "source_offset IN (2, 4)")
    assert found_faults(capfd, "--late", "0", code=1) == [("run_events_missing", 1, 2, 2, 4)]
    done, _ = run_repair(capfd, code=0)
    assert (done["history"], done["run_events"]) == ([6, 0, 0], [4, 2, 0])
    assert run_sql(clickhouse, select) == whole
    run_sql(clickhouse, f"TRUNCATE TABLE {database}.run_events")
    assert run_repair(capfd, code=0)[0]["run_events"] == [4, 4, 0]
    assert run_sql(clickhouse, select) == whole


def test_a_dismissed_fault_is_on_record_and_comes_up_again_only_if_it_grows(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Kafka lost an audit record and a clean-up of transaction 1, and later a clean-up of 2."""
    make_tables(clickhouse)
    set_environment(monkeypatch, kafka, clickhouse)
    settings, database = settings_for(kafka, clickhouse, instance=None), clickhouse.clickhouse_database
    produce_records(kafka, kafka.topics.batches, [encoded_batch(1, 1, cleanup=1)])
    land_all(clickhouse, settings, batches=1)
    names = "audit_rows_missing", "audit_topic_missing", "cleanup_missing"
    audit, topic, cleanup = ((name, 1, 1, 10, 19) for name in names)
    assert found_faults(capfd, "--late", "0", code=1) == [audit, topic, cleanup]

    def dismiss(fault: str, partition: int) -> int:
        words = ["integrity", "dismiss", fault, "--partition", str(partition), "--late", "0"]
        return run([*words, "--reason", "the broker's disk was lost", "--by", "ann"])

    assert dismiss("audit_rows_missing", 2) == 4
    assert dismiss("audit_rows_missing", 1) == 0
    assert found_faults(capfd, "--late", "0", code=1) == [topic, cleanup]
    assert [dismiss(name, 1) for name in names[1:]] == [0, 0]
    assert found_faults(capfd, "--late", "0", code=0) == []
    kept = f"SELECT fault, rows, reason, dismissed_by FROM {database}.dismissed_faults ORDER BY fault FORMAT TSVRaw"
    assert run_sql(clickhouse, kept).splitlines() == [f"{fault}\t1\tthe broker's disk was lost\tann" for fault in names]
    produce_records(kafka, kafka.topics.batches, [encoded_batch(1, 2, audited=0, cleanup=1)])
    land_all(clickhouse, settings, batches=2)
    assert found_faults(capfd, "--late", "0", code=1) == [("cleanup_missing", 1, 2, 10, 29)]
