"""Batches that librdkafka cannot read: a zstd batch that unpacks to too much, and a damaged one."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import free_port
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.runtime import blocked_partitions
from tests.integration.processor_load import Sender, agent_of_partition, start_processor
from tests.integration.sink_rig import query_numbers, settings_for, sink_in_thread
from tests.integration.test_partition_decisions import read_decisions
from tests.integration.test_processor_api import get
from tests.integration.test_sinks_flow import scrape_metrics
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import new_pipeline
from tests.support.processes import Processes
from tests.support.waiting import wait_until

UNPACKED_BYTES = 110_000_000  # more than receive.message.max.bytes
PACKED, DAMAGED, WHOLE, LOST = 0, 1, 2, 3  # partitions
MARK = b"a record that is not Avro, so that it is rejected"
TOKENS = json.dumps({"token-op": {"principal": "on-call", "roles": ["operator"]}})
HALTED_S = 120


def send_packed(kafka: KafkaSettings) -> None:
    """Send one record of zeros, which zstd packs to a few kB."""
    ample = {"message.max.bytes": 2 * UNPACKED_BYTES, "queue.buffering.max.kbytes": 1 << 20}
    producer = Producer({**kafka.client_config(), "compression.type": "zstd", **ample})
    producer.produce(kafka.topics.events, bytes(UNPACKED_BYTES), partition=PACKED)
    assert producer.flush(120) == 0


def replace_in_log(folder: Path, kafka: KafkaSettings, former: bytes, now: bytes, partition: int = DAMAGED) -> None:
    """Replace bytes in the log of a partition, below the broker."""
    assert len(former) == len(now)
    (path,) = folder.rglob(f"{kafka.topics.events}-{partition}/*.log")
    content = path.read_bytes()
    assert content.count(former) == 1
    with path.open("r+b") as log:
        log.seek(content.index(former))
        log.write(now)


class Pipeline:
    """What a worker and a sink say of their partitions."""

    def __init__(self, kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> None:
        self._kafka, self._clickhouse = kafka, clickhouse
        self.api_port = free_port()
        self.sink_settings = settings_for(kafka, clickhouse, metrics_port=free_port())

    def partitions(self) -> dict[int, Any]:
        """Return what the control API says of each partition."""
        try:
            answer = get(f"http://127.0.0.1:{self.api_port}/v1/partitions", "token-op")
        except OSError:
            return {}
        return {found["partition"]: found for found in answer.body["partitions"]} if answer.status == 200 else {}

    def halted(self) -> dict[int, Any]:
        """Return what the control API says of each partition that is halted for a batch."""
        found, reason = self.partitions().items(), "batch_unreadable"
        return {number: one for number, one in found if one["state"] == "halted" and one["reason"] == reason}

    def retry(self, partition: int) -> None:
        """Have a halted partition opened again."""
        get(f"http://127.0.0.1:{self.api_port}/v1/partitions/{partition}/retry", "token-op", "POST")

    def skip(self, partition: int, offset: int) -> int:
        """Skip what a partition is halted at; return the status of the answer."""
        body = json.dumps({"offset": offset, "reason": "it is damaged"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api_port}/v1/partitions/{partition}/skip",
            data=body,
            headers={"Authorization": "Bearer token-op", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def rows(self) -> list[float]:
        """Return how many rows of history the partitions have."""
        counts = ", ".join(f"countIf(source_partition = {number})" for number in (PACKED, DAMAGED, WHOLE))
        return query_numbers(self._clickhouse, f"SELECT {counts} FROM {{db}}.history")

    def blocked(self) -> set[int]:
        """Return the partitions that the sink names as blocked."""
        text = scrape_metrics(self.sink_settings)
        start = f'sessionary_sink_partition_blocked{{group="{self.sink_settings.group_id("history")}",partition='
        end = ',reason="batch_unreadable",sink="history"} 1.0'
        return {number for number in range(self._kafka.partitions) if f'{start}"{number}"{end}' in text}


def send_log(kafka: KafkaSettings) -> None:
    """Send four events of each session, the three batches, and one event more."""
    agents = [agent_of_partition(number, kafka.partitions) for number in (PACKED, DAMAGED, WHOLE, LOST)]
    sender = Sender(kafka)
    for agent in agents:
        sender.send(*agent.start())
    sender.flush()
    send_packed(kafka)
    plain = Producer({**kafka.client_config(), "linger.ms": 60_000})  # `flush` does not wait for it
    plain.produce(kafka.topics.events, MARK, partition=DAMAGED)
    for value in (b"first of three", MARK, b"last of three"):
        plain.produce(kafka.topics.events, value, partition=LOST)
    assert plain.flush(120) == 0
    sender.send(*(agent.work() for agent in agents))
    sender.flush()


def test_a_batch_that_cannot_be_read_stops_its_partition_by_name_and_no_other(
    broker: LocalBroker,
    clickhouse: ClickHouseSettings,
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked_partitions, "RETRY_S", 1.0)
    monkeypatch.setattr(blocked_partitions, "RETRY_S_MAX", 2.0)
    make_tables(clickhouse)
    kafka = new_pipeline(broker.bootstrap_servers)
    send_log(kafka)
    replace_in_log(tmp_path / "kafka", kafka, MARK, MARK.swapcase())
    replace_in_log(tmp_path / "kafka", kafka, MARK, MARK.swapcase(), LOST)
    pipeline = Pipeline(kafka, clickhouse)
    start_processor(processes, kafka, "w1", api_port=str(pipeline.api_port), api_tokens=TOKENS)
    with sink_in_thread("history", pipeline.sink_settings):
        wait_until(pipeline.partitions, 60, "the control API")
        halted = {PACKED, DAMAGED, LOST}
        # Now and then a halted partition is opened again, so one look has to find all three.
        page = wait_until(
            lambda: found if (found := pipeline.halted()).keys() == halted else None,
            HALTED_S,
            "three partitions to halt",
        )
        for number, found in page.items():
            assert found["next_offset"] == 4
            assert f"partition {number}: the batch that begins at offset 4 " in found["detail"]
            assert "otherwise skip it: sessionary partition skip" in found["detail"]
        wait_until(
            lambda: (pipeline.partitions()[WHOLE]["next_offset"] or 0) >= 5, 30, "the third session's last event"
        )
        wait_until(lambda: pipeline.blocked() == {PACKED, DAMAGED, LOST}, 30, "the sink to name these partitions")
        wait_until(lambda: pipeline.rows()[:2] == [4, 4] and pipeline.rows()[2] >= 5, 30, "rows of all partitions")

        # A retry finds the batch again, and halts again for the same reason.
        pipeline.retry(PACKED)
        wait_until(lambda: pipeline.halted().keys() == halted, HALTED_S, "the partition to halt again")
        replace_in_log(tmp_path / "kafka", kafka, MARK.swapcase(), MARK)
        pipeline.retry(DAMAGED)
        wait_until(lambda: pipeline.halted().keys() == {PACKED, LOST}, 120, "the mended partition to go on")
        wait_until(lambda: (pipeline.partitions()[DAMAGED]["next_offset"] or 0) >= 6, 30, "all of its events")
        wait_until(lambda: pipeline.blocked() == {PACKED, LOST} and pipeline.rows()[1] >= 6, 30, "the sink to go on")

        # Batches are skipped as a whole. The sink follows the audit trail.
        for number in (PACKED, LOST):
            wait_until(lambda number=number: pipeline.skip(number, 4) == 200, HALTED_S, "the skip")  # type: ignore[misc]
        wait_until(lambda: not pipeline.halted(), HALTED_S, "the skipped batches")
        wait_until(
            lambda: (pipeline.partitions()[PACKED]["next_offset"] or 0) >= 6, 30, "the event after the large batch"
        )
        wait_until(
            lambda: (pipeline.partitions()[LOST]["next_offset"] or 0) >= 8, 30, "the event after the damaged batch"
        )
        skipped = {line.source_partition: (line.gap_first, line.gap_last) for line in read_decisions(kafka)}
        assert skipped == {PACKED: (4, 4), LOST: (4, 6)}
        with sink_in_thread("audit", settings_for(kafka, clickhouse, metrics_port=free_port())):
            wait_until(lambda: pipeline.blocked() == set(), 60, "the sink to leave the batches out")
            wait_until(lambda: pipeline.rows()[0] >= 5, 60, "the event after the large batch")
