"""Checks that nothing says that it is ready while a partition that it owns stands still.

A partition stands still if its log holds a record beyond what was folded, or beyond what a sink
has committed, and that position does not move. Only time in which the brokers answer counts, as it
does for the readiness of processors and sinks. While a broker is stalled, that leaves out the
partitions that it leads, and no other one.
"""

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException

from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.kafka.log_progress import LogEndClient, LogProgress, StalledPartition
from tests.chaos.commit_watch import CommitWatch
from tests.chaos.schedule import PROCESSORS, SINK_TOPICS
from tests.chaos.stack import PARTITIONS, PREFIX, ChaosStack
from tests.chaos.watch_thread import WatchThread

# Processors and sinks ask for the log's end every 5 s, and stand still after 15 s of answers. The
# rest is for a busy machine.
READY_S_MAX = 35.0
_LOOK_S = 2.0
_GAP_S = 10.0
_ASK_S = 2.0


class Readiness(NamedTuple):
    """An answer of `/readyz`; `partitions` are those that a processor says that it has open.

    A partition that opens, or is halted, says nothing of its worker.
    """

    is_ready: bool
    partitions: frozenset[int] = frozenset()


def read_readiness(url: str, timeout_s: float = 1.0) -> Readiness:
    """Ask a process whether it is ready; one that does not answer is not. Blocks."""
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/readyz", timeout=timeout_s) as answer:
        text = answer.read().decode()
        states = json.loads(text)["partitions"] if text.startswith("{") else {}
        opened = (number for number, state in states.items() if not state.startswith(("opening", "halted")))
        return Readiness(answer.status == 200, frozenset(map(int, opened)))
    return Readiness(is_ready=False)


def count_partitions(url: str, timeout_s: float = 1.0) -> int:
    """Return how many partitions a processor has open or opening; 0 without an answer. Blocks."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=timeout_s) as answer:
            body = answer.read()
    except urllib.error.HTTPError as not_ready:
        with contextlib.closing(not_ready):
            body = not_ready.read()
    except OSError:
        return 0
    try:
        states = json.loads(body)["partitions"]
    except (ValueError, KeyError):
        return 0
    return sum(not state.startswith("halted") for state in states.values())


class TimelyProgress:
    """`LogProgress` of observations that may be far apart; after a long pause it starts again.

    So does a partition whose end is unknown: it was halted, or its broker stalled, and its process
    may need the whole time for what came meanwhile.
    """

    def __init__(self) -> None:
        self._progress = LogProgress()
        self._observed_s: float | None = None

    def observe(
        self, positions: Mapping[int, int], log_ends: Mapping[int, int], now_s: float
    ) -> dict[int, StalledPartition]:
        """Take an observation; return the partitions that have stood still too long."""
        if self._observed_s is None or now_s - self._observed_s > _GAP_S:
            self._progress = LogProgress()  # what happened meanwhile is unknown
        self._observed_s = now_s
        known = {number: position for number, position in positions.items() if number in log_ends}
        self._progress.observe(known, log_ends, now_s)
        return self._progress.stalled_partitions(now_s, READY_S_MAX)


class ReadinessRule:
    """Keeps one sentence per process and partition that was ready although it stood still; pure."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, int], str] = {}

    @property
    def sentences(self) -> list[str]:
        """What was found so far."""
        return list(self._faults.values())

    def judge_process(self, name: str, stalled: Mapping[int, StalledPartition], seen: Readiness) -> None:
        """Take which of a process's partitions stand still too long, and whether it is ready."""
        for partition, one in stalled.items():
            if seen.is_ready:
                self._faults[name, partition] = f"{name} said that it was ready: partition {partition} {one}"


def ends_elsewhere(
    ends: Mapping[int, int], leaders: Mapping[int, str], stalled_brokers: Collection[str]
) -> dict[int, int]:
    """Return the ends of the partitions that another broker leads than a stalled one; pure.

    A partition whose leader is unknown is left out.
    """
    return {number: end for number, end in ends.items() if number in leaders and leaders[number] not in stalled_brokers}


def ends_at_work(ends: Mapping[int, int], seen: Iterable[Readiness]) -> dict[int, int]:
    """Return the ends of the partitions that a ready process has open; pure.

    Time in which a partition is halted or opens does not count: it says so itself.
    """
    opened = frozenset().union(*(reported.partitions for reported in seen if reported.is_ready))
    return {number: end for number, end in ends.items() if number in opened}


class ReadinessWatch(WatchThread):
    """Observes all processors and sinks in a thread, for the context."""

    def __init__(self, stack: ChaosStack, commits: CommitWatch, stalled_brokers: Callable[[], Collection[str]]) -> None:
        """`stalled_brokers`: those that are frozen now, or to which the network is disturbed."""
        super().__init__("readiness", _LOOK_S)
        self._stack, self._commits, self._stalled_brokers = stack, commits, stalled_brokers
        self._rule = ReadinessRule()
        self._folded = TimelyProgress()
        self._sinks = {kind: TimelyProgress() for kind in SINK_TOPICS}
        self._ends = LogEndClient(AdminConnection(stack.kafka), committed_only=True)
        self.observations = 0  # in which the brokers answered for every partition

    @property
    def sentences(self) -> list[str]:
        """One sentence per process and partition that was ready although it stood still."""
        return self._rule.sentences

    def look(self) -> None:
        """Observe each processor and each sink once."""
        self._observe_processors()
        for kind in SINK_TOPICS:
            self._observe_sink(kind)

    def _observe_processors(self) -> None:
        answered = self._ends.ask_ends(f"{PREFIX}.events", range(PARTITIONS), _ASK_S)
        positions = {number: commit.next_offset for number, commit in self._commits.commits.items()}
        # Ticks apart: the end of the log is behind its last record with a key.
        ends = {number: end for number, end in self._commits.event_ends.items() if number in answered}
        # This watch itself learns of transactions from `batches`.
        ends = self._without_stalled(ends, f"{PREFIX}.events", f"{PREFIX}.batches")
        seen = {name: read_readiness(self._stack.control_urls[name]) for name in PROCESSORS}
        stalled = self._folded.observe(positions, ends_at_work(ends, seen.values()), time.monotonic())
        self.observations += len(answered) == PARTITIONS
        for name, reported in seen.items():
            owned = {number: one for number, one in stalled.items() if number in reported.partitions}
            self._rule.judge_process(name, owned, reported)

    def _without_stalled(self, ends: dict[int, int], *topics: str) -> dict[int, int]:
        stalled = self._stalled_brokers()
        for topic in topics if stalled else ():
            ends = ends_elsewhere(ends, self._stack.leaders(topic), stalled)
        return ends

    def _observe_sink(self, kind: str) -> None:
        try:
            found = self._stack.group_offsets(f"{PREFIX}.sink.{kind}", f"{PREFIX}.{SINK_TOPICS[kind]}")
        except KafkaException:
            found = {}
        seen = read_readiness(self._stack.sink_urls[kind])
        positions = {number: done for number, (_, done) in found.items()}
        # Time in which the sink does not say that it is ready does not count: it may start again.
        ends = {number: end for number, (end, _) in found.items()} if seen.is_ready else {}
        ends = self._without_stalled(ends, f"{PREFIX}.{SINK_TOPICS[kind]}")
        if stalled := self._sinks[kind].observe(positions, ends, time.monotonic()):
            self._rule.judge_process(f"sink {kind}", stalled, seen)
