"""One pipeline under measurement: events in, a processor process, and its batch records.

Only public interfaces are used: environment variables, topics, `/readyz`, `/metrics`, and one line
of the log.
"""

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.stack import Stack, environment
from benchmarks.workload.events import EventRecord
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.producers.delivery.kafka_producer import producer_config
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import BatchRecord
from sessionary.schemas.settings import KafkaSettings

_SAMPLE_S = 0.05
_POLL_S = 0.02
_OPENED = re.compile(r'^{"time": "([^"]+)", .*"event": "partition (\d+) is open"', re.M)
_PROGRESS_S = 5.0


class Batch(NamedTuple):
    """A committed transaction: its record, and the broker's time stamp in s since the epoch."""

    at_s: float
    record: BatchRecord


def preload_events(kafka: KafkaSettings, events: Iterable[EventRecord], progress: Callable[[str], None]) -> int:
    """Write events with the client's producer settings, as fast as possible; return their number.

    Blocks until all are acknowledged. Raises `RuntimeError` if some are not.
    """
    settings = ProducerSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix)
    ample = {"queue.buffering.max.kbytes": 512 << 10, "queue.buffering.max.messages": 500_000}
    producer = Producer({**producer_config(settings), **ample})
    topic, sent, printed_s = kafka.topics.events, 0, time.monotonic()
    for event in events:
        headers: list[tuple[str, str | bytes | None]] = list(event.headers)
        while True:
            try:
                producer.produce(topic, event.value, event.key, headers=headers)
            except BufferError:
                producer.poll(0.05)
                continue
            break
        sent += 1
        if not sent & 1023:
            producer.poll(0)
            if time.monotonic() - printed_s > _PROGRESS_S:
                printed_s = time.monotonic()
                progress(f"  {sent:,} events written")
    if left := producer.flush(120):
        raise RuntimeError(f"{left} events were not acknowledged")
    return sent


class Worker:
    """A processor process and its API."""

    def __init__(
        self,
        stack: Stack,
        kafka: KafkaSettings,
        name: str = "w1",
        module: str = "sessionary.stream_processors",
        **settings: str,
    ) -> None:
        """Start the process; do not wait until it is ready.

        `module`: the program. `settings`: settings by field name.
        """
        self._stack = stack
        self._port = free_port()
        fields = {"instance": name, "api_port": str(self._port), **settings}
        self.started_s = time.time()
        self.child: Child = stack.start(module, env=environment(kafka, **fields), name=f"processor-{name}")

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.child.pid

    @property
    def control_url(self) -> str:
        """The address of its API."""
        return f"http://127.0.0.1:{self._port}"

    def is_ready(self) -> bool:
        """Return True if it has an assignment, and has recovered all of its partitions."""
        try:
            with urllib.request.urlopen(f"{self.control_url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self, timeout_s: float = 300.0) -> float:
        """Block until all partitions are recovered; return the time, in s since the epoch."""
        deadline_s = time.monotonic() + timeout_s
        while not self.is_ready():
            self._stack.check_running(self.child)
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the processor was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return time.time()

    def read_metrics(self) -> dict[str, float]:
        """Return the value of each metric, by name with labels."""
        with urllib.request.urlopen(f"{self.control_url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def opened_s(self) -> tuple[float, float]:
        """Return when its partitions were assigned, and when the last one was open.

        Both are s since the epoch. All are assigned at the same time. The log has the moment at
        which each one was open, the metric the sum of their times since the assignment.
        """
        found = _OPENED.findall(self.child.log.read_text("utf-8", "replace"))
        at_s = {number: datetime.fromisoformat(at).timestamp() for at, number in found}
        metrics = self.read_metrics()
        if not at_s or metrics["sessionary_processor_partition_open_seconds_count"] != len(at_s):
            raise RuntimeError("the log and the metrics do not tell of the same openings")
        began_s = (sum(at_s.values()) - metrics["sessionary_processor_partition_open_seconds_sum"]) / len(at_s)
        return began_s, max(at_s.values())

    def stop(self) -> None:
        """Stop the process gracefully. Blocks."""
        self.child.stop(20.0)


class CpuTrace:
    """Samples a process's CPU time from `start` to `stop`, or while the context lasts."""

    def __init__(self, pid: int | None, read: Callable[[int], float] = cpu_seconds) -> None:
        """`pid`: a process of this machine; None: no process, whose CPU time is 0.

        `read` returns the CPU time of a process so far, in s, or that of a part of it.
        """
        self._pid, self._read = pid, read
        self._seen: list[tuple[float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample_cpu, name="cpu-trace", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; do nothing if it was not started."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def cpu_between(self, first_s: float, last_s: float) -> float:
        """Return the CPU seconds between two times, which are in s since the epoch."""
        return self._cpu_at(last_s) - self._cpu_at(first_s)

    def _cpu_at(self, moment_s: float) -> float:
        """Return the CPU time at a moment, interpolated between samples."""
        if not self._seen:
            return 0.0
        previous = self._seen[0]
        for sample in self._seen:
            if sample[0] >= moment_s:
                span_s = sample[0] - previous[0]
                share = (moment_s - previous[0]) / span_s if span_s > 0 else 0.0
                return previous[1] + (sample[1] - previous[1]) * max(0.0, share)
            previous = sample
        return previous[1]

    def _sample_cpu(self) -> None:
        while self._pid is not None and not self._done.wait(_SAMPLE_S):
            try:
                self._seen.append((time.time(), self._read(self._pid)))
            except OSError:
                return  # the process has ended


class BatchReader:
    """Reads the committed batch records of a pipeline from the beginning."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._consumer = Consumer(
            {
                **kafka.client_config(),
                "group.id": f"{kafka.topic_prefix}.bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([TopicPartition(kafka.topics.batches, n, 0) for n in range(kafka.partitions)])
        self._decoder = Decoder()
        self.batches: list[Batch] = []

    def read_batches(self, wait_s: float = 0.2) -> int:
        """Read new batch records, blocking up to `wait_s`; return the number of all batches."""
        for message in self._consumer.consume(1_000, wait_s):
            value = message.value()
            if message.error() is None and value is not None:
                record = self._decoder.decode_record(value)
                if isinstance(record, BatchRecord):
                    self.batches.append(Batch(message.timestamp()[1] / 1e3, record))
        return len(self.batches)

    @property
    def judged_events(self) -> int:
        """The number of events that were applied or rejected, duplicates, and fenced heartbeats."""
        return sum(
            record.applied + record.duplicate + record.rejected + record.fenced_beats for _, record in self.batches
        )

    def wait_judged(
        self, events: int, alive: Callable[[], None], progress: Callable[[str], None], stall_s: float
    ) -> None:
        """Block until so many events are judged. `alive` may raise if a process has ended.

        Raises `RuntimeError` if nothing moves for `stall_s`.
        """
        moved_s = printed_s = time.monotonic()
        known = -1
        while (judged := self.judged_events) < events:
            alive()
            now_s = time.monotonic()
            if judged != known:
                known, moved_s = judged, now_s
            elif now_s - moved_s > stall_s:
                raise RuntimeError(f"{judged} of {events} events judged, and no more for {stall_s:g} s")
            if now_s - printed_s > _PROGRESS_S:
                printed_s = now_s
                progress(f"  {judged:,} of {events:,} events judged")
            self.read_batches()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
