"""Blocks of ticks that partitions share, with kill -9 and partitions that move in between."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from sessionary.schemas.codec import encode_record
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.records import Tick
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.intent import Intent, Piece, parse_metadata
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import (
    group_lag,
    produce_records,
    query_numbers,
    settings_for,
    sink_in_thread,
    start_sink_process,
)
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import run_sql
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_TICK = encode_record(Tick("p1"))
_COUNTS = "SELECT count(), uniqExact(source_partition, source_offset) FROM {db}.history"


_KILLS, _KILLS_MAX = 6, 24  # a busy machine may kill only after the block's end


def stays_true(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether a condition holds for so long."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if not condition():
            return False
    return True


def produce_ticks(kafka: KafkaSettings, each: int) -> None:
    produce_records(kafka, kafka.topics.events, [(n, _TICK) for _ in range(each) for n in range(kafka.partitions)])


def make_rollup(clickhouse: ClickHouseSettings) -> None:
    """Add up what is inserted: that shows each row that was written twice, merged or not."""
    database = clickhouse.clickhouse_database
    run_sql(
        clickhouse,
        f"CREATE TABLE {database}.rollup (place UInt64, n UInt64) ENGINE = SummingMergeTree ORDER BY place "
        "SETTINGS non_replicated_deduplication_window = 10000",
    )
    run_sql(
        clickhouse,
        f"CREATE MATERIALIZED VIEW {database}.rollup_mv TO {database}.rollup AS SELECT "
        f"source_partition * 1000000 + source_offset AS place, count() AS n FROM {database}.history GROUP BY place",
    )


class IntentWatch:
    """Reads which blocks the group's commits declare, with one client."""

    def __init__(self, settings: SinkSettings) -> None:
        self._consumer = Consumer({**settings.client_config(), "group.id": settings.group_id("history")})
        self._places = [TopicPartition(settings.topics.events, number) for number in range(settings.partitions)]

    def read_shared(self) -> list[Intent]:
        """Return the intents of blocks that partitions share."""
        found = [parse_metadata(place.metadata).intent for place in self._consumer.committed(self._places, timeout=60)]
        return [intent for intent in found if intent is not None and intent.pieces]

    def close(self) -> None:
        self._consumer.close()


def commit_intents(settings: SinkSettings, pieces: Sequence[Piece], records: int) -> None:
    """Leave what a crash between commit and insert leaves."""
    topic = settings.topics.events
    topic_id = ask_topic_id(AdminConnection(settings), topic, 60.0)
    owner = Consumer({**settings.client_config(), "group.id": settings.group_id("history")})
    owner.commit(
        offsets=[
            TopicPartition(
                topic,
                piece.partition,
                piece.first,
                metadata=Intent(piece.last, records, 1, topic_id, tuple(pieces)).to_metadata(),
            )
            for piece in pieces
        ],
        asynchronous=False,
    )
    owner.close()


def test_both_new_owners_of_a_shared_block_write_it_and_its_rows_are_there_once(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    make_tables(clickhouse)
    make_rollup(clickhouse)
    # No instance name: members leave when they stop, and share the partitions.
    settings = settings_for(kafka, clickhouse, instance=None)
    produce_ticks(kafka, 5)
    # The first tick of each partition lies before the committed offset.
    pieces = [Piece(number, 1, 4) for number in range(kafka.partitions)]
    wanted = 4 * kafka.partitions
    for crash in ("before the insert", "after the insert"):
        commit_intents(settings, pieces, wanted)
        with sink_in_thread("history", settings), sink_in_thread("history", settings):
            wait_until(lambda: group_lag(settings, "history", kafka.topics.events) == 0, 60, "all to be landed")
        assert query_numbers(clickhouse, _COUNTS) == [wanted, wanted], crash
        assert query_numbers(clickhouse, "SELECT sum(n), uniqExact(place) FROM {db}.rollup") == [wanted, wanted], crash
        with closing(IntentWatch(settings)) as watch:
            assert watch.read_shared() == []


def test_kill_9_of_two_sinks_that_share_blocks_leaves_the_exact_rows(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    make_tables(clickhouse)
    make_rollup(clickhouse)
    settings = [settings_for(kafka, clickhouse, instance=None, sink_idle_seconds=0.3) for _ in range(2)]
    sinks = [start_sink_process(processes, "history", one) for one in settings]
    produced = left = 0
    with closing(IntentWatch(settings[0])) as watch:
        for turn in range(_KILLS_MAX):
            if turn >= _KILLS and left:
                break

            def is_shared() -> bool:
                """Look for a shared block; give the sinks more to share if the last one is over."""
                nonlocal produced
                if watch.read_shared():
                    return True
                if group_lag(settings[0], "history", kafka.topics.events) == 0:
                    produce_ticks(kafka, 2)
                    produced += 2 * kafka.partitions
                return False

            wait_until(is_shared, 120, "a shared block", pause_s=0.001)
            sinks[turn % 2].kill()
            # A living sink ends its block within this time; the other one's partitions move later.
            left += stays_true(watch.read_shared, 1.0)
            sinks[turn % 2] = start_sink_process(processes, "history", settings[turn % 2])
            wait_until(lambda: group_lag(settings[0], "history", kafka.topics.events) == 0, 60, "all to be landed")
            wait_until(lambda: not watch.read_shared(), 20, "the end of the block")
    assert left > 0, "no kill left a declared block"
    assert query_numbers(clickhouse, _COUNTS) == [produced, produced]
    assert query_numbers(clickhouse, "SELECT sum(n), uniqExact(place) FROM {db}.rollup") == [produced, produced]
