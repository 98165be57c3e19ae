"""Which records a repair inserts, and under which tokens; `tests/integration` has the servers."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SinkKind
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.integrity import repair
from sessionary.sinks.integrity.repair import RepairedPartition, repair_rows, repair_run_events
from sessionary.sinks.settings import SinkSettings
from tests.core.sinks.integrity.fake_topics import FakeMessage, FakeTopics
from tests.support.module_time import set_module_time
from tests.support.sink_records import NOW_US, audit_record, batch_record

TOPIC_ID = "id"
KEYS = {
    "audit": "tenant_id, session_id, audit_seq, source_partition, source_offset, source_n, topic_id",
    "batches": "partition, number, first_offset, last_offset, topic_id",
    "batch_acknowledgements": "partition, number, topic_id",
}


class Server:
    """ClickHouse as a repair sees it: rows by table, and the tokens that it knows.

    `loses` is how many of the next inserts it confirms and does not keep. `hidden` has, for each of
    the next looks, offsets of rows that are not visible yet.
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {table: [] for table in KEYS}
        self.tokens: list[str] = []
        self.loses = 0
        self.hidden: list[set[int]] = []
        self._hidden: set[int] = set()
        self.looked_up: list[str] = []

    def fetch_rows(self, query: str) -> Iterable[Mapping[str, Any]]:
        if found := re.search(r"SELECT sorting_key .* name = '(\w+)'", query):
            return [{"sorting_key": KEYS[found[1]]}]
        if found := re.search(r"SELECT DISTINCT .* FROM (\w+) WHERE (\w+) IN \(([^)]*)\)", query):
            numbers = {*map(int, found[3].split(", "))}
            rows = self.rows[found[1]]
            self.looked_up.append(query)
            return [row for row in rows if row[found[2]] in numbers and row["src_offset"] not in self._hidden]
        places = re.findall(r"FROM (\w+) WHERE src_partition = (\d+) AND src_offset BETWEEN (\d+) AND (\d+)", query)
        hidden = self._hidden = self.hidden.pop(0) if self.hidden else set()
        return [
            {"src_offset": row["src_offset"]}
            for table, partition, first, last in places
            for row in self.rows.get(table, ())
            if row["src_partition"] == int(partition) and int(first) <= row["src_offset"] <= int(last)
            if row["src_offset"] not in hidden
        ]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()

    class Writer:
        def __init__(self, definition: Any, settings: Any, metrics: Any, decoder: Any, *, group: str) -> None:
            self._definition, self._decoder, self._group = definition, decoder, group

        def write_block(self, partition: int, block: RecordBlock) -> None:
            token = block.insert_token(self._group, "t", partition)
            if token in found.tokens:
                raise OperatorError("short_write", "the token is known")
            found.tokens.append(token)
            if found.loses:
                found.loses -= 1
                return
            for raw in block.records:
                side = self._definition.side
                is_aside = side is not None and (raw.value or b"")[:10] in side.headers
                target = side if is_aside else self._definition
                row = dict(zip(target.table.columns, target.build_row(raw, self._decoder), strict=True))
                found.rows[target.table.name].append(row)

        def close(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(repair, "_SETTLE_S", 0.0, raising=False)
    monkeypatch.setattr(repair, "BlockWriter", Writer)
    monkeypatch.setattr(repair, "ask_topic_id", lambda *_: TOPIC_ID)
    return found


def compare(server: Server, kind: SinkKind, values: Sequence[bytes]) -> tuple[int, int]:
    """Repair records at offsets from 0 on; return the repaired ones and the copies."""
    one = repair._Repair(SinkSettings(), kind, server.fetch_rows)
    one._compare(1, [RawRecord("t", 1, n, NOW_US // 1_000, b"acme:s", value) for n, value in enumerate(values)])
    tally = one._tallies[1]
    assert tally.read == len(values)
    return tally.repaired, tally.copies


def test_a_record_that_kafka_has_twice_gets_one_row(server: Server) -> None:
    first, second = (encode_record(audit_record(1, seq)) for seq in (1, 2))
    values = [first, second, first, first]
    assert compare(server, "audit", values) == (2, 2)
    assert compare(server, "audit", values) == (0, 2)
    server.rows["audit"][0]["src_offset"] = 3  # a merge keeps the place of any of them
    assert compare(server, "audit", values) == (0, 2)
    assert len(server.rows["audit"]) == 2


def test_identities_are_looked_up_by_the_columns_that_the_tables_are_ordered_by(server: Server) -> None:
    compare(server, "audit", [encode_record(audit_record(1, seq)._replace(session_id="it's")) for seq in (1, 2)])
    compare(server, "batches", [encode_record(batch_record(1, 7))])
    audit, batches = server.looked_up
    assert (
        r"AND tenant_id IN ('acme') AND session_id IN ('it\'s') AND audit_seq IN (1, 2) AND source_partition IN (1)"
        in audit
    )
    assert "AND partition IN (1)" in batches
    # A query holds 256 KiB.
    compare(
        server, "audit", [encode_record(audit_record(1, seq)._replace(session_id=f"s{seq}")) for seq in range(1, 600)]
    )
    assert "session_id IN" not in server.looked_up[-1]


def test_transactions_and_acknowledgements_are_known_by_their_own_identities(server: Server) -> None:
    batch, other = (encode_record(batch_record(1, 7, last_offset=last)) for last in (79, 80))
    acknowledged = encode_record(BatchAcknowledged(1, 7, NOW_US, "p1"))
    values = [batch, acknowledged, batch, acknowledged, other]
    assert compare(server, "batches", values) == (3, 2)
    assert compare(server, "batches", values) == (0, 2)
    assert {table: len(rows) for table, rows in server.rows.items()} == {
        "audit": 0,
        "batches": 2,
        "batch_acknowledgements": 1,
    }


def test_repairs_of_the_same_records_have_the_same_token_and_those_of_others_another(server: Server) -> None:
    values = [encode_record(audit_record(1, seq)) for seq in range(1, 5)]
    for lost in ({0, 1, 3}, {0, 2, 3}):
        server.rows["audit"] = [row for row in server.rows["audit"] if row["src_offset"] not in lost]
        compare(server, "audit", values)
    assert len({*server.tokens}) == len(server.tokens) == 2
    tokens, rows = server.tokens, [row for row in server.rows["audit"] if row["src_offset"] == 1]
    server.tokens, server.rows["audit"] = [], rows
    compare(server, "audit", values)
    assert server.tokens == [tokens[-1]]


def test_a_block_of_another_repair_that_is_visible_in_part_is_not_inserted_again(server: Server) -> None:
    """Its parts, by class and month, become visible one by one."""
    values = [encode_record(batch_record(1, number)) for number in range(1, 5)]
    assert compare(server, "batches", values) == (4, 0)
    server.hidden = [{1, 2, 3}, {2}]
    assert compare(server, "batches", values) == (0, 0)
    assert len(server.tokens) == 1
    server.rows["batches"] = [row for row in server.rows["batches"] if row["src_offset"] != 2]
    assert compare(server, "batches", values) == (1, 0)


def test_records_that_are_lost_again_under_a_known_token_come_back_under_the_next_one(server: Server) -> None:
    values = [encode_record(audit_record(1, 1))]
    for _ in range(3):
        assert compare(server, "audit", values) == (1, 0)
        server.rows["audit"].clear()
    assert len({*server.tokens}) == 3


def test_rows_that_another_repair_inserts_under_the_next_token_are_not_inserted_twice(server: Server) -> None:
    values = [encode_record(audit_record(1, 1))]
    assert compare(server, "audit", values) == (1, 0)
    server.rows["audit"].clear()
    assert compare(server, "audit", values) == (1, 0)
    server.hidden = [{0}] * 3  # its token is known before its rows are visible
    compare(server, "audit", values)
    assert (len(server.tokens), len(server.rows["audit"])) == (2, 1)


def test_rows_that_the_server_never_keeps_are_no_success(server: Server) -> None:
    server.loses = 100
    with pytest.raises(OperatorError, match="from offset 0 on, were inserted 16 times, and have no row"):
        compare(server, "audit", [encode_record(audit_record(1, 1))])


def test_a_follower_s_earlier_end_is_not_the_end_of_what_is_repaired(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, compared = topics_of(monkeypatch)
    for number in (1, 2):
        topics.append("p.audit", 1, (1, number), 0.0)
    topics.answers = [[FakeMessage(("p.audit", 1), 1, code=KafkaError._PARTITION_EOF)]]
    repair_rows(PIPELINE, "audit", 0, None, server.fetch_rows)
    assert compared == [0, 1]


PIPELINE = SinkSettings(topic_prefix="p", partitions=2)


def topics_of(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeTopics, list[int]]:
    """Return topics for a repair, and a list of the offsets that it compares with rows."""
    topics, compared = FakeTopics(), list[int]()
    monkeypatch.setattr(repair, "group_consumer", lambda *_: topics)
    monkeypatch.setattr(repair, "records_from_messages", lambda _topic, _partition, messages: messages)
    monkeypatch.setattr(
        repair._Repair, "_compare", lambda _self, _, messages: compared.extend(one.offset() for one in messages)
    )
    return topics, compared


def missing(fault: str) -> Mapping[str, Any]:
    return {"fault": fault, "partition": 1, "first_offset": 1, "last_offset": 1}


def test_what_faults_of_the_time_name_is_read_although_kafka_has_it_from_another_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction began in the time: it judged an event that was older, and wrote audit later."""
    monkeypatch.setattr(repair, "_WINDOW", 1)
    topics, compared = topics_of(monkeypatch)
    for topic in ("p.events", "p.audit"):
        for at_s in (1_000, 2_000, 7_000, 9_000):
            topics.append(topic, 1, (1, 1), at_s)
    times = 7_000_000, 8_900_000
    repair_rows(PIPELINE, "history", *times, server.fetch_rows)
    assert compared == [2]
    compared.clear()
    repair_rows(PIPELINE, "history", *times, server.fetch_rows, [missing("history_rows_missing")])
    assert compared == [1, 2, 3]
    compared.clear()
    repair_rows(PIPELINE, "audit", *times, server.fetch_rows, [missing("history_rows_missing")])
    assert compared == [2]
    compared.clear()
    repair_rows(PIPELINE, "audit", *times, server.fetch_rows, [missing("audit_rows_missing")])
    assert compared == [2, 3]


def test_a_repair_says_which_sinks_are_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log ends with the marker of a transaction, which no sink reads."""
    topics, _ = topics_of(monkeypatch)
    at_s = time.time() - 500
    for _ in range(2):
        topics.append("p.audit", 0, (1, 1), at_s)
        topics.append("p.audit", 1, (1, 1), at_s)
    topics.ends = {("p.audit", 0): 3, ("p.audit", 1): 3}
    topics.written = {("p.audit", 0): 2, ("p.audit", 1): 0}
    found = {one.partition: one for one in repair_rows(PIPELINE, "audit", 0, None, server.fetch_rows)}
    assert (found[0].read, found[0].behind_s) == (0, 0)
    assert 500 <= found[1].behind_s <= 560


class RunEvents:
    """ClickHouse with rows of history at some offsets, and of run_events at none.

    A token that it knows keeps nothing; `loses` is how many inserts it confirms and does not keep.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *offsets: int) -> None:
        self.wanted, self.stored = {*offsets}, set[int]()
        self.tokens: list[str] = []
        self.loses = self.expired = 0
        self.query = ""
        monkeypatch.setattr(repair, "connect", lambda *_: self)
        monkeypatch.setattr(repair, "_SETTLE_S", 0.0)
        monkeypatch.setattr(repair, "run_statement", lambda _, statement: self.insert(statement))

    def close(self) -> None:
        """Do nothing."""

    def fetch_rows(self, query: str) -> Iterable[Mapping[str, Any]]:
        if "as_select" in query:
            return [{"as_select": "SELECT 1"}]
        if "system.columns" in query:
            return [{"name": "source_offset"}]
        if "missing" in query:
            self.query = query
            missing = sorted(self.wanted - self.stored)
            counts = {"wanted_rows": len(self.wanted), "lost": self.expired}
            return [{"topic_id": TOPIC_ID, "source_partition": 1, "missing": missing, **counts}]
        raise AssertionError(query)

    def insert(self, statement: str) -> None:
        found = re.search(r"insert_deduplication_token = '([^']+)'", statement)
        token = found[1] if found else statement
        if token in self.tokens:
            return
        self.tokens.append(token)
        if self.loses:
            self.loses -= 1
        else:
            self.stored |= self._named(statement)

    @staticmethod
    def _named(query: str) -> set[int]:
        return {*map(int, re.findall(r"source_offset IN \(([^)]*)\)", query)[-1].split(", "))}


def run_events(found: RunEvents, late_s: int = 120) -> RepairedPartition:
    [one] = repair_run_events(SinkSettings(), 0, None, late_s, found.fetch_rows)
    return one


def test_rows_of_run_events_that_are_lost_again_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RunEvents(monkeypatch, 3, 5, 9)
    for _ in range(3):
        assert run_events(found).repaired == 3
        assert found.stored == {3, 5, 9}
        found.stored.clear()
    assert len(found.tokens) == 3
    found.loses = 100
    with pytest.raises(OperatorError, match=r"3 rows of run_events-1, from offset 3 on, .* and have no row"):
        run_events(found)


def test_run_events_are_made_of_rows_that_have_contents_and_landed_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's answers are in `tests/integration`."""
    found = RunEvents(monkeypatch, 3)
    found.expired = 7
    assert run_events(found, 77).lost == 7
    assert "personal_expires <= now() AS is_expired" in found.query
    assert "FROM retention_days WHERE table_name = 'runs') - 1)" in found.query
    assert "landed_at > now64(3) - toIntervalSecond(77)" in found.query


def test_a_slow_comparison_is_no_silence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    topics, _ = topics_of(monkeypatch)
    for number in (1, 2):
        topics.append("p.audit", 1, (1, number), 0.0)
    first, second = (FakeMessage(("p.audit", 1), at) for at in (0, 1))
    topics.answers = [[first], [], [second]]
    monkeypatch.setattr(repair, "_BYTES", 0)  # each record is compared at once
    now_s, compared = [0.0], list[int]()
    set_module_time(monkeypatch, repair.__name__, monotonic=lambda: now_s[0])

    def compare_slowly(_self: object, _partition: int, messages: list[Any]) -> None:
        compared.extend(one.offset() for one in messages)
        now_s[0] += 60.0

    monkeypatch.setattr(repair._Repair, "_compare", compare_slowly)
    repair_rows(PIPELINE, "audit", 0, None, server.fetch_rows)
    assert compared == [0, 1]
