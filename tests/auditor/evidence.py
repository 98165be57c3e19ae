"""Collects what is to be audited, without the product's code: plain consumers, plain HTTP, files.

log         the events topic; `outputs`: the other topics, both read committed to their ends
table       the changelog compacted: the last value of each key, deletions left out; contents that
            are apart are put back into their rows
journal     the clients' own files: one line per event that was delivered or dropped
rows        ClickHouse's tables, duplicates included
sessions    the agents' plans
lifetimes   when each agent process ran
claims      the sessions that were taken over from frozen agents
"""

import base64
import json
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.auditor.decoding import LogEntry, Row, decode_record

POSITION_KEY = b"\x00position"
CONTENT_SUFFIX = b"\x00content"
CHUNK_PREFIX = b"\xfftombstones"
OUTPUTS = ("audit", "rejected", "cleanup", "tasks", "migrations", "quotas", "batches")
ACKNOWLEDGEMENT = "sessionary.records.BatchAcknowledged"  # on `batches`; may be lost or come twice
# Table → the columns that identify a row. Queried without FINAL, so that duplicates are seen.
TABLES = {
    "history": "source_partition AS partition, source_offset AS offset, event_type, producer_id, producer_seq, "
    "lower(hex(MD5(ifNull(value_bytes, '')))) AS digest",
    "audit": "src_partition AS partition, src_offset AS offset, audit_id, audit_seq, kind, "
    "ifNull(transition, '') AS transition",
    "rejected": "src_partition AS partition, src_offset AS offset, reason, source_partition, source_offset",
    "batches": "src_partition AS partition, src_offset AS offset, number, first_offset, last_offset",
    "batch_acknowledgements": "src_partition AS partition, src_offset AS offset, number, "
    "toUnixTimestamp64Micro(acknowledged_at) AS acknowledged_us",
}


class Lifetime(NamedTuple):
    """When an agent process ran, in wall-clock ms; it ended by itself or was killed."""

    agent: str
    started_ms: int
    ended_ms: int


class Evidence(NamedTuple):
    """Everything that the checks compare."""

    partitions: int
    log: list[LogEntry]
    outputs: dict[str, list[tuple[LogEntry, Row]]]
    table: dict[bytes, tuple[str, Row]]  # key → name of its schema, fields
    positions: dict[int, int]
    journal: list[Row]
    rows: dict[str, list[Row]]
    dead_letters: int = 0
    sessions: list[Row] = []
    lifetimes: list[Lifetime] = []
    decided: dict[int, list[Row]] = {}  # decisions of the partitions' position records
    acknowledgements: list[tuple[LogEntry, Row]] = []  # those on `batches`, which `outputs` leaves out
    claims: list[Row] = []
    quota_limits: dict[str, int] = {}  # runs at once, of the tenants that have a limit
    session_limits: dict[str, int] = {}  # live sessions, in the same way
    token_limits: dict[str, tuple[int, int]] = {}  # tokens in a window, and its length in ms; in the same way


def read_topic(servers: str, topic: str, timeout_s: float = 60.0) -> list[LogEntry]:
    """Return the committed records of a topic, ordered by partition and offset.

    Raises `TimeoutError`, `KafkaException`.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        unread = set(consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in unread])
        found: list[LogEntry] = []
        deadline = time.monotonic() + timeout_s
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: partitions {sorted(unread)} not read within {timeout_s:g} s")
            for message in consumer.consume(5_000, 0.2):
                error, place = message.error(), (message.partition() or 0, message.offset() or 0)
                if error is None:
                    key, value = message.key(), message.value()
                    assert not isinstance(key, str)
                    assert not isinstance(value, str)
                    found.append(LogEntry(*place, message.timestamp()[1], key, value, _headers_of(message)))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place[0])
                else:
                    raise KafkaException(error)
        return sorted(found, key=lambda entry: entry[:2])
    finally:
        consumer.close()


def _headers_of(message: Message) -> list[tuple[str, bytes]]:
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


def compact_changelog(entries: Iterable[LogEntry]) -> tuple[dict[bytes, tuple[str, Row]], dict[int, int]]:
    """Return the compacted table and each partition's position. Entries come in offset order."""
    table: dict[bytes, tuple[str, Row]] = {}
    positions: dict[int, int] = {}
    for entry in entries:
        key = entry.key or b""
        if key.startswith(CHUNK_PREFIX):
            key += b"%d" % entry.partition  # each partition has a chunk with this key
        if entry.value is None:
            table.pop(key, None)
            continue
        full_name, fields = decode_record(entry.value)
        if key == POSITION_KEY:
            positions[entry.partition] = fields["next_offset"]
        else:
            table[key] = full_name.rpartition(".")[2], fields
    for key in [key for key in table if key.endswith(CONTENT_SUFFIX)]:
        row = table.get(key.removesuffix(CONTENT_SUFFIX))
        if row is not None and row[1].get("content_apart"):  # any other content is one too many
            row[1].update(table.pop(key)[1], content_apart=False)
    return table, positions


def decisions_in_positions(changelog: Iterable[LogEntry]) -> dict[int, list[Row]]:
    """Return the decisions in each partition's last position; entries are in offset order."""
    values = {entry.partition: entry.value for entry in changelog if entry.key == POSITION_KEY and entry.value}
    return {partition: decode_record(value)[1].get("decisions", []) for partition, value in values.items()}


def read_journals(paths: Iterable[Path]) -> list[Row]:
    """Return every complete line; a process that was killed may leave half a line."""
    lines: list[Row] = []
    for path in paths:
        for text in path.read_text("utf-8", "replace").splitlines():
            try:
                lines.append({**json.loads(text), "file": path.name})
            except ValueError:
                continue
    return lines


def query_rows(url: str, sql: str, user: str = "default", password: str = "") -> list[Row]:
    """Run a query over ClickHouse's HTTP interface and return its rows. Raises `OSError`."""
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    request = urllib.request.Request(
        url,
        data=f"{sql} FORMAT JSONEachRow".encode(),
        headers={"Authorization": f"Basic {credentials}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def gather_evidence(
    servers: str, prefix: str, clickhouse_url: str, database: str, journals: Iterable[Path], partitions: int
) -> Evidence:
    """Read everything; all writers must have stopped.

    Raises `OSError`, `TimeoutError`, `KafkaException`.
    """
    outputs, acknowledgements = read_outputs(servers, prefix)
    changelog = read_topic(servers, f"{prefix}.changelog")
    table, positions = compact_changelog(changelog)
    rows = read_rows(clickhouse_url, database)
    ((dead_letters),) = query_rows(clickhouse_url, f"SELECT count() AS n FROM {database}.sink_dead_letters")
    log = read_topic(servers, f"{prefix}.events")
    found = Evidence(partitions, log, outputs, table, positions, read_journals(journals), rows, int(dead_letters["n"]))
    return found._replace(decided=decisions_in_positions(changelog), acknowledgements=acknowledgements)


def read_rows(clickhouse_url: str, database: str) -> dict[str, list[Row]]:
    """Return the rows of the tables, duplicates included. Raises `OSError`."""
    return {
        name: [
            {column: int(value) if column in _NUMBERS else value for column, value in row.items()}
            for row in query_rows(clickhouse_url, f"SELECT {columns} FROM {database}.{name}")
        ]
        for name, columns in TABLES.items()
    }


def read_outputs(servers: str, prefix: str) -> tuple[dict[str, list[tuple[LogEntry, Row]]], list[tuple[LogEntry, Row]]]:
    """Return what transactions wrote, by topic, and the acknowledgements between them.

    Raises `TimeoutError`, `KafkaException`.
    """
    outputs: dict[str, list[tuple[LogEntry, Row]]] = {}
    acknowledgements: list[tuple[LogEntry, Row]] = []
    for name in OUTPUTS:
        outputs[name] = []
        for entry in read_topic(servers, f"{prefix}.{name}"):
            kind, fields = decode_record(entry.value)
            (acknowledgements if kind == ACKNOWLEDGEMENT else outputs[name]).append((entry, fields))
    return outputs, acknowledgements


_NUMBERS = frozenset(
    {
        *("partition", "offset", "producer_seq", "audit_seq", "source_partition", "source_offset"),
        *("number", "first_offset", "last_offset", "acknowledged_us"),
    }
)
