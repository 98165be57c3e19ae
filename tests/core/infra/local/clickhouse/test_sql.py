"""Statements: formats, inserts, and the allow-list."""

from __future__ import annotations

import gzip
import zlib

import lz4.frame
import pytest
from backports import zstd

from sessionary.infra.local.clickhouse.sql import Insert, decompress_body, parse_statement
from sessionary.infra.local.errors import EngineError, StatementRefused


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (b"SELECT 1 FORMAT JSON", "JSON"),
        (b"SELECT 1\n FORMAT Native", "Native"),
        (b"select 1 format TSV settings max_threads=1", "TSV"),
        (b"SELECT 1 FORMAT CSV;", "CSV"),
        (b"SELECT format('{}', 1)", None),
        (b"SELECT format FROM t", None),
        (b"SELECT ' FORMAT JSON'", None),
        (b"SELECT 1 -- FORMAT JSON", None),
        (b"SELECT * FROM (SELECT 1 FORMAT x)", None),
    ],
)
def test_the_output_format_is_found(sql: bytes, wanted: str | None) -> None:
    statement = parse_statement(sql)
    assert (statement.format, statement.read_only) == (wanted, True)


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (b"INSERT INTO t (a) FORMAT Native\n\n\x00'", Insert("INSERT INTO t (a) ", "", "Native", b"\n\x00'")),
        (
            b"INSERT INTO d.t (`format`) SETTINGS insert_deduplication_token='x FORMAT y' FORMAT Native\n\x01;\x02",
            Insert(
                "INSERT INTO d.t (`format`) ",
                "SETTINGS insert_deduplication_token='x FORMAT y' ",
                "Native",
                b"\x01;\x02",
            ),
        ),
        (
            b"insert into settings settings async_insert=0 values (1)",
            Insert("insert into settings ", "settings async_insert=0 ", "Values", b"(1)"),
        ),
        (
            b"INSERT INTO d.settings (settings) VALUES (1)",
            Insert("INSERT INTO d.settings (settings) ", "", "Values", b"(1)"),
        ),
        (b'insert into t format JSONEachRow {"a":1};', Insert("insert into t ", "", "JSONEachRow", b'{"a":1};')),
        (b"/* c */ INSERT INTO t VALUES (1,'a;b');", Insert("/* c */ INSERT INTO t ", "", "Values", b"(1,'a;b')")),
        (b"INSERT INTO t (`values`) SELECT 1", None),
        (b"INSERT INTO t WITH 1 AS x SELECT x", None),
    ],
)
def test_inserts_are_split_into_head_and_data(sql: bytes, wanted: Insert | None) -> None:
    statement = parse_statement(sql)
    assert statement.insert == wanted
    assert not statement.read_only


@pytest.mark.parametrize("sql", [b"", b"  -- nothing\n", b"SELECT 1; SELECT 2", b"SELECT 1; DROP TABLE t"])
def test_one_statement_at_a_time(sql: bytes) -> None:
    with pytest.raises(EngineError) as caught:
        parse_statement(sql)
    assert caught.value.code == 62


@pytest.mark.parametrize(
    "sql",
    [
        b"CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a",
        b"CREATE TABLE t (a Int8) ENGINE MergeTree() ORDER BY a",
        b"CREATE TABLE IF NOT EXISTS t (engine String) ENGINE = ReplacingMergeTree(v) ORDER BY engine SETTINGS a = 1",
        b"CREATE OR REPLACE TABLE t (a Int8) ENGINE = Memory",
        b"CREATE TABLE t (a Int8) ENGINE = Null",
        b"CREATE TEMPORARY TABLE t (a Int8)",
        b"CREATE TABLE t AS d.other",
        b"CREATE TABLE t ENGINE = Memory AS SELECT engine FROM system.tables",
        b"CREATE VIEW v AS SELECT * FROM t WHERE tenant = {tenant:String}",
        b"CREATE VIEW v AS (SELECT 1)",
        b"CREATE MATERIALIZED VIEW v TO t AS SELECT * FROM u",
        b"CREATE MATERIALIZED VIEW v REFRESH EVERY 1 MINUTE APPEND TO t AS WITH 1 AS x SELECT x",
        b"CREATE DATABASE IF NOT EXISTS d",
        b"CREATE DATABASE d ENGINE = Atomic",
        b"ALTER TABLE t ADD COLUMN b Int8",
        b"ALTER TABLE t MODIFY TTL d + INTERVAL 1 DAY",
        b"DROP TABLE IF EXISTS t",
        b"OPTIMIZE TABLE t FINAL",
        b"DELETE FROM t WHERE a = 1",
        b"SYSTEM REFRESH VIEW v",
    ],
)
def test_definitions_that_the_folder_survives_are_allowed(sql: bytes) -> None:
    assert not parse_statement(sql).read_only


@pytest.mark.parametrize(
    "sql",
    [
        b"CREATE TABLE t (a Int8) ENGINE = Kafka('b', 't', 'g', 'JSON')",
        b"create table t (a Int8) engine Kafka",
        b"CREATE TABLE t (a Int8) /* ENGINE = Memory */ ENGINE = `Kafka`",
        b"CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree('/a', 'b') ORDER BY a",
        b"CREATE TABLE t (a Int8) ENGINE = URL('http://x')",
        b"CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = 's3'",
        b"CREATE TABLE t AS remote('h', d.t)",
        b"CREATE MATERIALIZED VIEW v ENGINE = Kafka AS SELECT 1",
        b"CREATE DATABASE d ENGINE = Replicated('/x')",
        b"CREATE DICTIONARY d (a Int8) PRIMARY KEY a",
        b"CREATE FUNCTION f AS (x) -> x",
        b"CREATE USER u",
        b"ATTACH TABLE t",
        b"DETACH TABLE t",
        b"BACKUP TABLE t TO File('x')",
        b"ALTER TABLE t FETCH PARTITION 1 FROM '/x'",
        b"ALTER USER u",
        b"SYSTEM SHUTDOWN",
        b"INSERT INTO FUNCTION file('x') VALUES (1)",
        b"INSERT INTO t FROM INFILE 'x' FORMAT CSV",
        b"SELECT 1 INTO OUTFILE 'x'",
    ],
)
def test_what_could_damage_the_folder_is_refused(sql: bytes) -> None:
    with pytest.raises(StatementRefused) as caught:
        parse_statement(sql)
    assert caught.value.code == 344
    assert str(caught.value).startswith("Code: 344. DB::Exception: ")


_FRAMES = [b"first " * 1000, b"second " * 1000, b"", b"third"]


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (None, b"".join(_FRAMES)),
        ("lz4", b"".join(lz4.frame.compress(part) for part in _FRAMES)),
        ("gzip", b"".join(gzip.compress(part) for part in _FRAMES)),
        ("zstd", b"".join(zstd.compress(part) for part in _FRAMES)),
        ("deflate", zlib.compress(b"".join(_FRAMES))),
    ],
)
def test_all_frames_of_a_body_are_decoded(encoding: str | None, packed: bytes) -> None:
    assert decompress_body(packed, encoding) == b"".join(_FRAMES)


@pytest.mark.parametrize("encoding", ["lz4", "gzip", "zstd", "deflate"])
def test_cut_and_damaged_bodies_are_errors(encoding: str) -> None:
    packer = {"lz4": lz4.frame.compress, "gzip": gzip.compress, "zstd": zstd.compress, "deflate": zlib.compress}
    whole = packer[encoding](b"row" * 5000)
    for broken in (whole[:-5], b"not packed at all"):
        with pytest.raises(EngineError) as caught:
            decompress_body(broken, encoding)
        assert caught.value.code == 271


def test_an_unknown_encoding_is_an_error() -> None:
    with pytest.raises(EngineError) as caught:
        decompress_body(b"x", "rar")
    assert caught.value.code == 89
