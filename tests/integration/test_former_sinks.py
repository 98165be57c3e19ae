"""Today's sink goes on where one of 0.1.0 was killed, on the real broker and the real engine."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.clickhouse.migrate import apply_migrations
from tests.integration.former_release import FormerRelease, end_process, set_variables
from tests.integration.sink_rig import rows_equal, settings_for, sink_in_thread, start_sink_process
from tests.integration.test_integrity_command import produce_ticks
from tests.support import Processes, wait_until
from tests.support.losses import commit_offset

RECORDS = 5


def test_ticks_of_a_block_that_a_killed_sink_of_0_1_0_had_inserted_are_stored_once(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    former = FormerRelease(tmp_path / "former")
    former.make_tables(processes, clickhouse)
    apply_migrations(clickhouse)
    settings = settings_for(kafka, clickhouse, instance=None)
    produce_ticks(kafka, 1, RECORDS)
    with pytest.MonkeyPatch.context() as patch:
        set_variables(patch, former.environ)
        sink = start_sink_process(processes, "history", settings)
    count = "SELECT count() FROM {db}.history"
    wait_until(rows_equal(clickhouse, count, [RECORDS]), 60, "the rows of 0.1.0")
    end_process(sink)
    # As if it had been killed before its last commit.
    intent = json.dumps({"v": 1, "to": RECORDS - 1, "n": RECORDS, "at": time.time_ns() // 1_000_000})
    commit_offset(settings, "history", 1, 0, intent)
    produce_ticks(kafka, 2, 1)
    with sink_in_thread("history", settings):
        others = "SELECT countIf(source_partition = 2), uniqExact(retention_class) FROM {db}.history"
        wait_until(rows_equal(clickhouse, others, [1, 2]), 60, "a row of today's sink")
        place = TopicPartition(kafka.topics.events, 1)
        reader = Consumer({**settings.client_config(), "group.id": settings.group_id("history")})
        wait_until(lambda: reader.committed([place], timeout=60)[0].offset == RECORDS, 60, "the block's end")
        reader.close()
    assert rows_equal(clickhouse, count, [RECORDS + 1])()
