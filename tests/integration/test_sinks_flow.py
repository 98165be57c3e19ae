"""Sinks on the real broker and the real engine: one row per record, through every crash."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.records import BatchAcknowledged, RejectedEvent, Tick
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.intent import Intent
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import (
    encoded_audits,
    group_lag,
    produce_records,
    query_numbers,
    rows_equal,
    settings_for,
    sink_in_thread,
    start_sink_process,
)
from tests.support.full_disk import fill_disk, may_mount, start_small_clickhouse
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import drop_database, new_clickhouse, new_pipeline, run_sql
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.sink_records import NOW_US, audit_record, batch_record, session_id
from tests.support.waiting import wait_until

_COUNTS = "SELECT count(), uniqExact(session_id, audit_seq) FROM {db}.audit"


def scrape_metrics(settings: SinkSettings, path: str = "/metrics") -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{settings.metrics_port}{path}", timeout=60) as answer:
            text: bytes = answer.read()
    except OSError:
        return ""
    return text.decode()


def rows_grow(clickhouse: ClickHouseSettings) -> Callable[[], bool]:
    """Return a condition: there are more rows than now."""
    before = query_numbers(clickhouse, _COUNTS)[0]
    return lambda: query_numbers(clickhouse, _COUNTS)[0] > before


def test_every_record_is_one_row_and_lag_ends_at_0_behind_transaction_markers(
    kafka: KafkaSettings, tables: ClickHouseSettings
) -> None:
    settings = settings_for(kafka, tables, metrics_port=free_port())
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 40))
    produce_records(kafka, kafka.topics.audit, encoded_audits(900, 4), commit=False)
    with sink_in_thread("audit", settings):
        wait_until(rows_equal(tables, _COUNTS, [400, 400]), 30, "400 rows")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 20, "lag 0")
        wait_until(lambda: 'sessionary_sink_lag_records{group="' in scrape_metrics(settings), 10, "metrics")
        assert scrape_metrics(settings, "/healthz") == "ok\n"
        assert (
            f'sessionary_sink_rows_total{{group="{settings.group_id("audit")}",sink="audit"}} 400.0'
            in scrape_metrics(settings)
        )
    # Times, sizes and personal columns arrive as they were sent.
    record = audit_record(7, 3)
    row = json.loads(
        run_sql(
            tables,
            "SELECT toUnixTimestamp64Micro(appended_at) AS at, user_id, reason, value_size, personal_until, due_at "
            f"FROM {tables.clickhouse_database}.audit "
            f"WHERE session_id = '{session_id(7)}' AND audit_seq = 3 FORMAT JSONEachRow",
        )
    )
    key_bytes = len(b"acme:" + session_id(3).encode())
    assert row == {
        "at": record.appended_at,
        "user_id": "u1",
        "reason": "",
        "value_size": len(encode_record(record)) + key_bytes,
        "personal_until": None,
        "due_at": None,
    }


def test_kill_9_under_load_leaves_the_exact_rows_and_an_exact_rollup(
    kafka: KafkaSettings, tables: ClickHouseSettings, processes: Processes
) -> None:
    database = tables.clickhouse_database
    # A rollup adds up what is inserted, so it shows every row that was written twice, merged or
    # not.
    run_sql(
        tables,
        f"CREATE TABLE {database}.rollup (session_id String, n UInt64) ENGINE = SummingMergeTree ORDER BY session_id "
        "SETTINGS non_replicated_deduplication_window = 10000",
    )
    run_sql(
        tables,
        f"CREATE MATERIALIZED VIEW {database}.rollup_mv TO {database}.rollup AS "
        f"SELECT session_id, count() AS n FROM {database}.audit GROUP BY session_id",
    )
    settings = settings_for(kafka, tables, sink_flush_rows=400, sink_flush_seconds=0.05)
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 500))
    for turn in range(4):
        child = start_sink_process(processes, "audit", settings)
        more = rows_grow(tables)
        wait_until(more, 30, "some rows", pause_s=0.003 * (turn + 1))
        child.kill()
        produce_records(kafka, kafka.topics.audit, encoded_audits(1_000 + turn * 200, 200))
    start_sink_process(processes, "audit", settings)
    wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 40, "everything landed")
    assert query_numbers(tables, _COUNTS) == [13_000, 13_000]
    assert query_numbers(tables, "SELECT sum(n), uniqExact(session_id) FROM {db}.rollup") == [13_000, 1_300]


def test_a_replay_writes_the_declared_block_again_and_brings_back_what_was_lost_of_it(
    kafka: KafkaSettings, tables: ClickHouseSettings
) -> None:
    # No instance name: the member leaves when it stops, so that the test can commit in its place.
    settings = settings_for(
        kafka, tables, instance=None, metrics_port=free_port(), sink_flush_rows=50, sink_flush_seconds=60
    )
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 4, each=50))
    labels = f'{{group="{settings.group_id("audit")}",sink="audit"}}'
    with sink_in_thread("audit", settings):
        wait_until(rows_equal(tables, _COUNTS, [200, 200]), 30, "200 rows")
        blocks = f"sessionary_sink_blocks_total{labels} 4.0"
        wait_until(lambda: blocks in scrape_metrics(settings), 10, "a block of each partition")
    # What a crash between insert and next commit leaves: the offset of the block's start, and the
    # intent in its metadata.
    owner = Consumer({**settings.client_config(), "group.id": settings.group_id("audit")})
    topic_id = ask_topic_id(AdminConnection(kafka), kafka.topics.audit, 60.0)
    intent = Intent(49, 50, NOW_US // 1_000, topic_id).to_metadata()
    owner.commit(offsets=[TopicPartition(kafka.topics.audit, 2, 0, metadata=intent)], asynchronous=False)
    owner.close()
    # What a server leaves that was killed during the insert: tokens of parts that it has not.
    lost = "src_partition = 2 AND src_offset < 20 SETTINGS mutations_sync = 1"
    run_sql(tables, f"ALTER TABLE {tables.clickhouse_database}.audit DELETE WHERE {lost}")
    assert query_numbers(tables, _COUNTS) == [180, 180]
    with sink_in_thread("audit", settings):
        name = f"sessionary_sink_replays_total{labels} 1.0"
        wait_until(lambda: name in scrape_metrics(settings), 30, "one replay")
        # Each of the four blocks and the rows that were lost are an entry of the window, of 10,000.
        used = f"sessionary_sink_deduplication_window_used{labels} 0.0005"
        wait_until(lambda: used in scrape_metrics(settings), 10, "the entries since the declaration")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 20, "lag 0")
    assert query_numbers(tables, _COUNTS) == [200, 200]


def test_clickhouse_goes_away_and_comes_back(kafka: KafkaSettings, own_clickhouse: LocalClickHouse) -> None:
    clickhouse = new_clickhouse(own_clickhouse.url)
    make_tables(clickhouse)
    settings = settings_for(kafka, clickhouse, metrics_port=free_port())
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 40))
    with sink_in_thread("audit", settings):
        wait_until(rows_equal(clickhouse, _COUNTS, [400, 400]), 30, "the first rows")
        own_clickhouse.kill()
        produce_records(kafka, kafka.topics.audit, encoded_audits(100, 40))
        wait_until(lambda: 'reason="network"' in scrape_metrics(settings), 20, "a retry")
        assert group_lag(settings, "audit", kafka.topics.audit) > 0
        assert "sessionary_sink_blocked{" not in scrape_metrics(settings)  # it passes by itself: no operator is needed
        own_clickhouse.start()
        own_clickhouse.wait_ready()
        wait_until(rows_equal(clickhouse, _COUNTS, [800, 800]), 40, "all rows")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 20, "lag 0")


@pytest.mark.skipif(not may_mount(), reason="needs a user namespace that may mount")
def test_clickhouse_has_no_room_and_a_sink_keeps_its_offsets_until_each_row_is_there_once(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    port, ballast = start_small_clickhouse(processes, tmp_path / "data")
    clickhouse = new_clickhouse(f"http://{LOOPBACK}:{port}")
    make_tables(clickhouse)
    settings = settings_for(kafka, clickhouse, metrics_port=free_port())
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 40))
    with sink_in_thread("audit", settings):
        wait_until(rows_equal(clickhouse, _COUNTS, [400, 400]), 30, "the first rows")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 20, "lag 0")
        fill_disk(ballast)
        produce_records(kafka, kafka.topics.audit, encoded_audits(100, 40))
        wait_until(lambda: 'reason="no_space"' in scrape_metrics(settings), 20, "a retry")
        assert group_lag(settings, "audit", kafka.topics.audit) > 0
        ballast.unlink()
        wait_until(rows_equal(clickhouse, _COUNTS, [800, 800]), 40, "all rows")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 20, "lag 0")


def test_without_its_tables_a_sink_waits_reports_it_and_resumes_after_the_migration(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    with pytest.raises(OperatorError, match="sessionary db migrate"):
        migrate.check_migrations(clickhouse)
    settings = settings_for(kafka, clickhouse, metrics_port=free_port())
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 40))
    blocked = f'sessionary_sink_blocked{{group="{settings.group_id("audit")}",reason="not_migrated",sink="audit"}}'
    with sink_in_thread("audit", settings):
        wait_until(lambda: f"{blocked} 1.0" in scrape_metrics(settings), 30, "blocked")
        assert scrape_metrics(settings, "/healthz") == "blocked: not_migrated\n"
        assert migrate.apply_migrations(clickhouse)[:1] == ["0001_tables"]
        assert migrate.apply_migrations(clickhouse) == []
        wait_until(rows_equal(clickhouse, _COUNTS, [400, 400]), 30, "every row, none skipped")
        wait_until(lambda: f"{blocked} 0.0" in scrape_metrics(settings), 10, "no longer blocked")


def test_a_bad_row_becomes_a_dead_letter_with_its_bytes_and_stops_nothing(
    kafka: KafkaSettings, tables: ClickHouseSettings
) -> None:
    settings = settings_for(kafka, tables)
    junk, year_9999 = b"\xff\x00junk", encode_record(audit_record(1, 5, appended_at=253_370_764_800_000_000))
    # A negative number passes the schema, and fails in encoding the column: found by bisecting.
    negative = encode_record(audit_record(1, 6, source_offset=-1))
    good = encoded_audits(0, 20)
    produce_records(kafka, kafka.topics.audit, [*good[:50], (1, junk), *good[50:], (1, year_9999), (1, negative)])
    with sink_in_thread("audit", settings):
        wait_until(rows_equal(tables, _COUNTS, [200, 200]), 30, "the good rows")
        wait_until(rows_equal(tables, "SELECT count() FROM {db}.sink_dead_letters", [3]), 20, "three letters")
    letters = [found for found in read_records(kafka, kafka.topics.sink_rejected) if isinstance(found, RejectedEvent)]
    assert [letter.value for letter in letters] == [junk, year_9999, negative]
    assert {letter.reason for letter in letters} == {"bad_row"}
    assert {(letter.source_topic, letter.source_partition) for letter in letters} == {(kafka.topics.audit, 1)}
    assert "source_offset" in letters[2].detail
    database = tables.clickhouse_database
    assert run_sql(tables, f"SELECT hex(value) FROM {database}.sink_dead_letters ORDER BY source_offset").split() == [
        value.hex().upper() for value in (junk, year_9999, negative)
    ]


def test_history_takes_everything_rejections_and_batches_go_to_their_tables(
    kafka: KafkaSettings, tables: ClickHouseSettings
) -> None:
    producer = Producer(kafka.client_config())
    tick = encode_record(Tick("p1"))
    for value, key in ((tick, None), (b"\xffjunk", b"k\xff"), (None, b"acme:x"), (b"", None)):
        producer.produce(kafka.topics.events, value, key, partition=1, headers=[("h", b"\xfe")])
    producer.flush(120)
    rejection = RejectedEvent(
        "bad_key",
        "d",
        False,
        None,
        None,
        None,
        None,
        None,
        kafka.topics.events,
        1,
        1,
        NOW_US,
        None,
        b"\xff",
        {"h": b"\xfe"},
    )
    produce_records(kafka, kafka.topics.rejected, [(1, encode_record(rejection))])
    acknowledged = BatchAcknowledged(1, 3, NOW_US, "w1")
    batches = [encode_record(batch_record(1, number)) for number in (1, 2, 3)]
    batches += [encode_record(acknowledged)] * 2
    produce_records(kafka, kafka.topics.batches, [(1, value) for value in batches])
    settings = settings_for(kafka, tables)
    with sink_in_thread("history", settings), sink_in_thread("rejected", settings), sink_in_thread("batches", settings):
        wait_until(rows_equal(tables, "SELECT count() FROM {db}.history", [4]), 30, "history")
        wait_until(rows_equal(tables, "SELECT count() FROM {db}.rejected", [1]), 30, "rejections")
        wait_until(rows_equal(tables, "SELECT count(), max(number) FROM {db}.batches", [3, 3]), 30, "batches")
        reported = "SELECT count(), uniqExact(src_offset), max(number) FROM {db}.batch_acknowledgements"
        wait_until(rows_equal(tables, reported, [2, 2, 3]), 30, "acknowledgements")
    database = tables.clickhouse_database
    rows = run_sql(
        tables,
        "SELECT src_offset, event_type, decode_error, hex(ifNull(key_bytes, '-')), hex(ifNull(value_bytes, '-')), "
        f"hex(headers[1].value) FROM {database}.history ORDER BY source_offset FORMAT JSONCompactEachRow",
    )
    dash = b"-".hex().upper()
    assert [json.loads(line) for line in rows.splitlines()] == [
        [0, "tick", "", dash, tick.hex().upper(), "FE"],
        [1, "", "undecodable", b"k\xff".hex().upper(), b"\xffjunk".hex().upper(), "FE"],
        [2, "", "undecodable", b"acme:x".hex().upper(), dash, "FE"],
        [3, "", "undecodable", dash, "", "FE"],
    ]
    assert run_sql(tables, f"SELECT hex(value), hex(headers['h']) FROM {database}.rejected").split() == ["FF", "FE"]
    assert query_numbers(tables, "SELECT count(), any(value_bytes) FROM {db}.v_rejected") == [1, 1]


def test_two_pipelines_side_by_side_each_take_everything(kafka: KafkaSettings, tables: ClickHouseSettings) -> None:
    other = new_clickhouse(tables.clickhouse_url)
    try:
        make_tables(other)
        first = settings_for(kafka, tables)
        second = settings_for(kafka, other, pipeline="second")
        assert first.group_id("audit") != second.group_id("audit")
        produce_records(kafka, kafka.topics.audit, encoded_audits(0, 40))
        with sink_in_thread("audit", second):
            with sink_in_thread("audit", first):
                wait_until(rows_equal(tables, _COUNTS, [400, 400]), 30, "the first pipeline")
            produce_records(kafka, kafka.topics.audit, encoded_audits(100, 40))
            wait_until(rows_equal(other, _COUNTS, [800, 800]), 30, "the second, with the first stopped")
        assert query_numbers(tables, _COUNTS) == [400, 400]
    finally:
        drop_database(other)


def test_the_broker_goes_away_and_comes_back(broker: LocalBroker, tables: ClickHouseSettings) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    settings = settings_for(kafka, tables)
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 40))
    # A broker that was killed may have forgotten the group's static members, and fences them.
    with sink_in_thread("audit", settings, restarts=5):
        wait_until(rows_equal(tables, _COUNTS, [400, 400]), 30, "the first rows")
        broker.kill()
        broker.start()
        broker.wait_ready()
        produce_records(kafka, kafka.topics.audit, encoded_audits(100, 40))
        wait_until(rows_equal(tables, _COUNTS, [800, 800]), 60, "all rows, once")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 30, "lag 0")


def test_partitions_that_move_between_two_members_leave_the_exact_rows(
    kafka: KafkaSettings, tables: ClickHouseSettings
) -> None:
    settings = settings_for(kafka, tables, instance=None, sink_flush_rows=200, sink_flush_seconds=0.05)
    produce_records(kafka, kafka.topics.audit, encoded_audits(0, 400))
    with sink_in_thread("audit", settings):
        wait_until(rows_grow(tables), 30, "the first member writes")
        with sink_in_thread("audit", settings):
            produce_records(kafka, kafka.topics.audit, encoded_audits(1_000, 400))
            wait_until(lambda: query_numbers(tables, _COUNTS)[1] >= 8_000, 40, "both members' rows")
        produce_records(kafka, kafka.topics.audit, encoded_audits(2_000, 100))
        wait_until(
            lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 40, "the first member owns all partitions"
        )
    assert query_numbers(tables, _COUNTS) == [9_000, 9_000]


def test_a_block_that_clickhouse_dropped_as_known_is_noticed_and_inserted_again(
    kafka: KafkaSettings, tables: ClickHouseSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(kafka, tables, metrics_port=free_port(), partitions=1, sink_flush_seconds=2)
    produce_records(kafka, kafka.topics.audit, [(0, encode_record(audit_record(0, seq))) for seq in (1, 2)])
    inserter = TableInserter(settings, SINKS["audit"].table)
    inserter.open()
    block = inserter.new_block()
    other = RawRecord("t", 7, 7, NOW_US // 1_000, b"k", encode_record(audit_record(3, 1)))
    assert not block.add_rows([SINKS["audit"].build_row(other, Decoder())])
    topic_id = ask_topic_id(AdminConnection(kafka), kafka.topics.audit, 60.0)
    token = f"{settings.group_id('audit')}:{kafka.topics.audit}:{topic_id}:0:0-1"
    inserter.insert_block(block, token, first_try=True)
    inserter.close()
    with sink_in_thread("audit", settings):
        wait_until(rows_equal(tables, _COUNTS, [3, 3]), 60, "the rows of both")
        wait_until(lambda: 'reason="block_not_kept"' in scrape_metrics(settings), 10, "the metric")
    assert "did not keep 2 of a block's 2 rows" in caplog.text
