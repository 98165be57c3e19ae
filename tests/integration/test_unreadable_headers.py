"""Records whose header names are not UTF-8: all parts go on, and mark the headers as unreadable."""

import json
import subprocess
import sys

from sessionary.schemas.events import SessionActivity
from sessionary.schemas.headers import UNREADABLE_HEADERS
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.processor_load import Agent, OutgoingRecord, Sender, count_judged, start_processor
from tests.integration.sink_rig import settings_for, sink_in_thread
from tests.integration.test_processor_road import LASTING
from tests.support import Processes, read_records, run_sql, wait_until
from tests.support.broken_headers import send_with_broken_header
from tests.support.migrated_tables import make_tables

# Reads headers again and again: the interpreter specializes code that runs often.
_READER = """
import json, sys
from confluent_kafka import Consumer, TopicPartition
from sessionary.schemas.headers import UNREADABLE_HEADERS, header_pairs, read_headers

config, topic, wanted = json.load(sys.stdin)
consumer = Consumer(config)
consumer.assign([TopicPartition(topic, 0, 0)])
messages = []
while len(messages) < wanted:
    messages += consumer.consume(wanted, 1)
for _ in range(2):
    found = [header_pairs(read_headers(message)) for message in messages]
    print(sum(pairs == list(UNREADABLE_HEADERS) for pairs in found), sum(pairs == [("a", b"1")] for pairs in found))
"""
_MARK = {name: value.decode() for name, value in UNREADABLE_HEADERS}
_HEADERS = "mapFromArrays(headers.name, headers.value) AS headers"


def test_a_header_name_that_is_not_utf_8_stops_neither_processor_nor_sinks(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    make_tables(clickhouse)
    agent, sender = Agent(), Sender(kafka)
    key, partition = agent.key.encoded(), partition_of(agent.key.encoded(), kafka.partitions)
    sender.send(*agent.start(LASTING))
    sender.flush()
    accepted = agent.event(SessionActivity("first", None)).value or b""
    send_with_broken_header(kafka, (partition, key, accepted), (partition, key, b"junk"))
    sender.send(agent.event(SessionActivity("last", None)))
    sender.flush()
    start_processor(processes, kafka, "w1")
    wait_until(lambda: count_judged(kafka) == 7, 30, "all records judged")
    (letter,) = read_records(kafka, kafka.topics.rejected)
    assert isinstance(letter, RejectedEvent)
    assert (letter.reason, letter.key, letter.value) == ("undecodable", key, b"junk")
    assert letter.headers == dict(UNREADABLE_HEADERS)
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    assert [(record.kind, record.reason_code) for record in audits[-1:]] == [("rejection", "undecodable")]
    settings = settings_for(kafka, clickhouse)
    with sink_in_thread("history", settings), sink_in_thread("rejected", settings):
        wait_until(lambda: len(_rows(clickhouse, "rejected", "headers")) == 1, 30, "the rejected row")
        wait_until(lambda: len(_rows(clickhouse, "history", _HEADERS)) == 7, 30, "the history rows")
    assert _rows(clickhouse, "rejected", "headers") == [{"headers": _MARK}]
    found = _rows(clickhouse, "history", f"{_HEADERS}, value_bytes = 'junk' AS is_junk")
    assert [(row["headers"] == _MARK, row["is_junk"]) for row in found] == [
        *[(False, False)] * 4,
        (True, False),
        (True, True),
        (False, False),
    ]


def test_headers_are_unreadable_in_code_that_runs_often_too(kafka: KafkaSettings) -> None:
    sender = Sender(kafka)
    key = next(key for key in map(b"%d".__mod__, range(99)) if partition_of(key, kafka.partitions) == 0)
    sender.send(*[OutgoingRecord(key, b"v", [("a", b"1")])] * 100)
    sender.flush()
    send_with_broken_header(kafka, *[(0, key, b"v")] * 20)
    config = {**kafka.client_config(), "group.id": "reader", "auto.offset.reset": "earliest"}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _READER],
        input=json.dumps([config, kafka.topics.events, 120]),
        capture_output=True,
        timeout=300,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "20 100\n20 100\n"), done.stderr


def _rows(clickhouse: ClickHouseSettings, table: str, columns: str) -> list[dict[str, object]]:
    """Return the rows of records that belong to a session, by offset."""
    text = run_sql(
        clickhouse,
        f"SELECT {columns} FROM {clickhouse.clickhouse_database}.{table} FINAL "
        "WHERE session_id != '' ORDER BY source_offset FORMAT JSONEachRow",
    )
    return [json.loads(line) for line in text.splitlines()]
