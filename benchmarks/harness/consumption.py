"""How fast a program consumes a topic, seen from outside: the group's committed offsets, and its processor time."""

import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.stack import Stack
from sessionary.infra.local.process import Child, tail

_LOOK_S = 0.1
_SILENCE_MAX_S = 120.0
_CALL_S = 10.0


class RunFailed(Exception):
    """The program ended, or stood still; the text holds the end of its log."""


class Sample(NamedTuple):
    """One look."""

    at_s: float
    committed: int  # events
    cpu_s: float
    broker_cpu_s: float  # 0 where the broker is not ours


class Rate(NamedTuple):
    """What lies between two looks."""

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
        """Processor time per event, µs: the same as seconds per million events."""
        return self.cpu_s / self.events * 1e6

    @property
    def broker_cpu_us(self) -> float:
        """The broker's processor time per event, µs."""
        return self.broker_cpu_s / self.events * 1e6


class GroupProgress:
    """Looks at a group's place in a topic. Only looks: it is no member of the group."""

    def __init__(self, stack: Stack, topic: str, group: str, partitions: int) -> None:
        self._broker_pid = stack.broker_pid if stack.own_broker else None
        # Uncommitted on purpose: else the broker asks to wait while a transaction with offsets is under way. What it
        # answers are committed offsets either way.
        config = {
            "bootstrap.servers": stack.bootstrap_servers,
            "group.id": group,
            "isolation.level": "read_uncommitted",
        }
        self._consumer = Consumer({**config, "log_level": 0})
        self._topics = [TopicPartition(topic, partition) for partition in range(partitions)]

    def committed_events(self) -> int:
        """Return how many events are consumed and committed."""
        try:
            places = self._consumer.committed(self._topics, timeout=_CALL_S)
        except KafkaException:
            return 0  # the group does not exist yet
        return sum(max(0, place.offset) for place in places)

    def broker_cpu_seconds(self) -> float:
        """Return the broker's processor time so far; 0 where the broker is not ours."""
        return 0.0 if self._broker_pid is None else cpu_seconds(self._broker_pid)

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()


def follow_commits(
    progress_of_group: GroupProgress, child: Child, events: int, progress: Callable[[str], None]
) -> list[Sample]:
    """Look until all `events` are committed. Raises `RunFailed`."""
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
            raise RunFailed(f"stands still at {sample.committed:,} of {events:,}:\n{tail(child.log)}")
        samples.append(sample)
        if sample.at_s - printed_s > 10:
            printed_s = sample.at_s
            progress(f"{sample.committed:,} of {events:,}")
    return samples


def steady_rate(samples: list[Sample], warm_up: int) -> Rate:
    """Return the rate from the first look at which `warm_up` events were through to the last one."""
    first = next(sample for sample in samples if sample.committed >= warm_up)
    last = samples[-1]
    if first is last:
        first = samples[0]  # so few events that one look saw it all: begins with the start of the program
    return Rate(
        last.committed - first.committed,
        last.at_s - first.at_s,
        last.cpu_s - first.cpu_s,
        last.broker_cpu_s - first.broker_cpu_s,
    )


__all__ = ["GroupProgress", "Rate", "RunFailed", "Sample", "follow_commits", "steady_rate"]
