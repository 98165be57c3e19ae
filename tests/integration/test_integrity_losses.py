"""`sessionary integrity check` on real servers: it names each loss, and fails."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.doctor import Check, run_checks
from sessionary.infra.kpi.integrity import ask_landed_ends
from sessionary.infra.settings import LagSettings
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.intent import Intent
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.integrity.landed_ends import END_FAULTS
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import produce_records, rows_equal, settings_for, sink_in_thread
from tests.integration.test_integrity_command import produce_ticks
from tests.support.losses import commit_offset, delete_rows, drop_part
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import environment, run_sql, set_environment
from tests.support.sink_records import DAY_US, audit_record, batch_record
from tests.support.waiting import wait_until

TRANSACTIONS: Final = (1, 2, 3, 4)  # of partitions 0 to 2: two rejections, one audit record, eight other records
QUIET: Final = 3  # a partition of whose transactions only Kafka knows more: they have ticks alone
QUIET_TRANSACTIONS: Final = (1, 2)
# A row of the second transaction of partition 1.
ONE_ROW: Final[Mapping[SinkKind, str]] = {
    "history": "src_partition = 1 AND source_offset = 14",
    "audit": "src_partition = 1 AND batch_number = 2",
    "rejected": "src_partition = 1 AND source_offset = 13",
    "batches": "src_partition = 1 AND number = 2",
}
Fault = tuple[str, int | None]  # and the partition, if it has one


def encoded_records(kind: SinkKind, partition: int, numbers: Sequence[int]) -> list[bytes]:
    """Return what a processor writes of transactions of ten records each to a sink's topic."""
    at, is_quiet = time.time_ns() // 1_000, partition == QUIET
    found: list[bytes] = []
    for number in numbers:
        first = (number - 1) * 10
        if kind == "batches":
            counts = (
                {"ticks": 10, "audited": 0}
                if is_quiet
                else {"ticks": 6, "fenced_beats": 2, "rejected": 2, "audited": 1}
            )
            times = {"started_at": at, "previous_acknowledged_at": None}
            offsets = {"first_offset": first, "last_offset": first + 9}
            found.append(encode_record(batch_record(partition, number, applied=0, **offsets, **counts, **times)))
        elif kind == "audit" and not is_quiet:
            states = {"from_state": "Active", "to_state": "Active", "at": at, "retain_until": at + 365 * DAY_US}
            source = {"source_partition": partition, "source_offset": first, "batch_number": number}
            found.append(encode_record(audit_record(partition, number, **states, **source)))
        elif kind == "rejected" and not is_quiet:
            empty = (None,) * 5
            places = [(partition, first + n, at) for n in (3, 7)]
            found += [encode_record(RejectedEvent("bad_key", "", False, *empty, "t", *place)) for place in places]
    return found


class Pipeline(NamedTuple):
    kafka: KafkaSettings
    clickhouse: ClickHouseSettings
    settings: SinkSettings
    capfd: pytest.CaptureFixture[str]

    def produce(self, kind: SinkKind, partition: int, numbers: Sequence[int]) -> int:
        """Append a sink's records of transactions to its topic; return how many these are."""
        if kind == "history":
            produce_ticks(self.kafka, partition, 10 * len(numbers))
            return 10 * len(numbers)
        records = encoded_records(kind, partition, numbers)
        produce_records(self.kafka, self.topic_of(kind), [(partition, record) for record in records])
        return len(records)

    def topic_of(self, kind: SinkKind) -> str:
        name: str = getattr(self.kafka.topics, SINKS[kind].topic)
        return name

    def land(self, wanted: Mapping[SinkKind, int]) -> None:
        """Run the sinks until their tables have so many rows."""
        counts = ", ".join(f"(SELECT count() FROM {{db}}.{table})" for table in SINKS)
        with ExitStack() as running:
            for kind in SINKS:
                running.enter_context(sink_in_thread(kind, self.settings))
            is_there = rows_equal(self.clickhouse, f"SELECT {counts}", [wanted[kind] for kind in SINKS])
            wait_until(is_there, 300, f"{wanted} rows")

    def find_faults(self) -> dict[Fault, int]:
        """Run the command, whose exit code must say if there is a fault; return rows by fault."""
        self.capfd.readouterr()
        code = run(["integrity", "check", "--late", "0", "--json"])
        found: Counter[Fault] = Counter()
        for line in self.capfd.readouterr().out.splitlines():
            row = json.loads(line)
            found[row["fault"], row["partition"]] += row["rows"]
        assert code == (1 if found else 0)
        return dict(found)

    def run_doctor(self) -> Check:
        """Return what doctor says of the ends."""

        def ends() -> Check | None:
            """Return None if a server did not answer in doctor's few seconds."""
            checks = run_checks(environment(self.kafka, self.clickhouse))
            found = {check.check: check for check in checks}.get("landed ends")
            return None if found is None or "did not answer" in found.advice else found

        return wait_until(ends, 120, "an answer about the ends")

    def repair(self) -> None:
        """Bring back what Kafka still has."""
        assert run(["integrity", "repair", "--from", "2020-01-01", "--json"]) == 0
        assert self.find_faults() == {}

    def run_on(self, table: str, statement: str) -> None:
        """Run a statement in which `{table}` is the table."""
        run_sql(self.clickhouse, statement.replace("{table}", f"{self.clickhouse.clickhouse_database}.{table}"))


@pytest.fixture
def pipeline(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Pipeline:
    make_tables(clickhouse)
    set_environment(monkeypatch, kafka, clickhouse)
    made = Pipeline(kafka, clickhouse, settings_for(kafka, clickhouse, instance=None), capfd)
    for table in SINKS:
        made.run_on(table, "SYSTEM STOP MERGES {table}")
    # First the quiet partition, so that its rows have parts of their own.
    wanted: Counter[SinkKind] = Counter(dict.fromkeys(SINKS, 0))
    for kind in ("history", "batches"):
        wanted[kind] += made.produce(kind, QUIET, QUIET_TRANSACTIONS)
    made.land(wanted)
    for kind in SINKS:
        for partition in range(QUIET):
            wanted[kind] += made.produce(kind, partition, TRANSACTIONS)
    made.land(wanted)
    assert made.find_faults() == {}
    return made


def test_a_row_a_part_and_a_table_that_are_lost_are_named_and_come_back(pipeline: Pipeline) -> None:
    faults: Mapping[SinkKind, dict[Fault, int]] = {
        "history": {("history_rows_missing", 1): 1},
        "audit": {("audit_rows_missing", 1): 1, ("audit_missing", None): 1},
        "rejected": {("rejected_rows_missing", 1): 1},
        "batches": {("batch_missing", 1): 1},
    }
    for kind in ("history", "audit", "rejected"):
        lost = drop_part(pipeline.clickhouse, kind)
        found = pipeline.find_faults()
        assert lost
        assert {place[1]: rows for place, rows in found.items() if place[0] == f"{kind}_rows_missing"} == lost
    # No table knows of these transactions any more: only Kafka does.
    assert drop_part(pipeline.clickhouse, "batches", f"src_partition = {QUIET}") == {QUIET: len(QUIET_TRANSACTIONS)}
    assert pipeline.find_faults()["batches_end_missing", QUIET] == 1
    pipeline.repair()
    for kind in SINKS:
        pipeline.run_on(kind, "SYSTEM START MERGES {table}")  # rows cannot be deleted without
        delete_rows(pipeline.clickhouse, kind, ONE_ROW[kind])
        assert pipeline.find_faults() == faults[kind]
        pipeline.repair()
    for kind in SINKS:
        pipeline.run_on(kind, "TRUNCATE TABLE {table}")
        known = "batch_missing" if kind == "batches" else f"{kind}_rows_missing"
        partitions = range(QUIET) if kind in ("audit", "rejected") else range(QUIET + 1)
        wanted = {(f"{kind}_end_missing", partition) for partition in partitions}
        wanted |= {(known, partition) for partition in partitions if (kind, partition) != ("batches", QUIET)}
        assert set(pipeline.find_faults()) == wanted
        pipeline.repair()


def test_a_row_that_is_doubled_is_named(pipeline: Pipeline) -> None:
    for kind in SINKS:
        again = f"INSERT INTO {{table}} SELECT * FROM {{table}} WHERE {ONE_ROW[kind]} SETTINGS insert_deduplicate = 0"
        pipeline.run_on(kind, again)
        fault = "batch_doubled" if kind == "batches" else f"{kind}_rows_doubled"
        assert pipeline.find_faults() == {(fault, 1): 1}
        pipeline.run_on(kind, "SYSTEM START MERGES {table}")
        pipeline.run_on(kind, "OPTIMIZE TABLE {table} FINAL")
        assert pipeline.find_faults() == {}


def test_what_only_kafka_knows_is_named_by_the_command_the_exporter_and_doctor(pipeline: Pipeline) -> None:
    assert set(ask_landed_ends(LagSettings.from_env()).by_fault.items()) == {(fault, 0) for fault in END_FAULTS}
    assert pipeline.run_doctor().ok
    lost = set[Fault]()
    # Offsets were moved to the end, and nothing follows.
    for kind in SINKS:
        pipeline.produce(kind, 0, [5])
        commit_offset(pipeline.settings, kind, 0)
        lost.add((f"{kind}_end_missing", 0))
    assert set(pipeline.find_faults()) == lost
    # Kafka deleted records that no sink had read.
    admin = AdminClient(pipeline.kafka.client_config())  # the answers need it
    for kind in SINKS:
        pipeline.produce(kind, 1, [5])
        place = TopicPartition(pipeline.topic_of(kind), 1, OFFSET_END)
        admin.delete_records([place])[place].result(120)
        lost.add((f"{kind}_deleted_unread", 1))
    # Its retention would have kept them: what transactions count for it is no longer there.
    emptied: set[Fault] = {(f"{kind}_topic_missing", 1) for kind in ("audit", "rejected")}
    assert set(pipeline.find_faults()) == lost | emptied
    # A log that ends before what a sink has read: it is another one, or lost its end.
    for kind in SINKS:
        commit_offset(pipeline.settings, kind, 2, commit_offset(pipeline.settings, kind, 2) + 7)
        lost.add((f"{kind}_log_shorter", 2))
    assert set(pipeline.find_faults()) == lost | emptied
    # The offset is one of another topic, which had the name before.
    for kind in SINKS:
        commit_offset(pipeline.settings, kind, QUIET, 7, Intent(9, 2, 0, "another topic").to_metadata())
        lost.add((f"{kind}_topic_replaced", QUIET))
    assert set(pipeline.find_faults()) == lost | emptied
    assert ask_landed_ends(LagSettings.from_env()).by_fault == dict.fromkeys(END_FAULTS, 1)
    reported = pipeline.run_doctor()
    assert not reported.ok
    assert sorted(reported.found.split(", ")) == sorted(f"{fault}: partition {partition}" for fault, partition in lost)
