"""Measures what librdkafka unpacks ahead: `python -m tests.support.idle_consumer CONFIG TOPIC N`.

Assigns the first N partitions of a topic to a consumer of the configuration (JSON), from their
begin on, and takes no record. Prints by how many bytes the process has grown once it grows no more.
"""

import json
import os
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

STABLE_S = 8.0
GROWTH_S_MAX = 120.0


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    config, topic, partitions = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    consumer = Consumer(config)
    before = most = resident_bytes()
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    began_s = grown_s = time.monotonic()
    while time.monotonic() < min(grown_s + STABLE_S, began_s + GROWTH_S_MAX) or most == before:
        time.sleep(0.1)
        if (now := resident_bytes()) > most + (1 << 20):
            most, grown_s = now, time.monotonic()
    sys.stdout.write(f"{most - before}\n")
    sys.stdout.flush()
    os._exit(0)  # closing would wait for what is being unpacked


if __name__ == "__main__":
    main()
