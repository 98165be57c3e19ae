"""Finds the first record that a group has not read in each partition of a topic.

A log may end with the marker of a transaction, which no reader passes: rules that are activated at
the end of a run leave one. So a committed offset below the log's end does not tell that a record
is unread.
"""

import time
from collections.abc import Collection

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_ASK_S = 10.0


def find_unread(servers_address: str, group: str, topic: str, partitions: Collection[int]) -> dict[int, int]:
    """Return partition → offset of the first committed record that the group has not read.

    A partition without one is left out. Raises `KafkaException` if a broker does not answer.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers_address,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        asked = [TopicPartition(topic, partition) for partition in partitions]
        consumer.assign(consumer.committed(asked, timeout=_ASK_S))
        waiting, unread = set(partitions), dict[int, int]()
        deadline = time.monotonic() + _ASK_S
        while waiting:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}: partitions {sorted(waiting)}"))
            message = consumer.poll(0.2)
            if message is None:
                continue
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition in waiting and offset is not None:
                waiting.discard(partition)
                if error is None:
                    unread[partition] = offset
        return unread
    finally:
        consumer.close()
