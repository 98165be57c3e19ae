"""What exactly-once rests on in ClickHouse: tokens, the setting that rules on them, the window."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import Tick
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import inserter as inserter_module
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.intent import Intent, RecordBlock, share_block
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime import block_writer
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import query_numbers
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import run_sql

_HISTORY = SINKS["history"]
_TICK = encode_record(Tick("p1"))


def block_of(partition: int, offset: int) -> RecordBlock:
    """Return a block of two ticks."""
    records = [RawRecord("e", partition, offset + n, time.time_ns() // 1_000_000, None, _TICK) for n in range(2)]
    return RecordBlock(offset, offset + 1, records, None)


@pytest.fixture
def settings(clickhouse: ClickHouseSettings) -> SinkSettings:
    make_tables(clickhouse)
    return SinkSettings.model_validate(clickhouse.model_dump())


@pytest.fixture
def metrics() -> SinkMetrics:
    return SinkMetrics("history", "g")


@pytest.fixture
def writer(settings: SinkSettings, metrics: SinkMetrics) -> Iterator[BlockWriter]:
    writer = BlockWriter(_HISTORY, settings, metrics, Decoder())
    yield writer
    writer.close()


@pytest.fixture
def insert_twice(settings: SinkSettings) -> Callable[[], None]:
    def insert() -> None:
        for _ in range(2):
            inserter = TableInserter(settings, _HISTORY.table)
            inserter.open()
            block = inserter.new_block()
            assert not block.add_rows([_HISTORY.build_row(raw, Decoder()) for raw in block_of(0, 0).records])
            inserter.insert_block(block, "token", first_try=False)
            inserter.close()

    return insert


def test_a_newer_server_s_setting_that_rules_on_tokens_is_pinned(
    insert_twice: Callable[[], None], settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert query_numbers(settings, "SELECT count() FROM system.settings WHERE name = 'deduplicate_insert'") == [1]
    insert_twice()
    assert query_numbers(settings, "SELECT count() FROM {db}.history") == [2]
    # A server that sets it so would store the rows twice, whatever the older setting says.
    monkeypatch.setattr(inserter_module, "_PINNED_IF_KNOWN", {"deduplicate_insert": "disable"})
    insert_twice()
    assert query_numbers(settings, "SELECT count() FROM {db}.history") == [6]


@pytest.fixture
def write_some(writer: BlockWriter) -> Callable[[Sequence[int]], None]:
    def write(offsets: Sequence[int]) -> None:
        for offset in offsets:
            writer.write_block(0, block_of(0, offset))

    return write


def test_the_window_is_counted_in_blocks_and_a_shared_block_is_one(
    writer: BlockWriter,
    write_some: Callable[[Sequence[int]], None],
    metrics: SinkMetrics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(block_writer, "_WINDOW_BLOCKS", 5)
    declared = Intent(1, 2, time.time_ns() // 1_000_000 - 1)
    replay = block_of(9, 0)._replace(replay_of=declared)
    write_some([10, 20])
    writer.write_block(1, share_block({partition: block_of(partition, 50) for partition in range(1, 60)}))
    with caplog.at_level(logging.ERROR):
        writer.write_block(9, replay)
    labels = {"sink": "history", "group": "g"}
    # The replay itself is a block too.
    assert metrics.registry.get_sample_value("sessionary_sink_deduplication_window_used", labels) == 4 / 5
    assert "deduplication window" not in caplog.text
    write_some([30, 40])
    with caplog.at_level(logging.ERROR):
        writer.write_block(9, replay)
    assert "older than ClickHouse's deduplication window (6 blocks since)" in caplog.text


def test_a_block_that_merges_with_others_while_it_is_looked_for_is_kept(
    writer: BlockWriter, settings: SinkSettings, metrics: SinkMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge between the two reads that find a block's rows must not make them seem lost."""
    monkeypatch.setattr(block_writer, "_LOOK_EVERY_S", 0.0)
    stop = threading.Event()

    def merge() -> None:
        while not stop.is_set():
            run_sql(settings, f"OPTIMIZE TABLE {settings.clickhouse_database}.history FINAL")

    merging = threading.Thread(target=merge)
    merging.start()
    try:
        for number in range(100):
            writer.write_block(0, block_of(0, 2 * number))
    finally:
        stop.set()
        merging.join()
    labels = {"sink": "history", "group": "g", "reason": "block_not_kept"}
    assert metrics.registry.get_sample_value("sessionary_sink_retries_total", labels) is None
    assert query_numbers(settings, "SELECT count() FROM {db}.history") == [200]
