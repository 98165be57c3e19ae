"""`v_integrity` over rows made by hand, in the real engine: it names each loss."""

import json
from collections.abc import Iterator, Sequence

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import AuditRecord, BatchAcknowledged, BatchRecord, RejectedEvent, Tick
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.rows.outputs import dead_letter_row
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.settings import SinkSettings
from tests.support.losses import delete_rows
from tests.support.pipelines import run_sql
from tests.support.sink_records import DAY_US, audit_record, batch_record

_BATCHES = 4
_RECORDS = 10


class Rows:
    """Writes rows as sinks do, of partitions whose transactions all have ten records."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self._settings = SinkSettings.model_validate(clickhouse.model_dump())
        self._inserters: dict[SinkKind, TableInserter] = {}
        self._blocks = 0
        self.now_us = int(run_sql(clickhouse, "SELECT toUnixTimestamp(now())")) * 1_000_000

    def close(self) -> None:
        for inserter in self._inserters.values():
            inserter.close()

    def insert(self, kind: SinkKind, raws: Sequence[RawRecord]) -> None:
        """Insert one block, under a token of its own."""
        inserter = self._inserters.setdefault(kind, TableInserter(self._settings, SINKS[kind].table))
        inserter.open()
        block = inserter.new_block()
        assert not block.add_rows([SINKS[kind].build_row(raw, Decoder()) for raw in raws])
        self._blocks += 1
        inserter.insert_block(block, f"{kind} {self._blocks}", first_try=True)

    def raw(
        self, partition: int, offset: int, record: AuditRecord | BatchRecord | RejectedEvent | Tick, age_us: int = 0
    ) -> RawRecord:
        return RawRecord("t", partition, offset, (self.now_us - age_us) // 1_000, b"k", encode_record(record))

    def history(self, partition: int, numbers: Sequence[int], age_us: int = 0) -> None:
        """Insert the rows of history of transactions."""
        offsets = [number * _RECORDS + n for number in numbers for n in range(_RECORDS)]
        self.insert("history", [self.raw(partition, offset, Tick("w1"), age_us) for offset in offsets])

    def audit(self, partition: int, numbers: Sequence[int], age_us: int = 0) -> None:
        """Insert the one audit row of each transaction."""
        at = self.now_us - age_us
        fields = {"from_state": "Active", "to_state": "Active", "retain_until": at + 365 * DAY_US, "at": at}
        lines = [
            audit_record(partition, n, source_partition=partition, source_offset=n * _RECORDS, batch_number=n, **fields)
            for n in numbers
        ]
        self.insert("audit", [self.raw(partition, n, line) for n, line in enumerate(lines)])

    def rejections(self, partition: int, numbers: Sequence[int], age_us: int = 0) -> None:
        """Insert the rows of the two rejected records of each transaction."""
        empty = (None,) * 5
        offsets = [number * _RECORDS + n for number in numbers for n in (3, 7)]
        at = self.now_us - age_us
        rejections = [RejectedEvent("bad_key", "", False, *empty, "t", partition, offset, at) for offset in offsets]
        self.insert("rejected", [self.raw(partition, record.source_offset, record) for record in rejections])

    def batches(self, partition: int, numbers: Sequence[int], age_us: int = 0) -> None:
        """Insert the rows of transactions."""
        at = self.now_us - age_us
        records = [
            batch_record(partition, n, applied=8, rejected=2, started_at=at, previous_acknowledged_at=None)
            for n in numbers
        ]
        self.insert("batches", [self.raw(partition, record.number, record) for record in records])

    def transactions(self, partition: int, numbers: Sequence[int], age_us: int = 0) -> None:
        """Insert all rows of transactions, those of `batches` first."""
        for write in (self.batches, self.history, self.audit, self.rejections):
            write(partition, numbers, age_us)


@pytest.fixture
def rows(tables: ClickHouseSettings) -> Iterator[Rows]:
    written = Rows(tables)
    for partition in (0, 1):
        written.transactions(partition, range(1, _BATCHES + 1))
    yield written
    written.close()


def faults(clickhouse: ClickHouseSettings, *, late_s: int | None = None) -> list[tuple[object, ...]]:
    """Return fault, partition, rows, first and last offset; without `late_s`, of `v_integrity`."""
    database = clickhouse.clickhouse_database
    times = "from='1970-01-01 00:00:00', to='2106-01-01 00:00:00'"
    view = "v_integrity" if late_s is None else f"v_integrity_between({times}, late_s={late_s})"
    database += "" if late_s is None else "_between"
    text = run_sql(
        clickhouse,
        f"SELECT fault, partition, rows, first_offset, last_offset FROM {database}.{view} ORDER BY ALL "
        "FORMAT JSONCompactEachRow SETTINGS output_format_json_quote_64bit_integers=0",
    )
    return [tuple(json.loads(line)) for line in text.splitlines()]


def scalar_lookups(clickhouse: ClickHouseSettings) -> int:
    """Return how often queries of this server have asked for the value of a subquery."""
    asked = "SELECT sum(value) FROM system.events WHERE event IN ('ScalarSubqueriesGlobalCacheHit', "
    return int(run_sql(clickhouse, f"{asked}'ScalarSubqueriesCacheMiss')"))


def test_its_plan_names_few_subqueries(rows: Rows, tables: ClickHouseSettings) -> None:
    """Each is analysed again at each place that names it, which costs more than small tables do.

    The server counts for all its clients, so queries of other tests can only add: the least of a
    few times is the nearest to what the plan asked.
    """
    asked = []
    for _ in range(10):
        before = scalar_lookups(tables)
        assert faults(tables, late_s=0) == []
        asked.append(scalar_lookups(tables) - before)
    assert min(asked) <= 90, asked


def test_losses_are_named_with_their_offsets(rows: Rows, tables: ClickHouseSettings) -> None:
    assert faults(tables, late_s=0) == []
    delete_rows(tables, "history", "source_partition = 1 AND source_offset IN (23, 25)")
    named = [("history_rows_missing", 1, 2, 23, 25)]
    assert faults(tables, late_s=0) == named
    assert faults(tables) == [], "rows of just now may be of a block whose parts come one by one"
    run_sql(
        tables,
        f"ALTER TABLE {tables.clickhouse_database}.history UPDATE landed_at = now64(3) - 61 "
        "WHERE source_partition = 1 AND source_offset = 49 SETTINGS mutations_sync = 2",
    )
    assert faults(tables) == named
    # The group's offset was moved on, or Kafka deleted records before they were read.
    for table in ("history", "audit", "rejected"):
        delete_rows(tables, table, "source_partition = 0 AND source_offset BETWEEN 15 AND 34")
    assert faults(tables, late_s=0) == [
        ("audit_missing", None, 2, None, None),
        ("audit_rows_missing", 0, 2, 20, 39),
        ("history_rows_missing", 0, 20, 15, 34),
        *named,
        ("rejected_rows_missing", 0, 4, 10, 39),
    ]


def test_rows_at_the_end_are_missed_once_they_are_late(rows: Rows, tables: ClickHouseSettings) -> None:
    rows.batches(0, [5])
    assert faults(tables) == []
    assert faults(tables, late_s=0) == [
        ("audit_rows_missing", 0, 1, 50, 59),
        ("history_rows_missing", 0, 10, 50, 59),
        ("rejected_rows_missing", 0, 2, 50, 59),
    ]
    for write in (rows.history, rows.audit, rows.rejections):
        write(0, [5])
    assert faults(tables, late_s=0) == []


def test_batches_that_lack_are_found_between_others_and_at_the_end(rows: Rows, tables: ClickHouseSettings) -> None:
    delete_rows(tables, "batches", "partition = 0 AND number IN (1, 3)")
    assert faults(tables) == [("batch_missing", 0, 2, 0, 39)]
    delete_rows(tables, "batches", "partition = 0 AND number > 2")
    end = [("batch_missing", 0, 1, 0, 19), ("batch_missing", 0, 2, 30, None)]
    assert faults(tables, late_s=0) == end
    side = SINKS["batches"].side
    assert side is not None
    inserter = TableInserter(SinkSettings.model_validate(tables.model_dump()), side.table)
    inserter.open()
    block = inserter.new_block()
    reported = encode_record(BatchAcknowledged(1, 6, rows.now_us, "w1"))
    assert not block.add_rows([side.build_row(RawRecord("t", 1, 9, rows.now_us // 1_000, b"k", reported), Decoder())])
    inserter.insert_block(block, "reported", first_try=True)
    inserter.close()
    assert faults(tables, late_s=0) == [*end, ("batch_missing", 1, 2, 50, None)]


def test_emptied_tables_are_faults(rows: Rows, tables: ClickHouseSettings) -> None:
    def empty(*names: str) -> None:
        for table in names:
            run_sql(tables, f"TRUNCATE TABLE {tables.clickhouse_database}.{table}")

    empty("history", "rejected")
    assert faults(tables, late_s=0) == [
        *[("history_rows_missing", partition, 40, 10, 49) for partition in (0, 1)],
        *[("rejected_rows_missing", partition, 8, 10, 49) for partition in (0, 1)],
    ]
    empty("batches")
    assert faults(tables, late_s=0) == [("batch_missing", partition, 4, 0, None) for partition in (0, 1)]
    empty("audit")
    rows.transactions(1, [_BATCHES + 1])
    assert faults(tables) == [("audit_missing", None, 4, None, None), ("batch_missing", 1, 4, 0, 49)]


def test_a_part_that_was_deleted_is_a_fault(rows: Rows, tables: ClickHouseSettings) -> None:
    database = tables.clickhouse_database
    for table in ("history", "rejected", "audit", "batches"):
        run_sql(tables, f"SYSTEM STOP MERGES {database}.{table}")
        rows.transactions(2, [1]) if table == "history" else None
    for table in ("history", "rejected", "audit", "batches"):
        name, lost = run_sql(
            tables,
            f"SELECT name, rows FROM system.parts WHERE database = '{database}' AND table = '{table}' AND active "
            "ORDER BY rows, name LIMIT 1",
        ).split()
        run_sql(tables, f"ALTER TABLE {database}.{table} DROP PART '{name}'")
        fault = "batch_missing" if table == "batches" else f"{table}_rows_missing"
        found = [one for one in faults(tables, late_s=0) if one[0] == fault]
        if table == "batches":
            # No table has anything of this transaction any more: only Kafka knows it.
            assert found == []
        else:
            assert [one[2] for one in found] == [int(lost)]
        run_sql(tables, f"SYSTEM START MERGES {database}.{table}")


def test_a_row_that_is_stored_twice_is_a_fault_until_it_is_merged(rows: Rows, tables: ClickHouseSettings) -> None:
    database = tables.clickhouse_database
    names = ("history", "audit", "rejected")
    for table in names:
        run_sql(tables, f"OPTIMIZE TABLE {database}.{table} FINAL")
        run_sql(tables, f"SYSTEM STOP MERGES {database}.{table}")
    for write in (rows.history, rows.audit, rows.rejections):
        write(1, [2])
    assert faults(tables) == [
        ("audit_rows_doubled", 1, 1, 20, 29),
        ("history_rows_doubled", 1, 10, 20, 29),
        ("rejected_rows_doubled", 1, 2, 20, 29),
    ]
    for table in names:
        run_sql(tables, f"SYSTEM START MERGES {database}.{table}")
        run_sql(tables, f"OPTIMIZE TABLE {database}.{table} FINAL")
    assert faults(tables) == []


def test_rows_without_a_record_and_dead_letters_are_faults(rows: Rows, tables: ClickHouseSettings) -> None:
    rows.insert("batches", [rows.raw(0, 9, batch_record(0, 5, applied=9, audited=0, started_at=rows.now_us))])
    rows.history(0, [5])
    inserter = TableInserter(SinkSettings.model_validate(tables.model_dump()), SINKS["audit"].table)
    inserter.open()
    block = inserter.new_block("sink_dead_letters")
    raw = RawRecord("t.audit", 1, 77, rows.now_us // 1_000, b"k", b"junk")
    block.add_rows([dead_letter_row("audit", raw, "undecodable")])
    inserter.insert_block(block, "dead", first_try=True, table="sink_dead_letters")
    inserter.close()
    assert faults(tables, late_s=0) == [
        ("audit_dead_letters", 1, 1, 77, 77),
        ("history_rows_unexpected", 0, 1, 50, 59),
    ]


def test_what_retention_may_have_removed_is_no_fault(tables: ClickHouseSettings) -> None:
    rows = Rows(tables)
    for number, days in enumerate((358, 200, 21), 1):
        rows.batches(0, [number], days * DAY_US)
    rows.close()
    assert faults(tables) == []
    # After 30 days rows of personal data are gone, after 365 days rejections are.
    assert faults(tables, late_s=0) == [
        ("audit_rows_missing", 0, 1, 30, 39),
        ("history_rows_missing", 0, 10, 30, 39),
        ("rejected_rows_missing", 0, 4, 20, 39),
    ]


def test_a_time_compares_its_own_transactions_only(rows: Rows, tables: ClickHouseSettings) -> None:
    for number in (5, 6, 7):
        rows.transactions(1, [number], -3_600_000_000 * number)
    delete_rows(tables, "history", "source_offset IN (61, 72)")
    delete_rows(tables, "batches", "number = 2")
    hours = [rows.now_us // 1_000_000 + 3_600 * number for number in (6, 7)]
    database = tables.between_database
    text = run_sql(
        tables,
        f"SELECT fault, first_offset FROM {database}.v_integrity_between(from=toDateTime({hours[0]}, 'UTC'), "
        f"to=toDateTime({hours[1]}, 'UTC'), late_s=0)",
    )
    assert text.split() == ["history_rows_missing", "61"]


def test_a_time_after_a_loss_of_all_rows_misses_the_transaction_before_its_first(
    rows: Rows, tables: ClickHouseSettings
) -> None:
    """Else a time that begins after the loss is well: nothing in it lacks."""
    since_s = rows.now_us // 1_000_000 + 3_600
    window = f"from=toDateTime({since_s}, 'UTC'), to='2106-01-01 00:00:00', late_s=0"
    query = (
        "SELECT fault, partition, rows, first_offset, last_offset FROM "
        f"{tables.between_database}.v_integrity_between({window}) ORDER BY partition"
    )
    for table in SINKS:
        run_sql(tables, f"TRUNCATE TABLE {tables.clickhouse_database}.{table}")
    rows.transactions(0, [5, 6], -7_200_000_000)
    rows.transactions(1, [1], -7_200_000_000)  # the first one of its partition
    assert run_sql(tables, query).split() == ["batch_missing", "0", "1", "49", "49"]
    rows.batches(0, [4], 7_200_000_000)  # it is there, and not of this time
    assert run_sql(tables, query) == ""
    rows.batches(0, [4], 7_200_000_000)  # twice, which is not of this time either
    assert run_sql(tables, query) == ""


class Ends:
    """Tells where sinks stand, as they do, for logs that begin at 100 and end at 200."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        self._clickhouse = clickhouse
        self._table = f"{clickhouse.clickhouse_database}.landed_ends"

    def tell(
        self, sink: SinkKind, committed: int, last: int | None, topic_id: str = "", reported: str = "now64(3)"
    ) -> None:
        run_sql(
            self._clickhouse,
            f"INSERT INTO {self._table} (sink, consumer_group, partition, topic_id, committed, log_start, log_end, "
            f"last_offset, reported_at) SELECT '{sink}', 'g', 1, '{topic_id}', {committed}, 100, 200, "
            f"{'NULL' if last is None else last}, {reported}",
        )


def test_the_record_that_a_sink_has_written_last_must_have_a_row(rows: Rows, tables: ClickHouseSettings) -> None:
    ends = Ends(tables)
    for sink in SINKS:
        ends.tell(sink, 150, 149)
    assert faults(tables) == [(f"{sink}_end_missing", 1, 1, 149, 149) for sink in sorted(SINKS)]
    # What the tables have; the last line of the audit trail became a dead letter.
    letters = TableInserter(SinkSettings.model_validate(tables.model_dump()), SINKS["audit"].table)
    letters.open()
    block = letters.new_block("sink_dead_letters", topic_id="now")
    raw = RawRecord("t.audit", 1, 149, rows.now_us // 1_000, b"k", b"junk")
    block.add_rows([dead_letter_row("audit", raw, "undecodable")])
    letters.insert_block(block, "dead", first_try=True, table="sink_dead_letters")
    letters.close()
    for sink, last in (("audit", 149), ("history", 49), ("rejected", 47), ("batches", 4)):
        ends.tell(sink, 150, last, "now", "now64(3) + 1")
    assert faults(tables) == [("audit_dead_letters", 1, 1, 149, 149)]
    # A row of a topic of that name that was deleted is none of this one.
    ends.tell("audit", 150, 149, "of the next topic", "now64(3) + 2")
    assert ("audit_end_missing", 1, 1, 149, 149) in faults(tables)


def test_where_a_sink_stands_is_within_its_log_and_was_reported_lately(rows: Rows, tables: ClickHouseSettings) -> None:
    ends = Ends(tables)
    ends.tell("history", 90, None)
    ends.tell("audit", 203, None)
    ends.tell("rejected", 100, None)
    ends.tell("batches", 150, 149, reported="now64(3) - INTERVAL 8 DAY")  # such a row may have expired
    assert faults(tables) == [("audit_log_shorter", 1, 3, 200, 202), ("history_deleted_unread", 1, 10, 90, 99)]


def test_a_transaction_of_a_decision_alone_takes_no_row_of_the_next_one(rows: Rows, tables: ClickHouseSettings) -> None:
    decision = batch_record(0, 5, first_offset=50, last_offset=50, applied=0, started_at=rows.now_us)
    rows.insert("batches", [rows.raw(0, 5, decision)])
    line = audit_record(0, 0, at=rows.now_us, source_partition=0, source_offset=50, batch_number=5)
    rows.insert("audit", [rows.raw(0, 5, line)])
    following = batch_record(0, 6, first_offset=50, last_offset=59, audited=0, started_at=rows.now_us)
    rows.insert("batches", [rows.raw(0, 6, following)])
    rows.history(0, [5])
    assert faults(tables, late_s=0) == []
