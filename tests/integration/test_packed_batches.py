"""Batches that unpack to a hundred times their size: what a client unpacks ahead."""

import json
import subprocess
import sys

from confluent_kafka import Producer

from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import EVENT_BYTES_MAX
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.runtime.kafka_client import consumer_config
from sessionary.sinks.settings import SinkSettings
from sessionary.stream_processors.runtime.fetcher import fetcher_config
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.pipelines import new_pipeline, remove_pipeline

PARTITIONS, BATCHES, UNPACKED_BYTES = 8, 3, 50_000_000
LZ4_RATIO_MAX = 255
# A broker adds a batch to an answer that is not full yet, and librdkafka keeps what was packed too.
GROWTH_MAX = LZ4_RATIO_MAX * EVENT_BYTES_MAX + 2 * UNPACKED_BYTES


def send_packed(kafka: KafkaSettings) -> None:
    """Send records of zeros to each partition; lz4 packs each of them to 200 kB."""
    ample = {"message.max.bytes": 2 * UNPACKED_BYTES, "queue.buffering.max.kbytes": 1 << 20}
    producer = Producer({**kafka.client_config(), "compression.type": "lz4", **ample})
    for _ in range(BATCHES):
        for partition in range(PARTITIONS):
            producer.produce(kafka.topics.events, bytes(UNPACKED_BYTES), partition=partition)
            assert producer.flush(120) == 0


def test_clients_unpack_no_more_than_one_answer_of_a_broker_ahead(kafka: KafkaSettings) -> None:
    """All partitions together: the bound does not grow with their number."""
    pipeline = new_pipeline(kafka.bootstrap_servers, PARTITIONS)
    fields = {"bootstrap_servers": pipeline.bootstrap_servers, "topic_prefix": pipeline.topic_prefix}
    configs = [
        fetcher_config(ProcessorSettings.model_validate(fields)),
        consumer_config(SINKS["history"], SinkSettings.model_validate(fields)),
    ]
    try:
        send_packed(pipeline)
        for config in configs:
            argv = [sys.executable, "-m", "tests.support.idle_consumer", json.dumps(config)]
            argv += [pipeline.topics.events, str(PARTITIONS)]
            grown = int(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=400).stdout)
            assert UNPACKED_BYTES < grown < GROWTH_MAX < PARTITIONS * BATCHES * UNPACKED_BYTES
    finally:
        remove_pipeline(pipeline)
