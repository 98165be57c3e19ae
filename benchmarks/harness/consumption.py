"""The rate at which a program consumes a topic, by committed offsets, and its CPU time."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.stack import Stack
from sessionary.infra.local.process import Child, tail

_LOOK_S = 0.1
_SILENCE_MAX_S = 120.0
_CALL_S = 10.0


class RunFailed(Exception):
    """The program ended, or made no progress. The text holds the end of its log."""


class Sample(NamedTuple):
    """One sample of the program."""

    at_s: float
    committed: int  # events
    cpu_s: float
    broker_cpu_s: float  # 0 if the broker is not ours


class Rate(NamedTuple):
    """The difference between two samples."""

    events: int
    elapsed_s: float
    cpu_s: float
    broker_cpu_s: float

    @property
    def per_s(self) -> float:
        """Events per second."""
        return self.events / self.elapsed_s

    @property
    def cpu_us(self) -> float:
        """The program's CPU time per event, µs."""
        return self.cpu_s / self.events * 1e6

    @property
    def broker_cpu_us(self) -> float:
        """The broker's CPU time per event, µs."""
        return self.broker_cpu_s / self.events * 1e6


class GroupProgress:
    """Reads a group's committed offsets in a topic, without joining the group."""

    def __init__(
        self, stack: Stack, topic: str, group: str, partitions: int, ends: Mapping[int, int] | None = None
    ) -> None:
        """`ends`: by partition, the offset from which on nothing counts; None: all counts."""
        self._broker_pid = stack.broker_pid if stack.own_broker else None
        # read_uncommitted: otherwise the broker makes us wait while a transaction with offsets is
        # open. It returns committed offsets either way.
        config = {
            "bootstrap.servers": stack.bootstrap_servers,
            "group.id": group,
            "isolation.level": "read_uncommitted",
        }
        self._consumer = Consumer({**config, "log_level": 0})
        self._ends = ends or {}
        self._topics = [TopicPartition(topic, partition) for partition in range(partitions)]

    def committed_events(self) -> int:
        """Return the number of events that are consumed and committed."""
        try:
            places = self._consumer.committed(self._topics, timeout=_CALL_S)
        except KafkaException:
            return 0  # the group does not exist yet
        return sum(self._count_events(place.partition, max(0, place.offset)) for place in places)

    def _count_events(self, partition: int, offset: int) -> int:
        return min(offset, self._ends.get(partition, offset))

    def broker_cpu_seconds(self) -> float:
        """Return the broker's CPU time so far; 0 if the broker is not ours."""
        return 0.0 if self._broker_pid is None else cpu_seconds(self._broker_pid)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def follow_commits(
    progress_of_group: GroupProgress, child: Child, events: int, progress: Callable[[str], None]
) -> list[Sample]:
    """Sample the program until all `events` are committed. Blocks. Raises `RunFailed`."""
    samples: list[Sample] = []
    moved_s = printed_s = time.monotonic()
    while not samples or samples[-1].committed < events:
        time.sleep(_LOOK_S)
        if child.exit_code is not None:
            raise RunFailed(f"ended with {child.exit_code} after {samples[-1:]}:\n{tail(child.log)}")
        sample = Sample(
            time.monotonic(),
            progress_of_group.committed_events(),
            cpu_seconds(child.pid),
            progress_of_group.broker_cpu_seconds(),
        )
        if not samples or sample.committed > samples[-1].committed:
            moved_s = sample.at_s
        elif sample.at_s - moved_s > _SILENCE_MAX_S:
            raise RunFailed(f"no progress after {sample.committed:,} of {events:,} events:\n{tail(child.log)}")
        samples.append(sample)
        if sample.at_s - printed_s > 10:
            printed_s = sample.at_s
            progress(f"{sample.committed:,} of {events:,}")
    return samples


def steady_rate(samples: list[Sample], warm_up: int) -> Rate:
    """Return the rate from the first sample with `warm_up` events to the last one."""
    first = next(sample for sample in samples if sample.committed >= warm_up)
    last = samples[-1]
    if first is last:
        first = samples[0]  # all events fell into one sample: count from the start
    return Rate(
        last.committed - first.committed,
        last.at_s - first.at_s,
        last.cpu_s - first.cpu_s,
        last.broker_cpu_s - first.broker_cpu_s,
    )
