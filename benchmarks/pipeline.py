"""One pipeline under measurement: events in, a processor beside it, and what its batch records say.

Only public seams are used: settings by environment, topics, `/readyz`, `/metrics`, and one line of the log.
"""

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.events import EventRecord
from benchmarks.proc import cpu_s
from benchmarks.stack import Stack, environment
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.producers.delivery.kafka_producer import producer_config
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import BatchRecord
from sessionary.schemas.settings import KafkaSettings

_SAMPLE_S = 0.05
_POLL_S = 0.02
_OPENED = re.compile(r"^(\S+ \S+),(\d{3}) .*partition (\d+) is open", re.M)
_PROGRESS_S = 5.0


class Batch(NamedTuple):
    """A committed transaction: its record, and the broker's time of it in s since the epoch."""

    at_s: float
    record: BatchRecord


def preload(kafka: KafkaSettings, events: Iterable[EventRecord], say: Callable[[str], None]) -> int:
    """Write events as agents do, as fast as it goes; return how many. The events topic then holds them all."""
    settings = ProducerSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix)
    ample = {"queue.buffering.max.kbytes": 512 << 10, "queue.buffering.max.messages": 500_000}
    producer = Producer({**producer_config(settings), **ample})
    topic, sent, told_s = kafka.topics.events, 0, time.monotonic()
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
            if time.monotonic() - told_s > _PROGRESS_S:
                told_s = time.monotonic()
                say(f"  {sent:,} events written")
    if left := producer.flush(120):
        raise RuntimeError(f"{left} events were not acknowledged")
    return sent


class Worker:
    """A processor process with its API."""

    def __init__(self, stack: Stack, kafka: KafkaSettings, name: str = "w1", **settings: str) -> None:
        """Start it; does not wait. `settings`: fields by name."""
        self._stack = stack
        self._port = free_port()
        fields = {"instance": name, "api_port": str(self._port), **settings}
        self.started_s = time.time()
        self.child: Child = stack.start(
            "sessionary.stream_processors", env=environment(kafka, **fields), name=f"processor-{name}"
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self.child.pid

    def ready(self) -> bool:
        """Whether it has an assignment, and all of it is open."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self, timeout_s: float = 300.0) -> float:
        """Wait until all partitions are open; return when, in s since the epoch."""
        deadline_s = time.monotonic() + timeout_s
        while not self.ready():
            self._stack.check(self.child)
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the processor was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return time.time()

    def metrics(self) -> dict[str, float]:
        """Return all its metrics, by name with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def opened_s(self) -> tuple[float, float]:
        """Return when its partitions were assigned and when the last one was open, in s since the epoch.

        All are assigned at one moment; the metric holds the sum of their times from there, the log the moment of each.
        """
        found = _OPENED.findall(self.child.log.read_text("utf-8", "replace"))
        at_s = {
            number: time.mktime(time.strptime(day, "%Y-%m-%d %H:%M:%S")) + int(ms) / 1e3 for day, ms, number in found
        }
        metrics = self.metrics()
        if not at_s or metrics["sessionary_partition_open_seconds_count"] != len(at_s):
            raise RuntimeError("the log and the metrics do not tell of the same openings")
        began_s = (sum(at_s.values()) - metrics["sessionary_partition_open_seconds_sum"]) / len(at_s)
        return began_s, max(at_s.values())

    def stop(self) -> None:
        """End it gracefully."""
        self.child.stop(20.0)


class CpuTrace:
    """Notes a process's CPU time from `start` to `stop`, or while the context lasts; tells it of any span between."""

    def __init__(self, pid: int | None) -> None:
        """`pid`: a process of this machine; None: nobody's, which takes no time."""
        self._pid = pid
        self._seen: list[tuple[float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-trace", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; harmless where it never began."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def between(self, first_s: float, last_s: float) -> float:
        """Return the CPU time used between two moments, s since the epoch."""
        return self._at(last_s) - self._at(first_s)

    def _at(self, moment_s: float) -> float:
        """Interpolate; before the first and after the last sample, theirs."""
        if not self._seen:
            return 0.0
        former = self._seen[0]
        for sample in self._seen:
            if sample[0] >= moment_s:
                span_s = sample[0] - former[0]
                share = (moment_s - former[0]) / span_s if span_s > 0 else 0.0
                return former[1] + (sample[1] - former[1]) * max(0.0, share)
            former = sample
        return former[1]

    def _run(self) -> None:
        while self._pid is not None and not self._done.wait(_SAMPLE_S):
            try:
                self._seen.append((time.time(), cpu_s(self._pid)))
            except OSError:
                return  # it has ended


class BatchReader:
    """Follows the batch records of a pipeline from the beginning, committed ones only."""

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

    def read(self, wait_s: float = 0.2) -> int:
        """Take what is there, waiting a little; return how many batches are known."""
        for message in self._consumer.consume(1_000, wait_s):
            value = message.value()
            if message.error() is None and value is not None:
                record = self._decoder.decode_record(value)
                assert isinstance(record, BatchRecord)
                self.batches.append(Batch(message.timestamp()[1] / 1e3, record))
        return len(self.batches)

    @property
    def judged(self) -> int:
        """Records accounted for, ticks left out."""
        return sum(record.applied + record.duplicate + record.refused for _, record in self.batches)

    def wait_judged(self, events: int, alive: Callable[[], None], say: Callable[[str], None], stall_s: float) -> None:
        """Wait until so many are judged. Raises `RuntimeError` where nothing moves for `stall_s`."""
        moved_s = told_s = time.monotonic()
        known = -1
        while (judged := self.judged) < events:
            alive()
            now_s = time.monotonic()
            if judged != known:
                known, moved_s = judged, now_s
            elif now_s - moved_s > stall_s:
                raise RuntimeError(f"{judged} of {events} events judged, and none more for {stall_s:g} s")
            if now_s - told_s > _PROGRESS_S:
                told_s = now_s
                say(f"  {judged:,} of {events:,} events judged")
            self.read()

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


__all__ = ["Batch", "BatchReader", "CpuTrace", "Worker", "preload"]
