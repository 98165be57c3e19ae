"""A sink's Prometheus metrics, and the endpoint with /metrics, /healthz and /readyz.

`HELP` lists every metric with the sentence that explains it and names its unit.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Final, Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sessionary.sinks.settings import SinkSettings

MetricName = Literal[
    "sessionary_sink_rows_total",
    "sessionary_sink_blocks_total",
    "sessionary_sink_replays_total",
    "sessionary_sink_dead_letters_total",
    "sessionary_sink_retries_total",
    "sessionary_sink_blocked",
    "sessionary_sink_partition_blocked",
    "sessionary_sink_replay_age_seconds",
    "sessionary_sink_deduplication_window_used",
    "sessionary_sink_landed_offset",
    "sessionary_sink_lag_records",
    "sessionary_sink_lag_seconds",
    "sessionary_sink_insert_seconds",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_sink_rows_total": "Rows that ClickHouse has acknowledged.",
    "sessionary_sink_blocks_total": "Blocks (inserts) that ClickHouse has acknowledged.",
    "sessionary_sink_replays_total": "Blocks that a former owner declared and this sink inserted again.",
    "sessionary_sink_dead_letters_total": "Records that the sink could not store.",
    "sessionary_sink_retries_total": "Failed attempts that are repeated, by reason.",
    "sessionary_sink_blocked": "1 while the sink waits for an operator, else 0, by reason.",
    "sessionary_sink_partition_blocked": "1 while a partition waits for an operator and the others continue, by "
    "partition and reason.",
    "sessionary_sink_replay_age_seconds": "Seconds from the declaration of the last replayed block to its replay.",
    "sessionary_sink_deduplication_window_used": "Entries that ClickHouse's deduplication window got from the last "
    "replayed block's declaration to its replay, as a share of the window; from 1 on rows may be stored twice until "
    "they are merged.",
    "sessionary_sink_landed_offset": "Offset below which every record is in ClickHouse, by partition.",
    "sessionary_sink_lag_records": "Offsets from the landed offset to the log's end, by partition; 0 if only "
    "transaction markers follow.",
    "sessionary_sink_lag_seconds": "Seconds since the oldest record without a stored row was appended, by partition; "
    "a tick or heartbeat counts from the end of its delay; a lower bound for an unreadable partition; 0 without a lag.",
    "sessionary_sink_insert_seconds": "Seconds that one insert took.",
}

# /healthz reports a loop as dead after this long without a turn; one insert may take a minute.
_ALIVE_S = 150.0
_TEXT = "text/plain; charset=utf-8"
_INSERT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


Readiness = Callable[[], tuple[bool, str]]
"""Whether all is well, and a line for people."""


class SinkMetrics:
    """The metrics of one sink, in its own registry: one process may run several sinks."""

    def __init__(self, sink: str, group: str) -> None:
        self.registry = CollectorRegistry()
        self._alive_at = time.monotonic()
        self._blocked: str | None = None
        self._paused: str | None = None
        base = {"sink": sink, "group": group}

        def counter(name: MetricName, *labels: str) -> Counter:
            return Counter(name.removesuffix("_total"), HELP[name], (*base, *labels), registry=self.registry)

        def gauge(name: MetricName, *labels: str) -> Gauge:
            return Gauge(name, HELP[name], (*base, *labels), registry=self.registry)

        def histogram(name: MetricName, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, HELP[name], tuple(base), buckets=buckets, registry=self.registry)

        values = self._base = tuple(base.values())
        self.rows = counter("sessionary_sink_rows_total").labels(*values)
        self.blocks = counter("sessionary_sink_blocks_total").labels(*values)
        self.replays = counter("sessionary_sink_replays_total").labels(*values)
        self.dead_letters = counter("sessionary_sink_dead_letters_total").labels(*values)
        self._retries = counter("sessionary_sink_retries_total", "reason")
        self._blocked_gauge = gauge("sessionary_sink_blocked", "reason")
        self._blocked_partitions: dict[int, str] = {}  # with the reasons
        self._partition_blocked = gauge("sessionary_sink_partition_blocked", "partition", "reason")
        self.replay_age = gauge("sessionary_sink_replay_age_seconds").labels(*values)
        self.window_used = gauge("sessionary_sink_deduplication_window_used").labels(*values)
        self._landed = gauge("sessionary_sink_landed_offset", "partition")
        self._lag_records = gauge("sessionary_sink_lag_records", "partition")
        self._lag_s = gauge("sessionary_sink_lag_seconds", "partition")
        self.insert_seconds = histogram("sessionary_sink_insert_seconds", _INSERT_BUCKETS).labels(*values)

    def count_retry(self, reason: str) -> None:
        """Count an attempt that failed."""
        self._retries.labels(*self._base, reason).inc()

    def set_blocked(self, reason: str) -> None:
        """Report that the sink waits for an operator; there is one reason at a time."""
        if self._blocked not in (None, reason):
            self.clear_blocked()
        self._blocked = reason
        self._blocked_gauge.labels(*self._base, reason).set(1)

    def clear_blocked(self) -> None:
        """Report that the sink continues."""
        if self._blocked is not None:
            self._blocked_gauge.labels(*self._base, self._blocked).set(0)
            self._blocked = None

    def set_paused(self, why: str | None) -> None:
        """Report why no partition is written; None: they are written again."""
        self._paused = why

    def readiness(self, keeps_up: Readiness) -> tuple[bool, str]:
        """Return whether the sink can write, and keeps up as `keeps_up` says; a line for people."""
        return keeps_up() if self._paused is None else (False, f"no row is stored: {self._paused}")

    def block_partition(self, partition: int, reason: str) -> None:
        """Report that one partition waits for an operator while the others continue."""
        self._blocked_partitions = {**self._blocked_partitions, partition: reason}
        self._partition_blocked.labels(*self._base, str(partition), reason).set(1)

    def unblock_partition(self, partition: int) -> None:
        """Report that a partition continues, or is another sink's."""
        kept = dict(self._blocked_partitions)
        if (reason := kept.pop(partition, None)) is not None:
            self._partition_blocked.remove(*self._base, str(partition), reason)
        self._blocked_partitions = kept

    def report_position(self, partition: int, landed: int, lag: int, lag_seconds: float) -> None:
        """Report a partition's landed offset, and its lag in records and in seconds."""
        label = (*self._base, str(partition))
        self._landed.labels(*label).set(landed)
        self._lag_records.labels(*label).set(lag)
        self._lag_s.labels(*label).set(lag_seconds)

    def drop_partition(self, partition: int) -> None:
        """Remove the metrics of a partition that another sink owns now."""
        for metric in (self._landed, self._lag_records, self._lag_s):
            metric.remove_by_labels({"partition": str(partition)})

    def mark_alive(self) -> None:
        """Record that the sink's loop has begun a turn."""
        self._alive_at = time.monotonic()

    def health(self) -> tuple[bool, str]:
        """Return whether the loop is alive, and a line for people.

        A sink that waits for Kafka, ClickHouse or an operator is alive.
        """
        age_s = time.monotonic() - self._alive_at
        if age_s > _ALIVE_S:
            return False, f"the sink's loop has not made a turn for {age_s:.0f} s"
        blocked = [self._blocked] if self._blocked else []
        blocked += [f"partition {partition}: {why}" for partition, why in sorted(self._blocked_partitions.items())]
        return True, f"blocked: {', '.join(blocked)}" if blocked else "ok"


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape is not worth a line."""

    def do_GET(self) -> None:
        """Serve the three paths."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._reply(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
            case "/healthz":
                self._reply_state(*self.server.health())
            case "/readyz":
                self._reply_state(*self.server.readiness())
            case _:
                self._reply(404, _TEXT, b"/metrics, /healthz or /readyz\n")

    def do_HEAD(self) -> None:
        """Answer as GET does, without the body: load balancers ask so."""
        self.do_GET()

    def _reply_state(self, good: bool, text: str) -> None:
        self._reply(200 if good else 503, _TEXT, f"{text}\n".encode())

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(
        self, address: tuple[str, int], registry: CollectorRegistry, health: Readiness, readiness: Readiness
    ) -> None:
        self.registry, self.health, self.readiness = registry, health, readiness
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise OSError(
                f"metrics cannot be served on {address[0]}:{address[1]}: {error.strerror}; "
                "choose another address by SESSIONARY_METRICS_PORT, SESSIONARY_METRICS_HOST"
            ) from error


@contextmanager
def serve_pages(
    address: tuple[str, int], registry: CollectorRegistry, health: Readiness, readiness: Readiness
) -> Iterator[None]:
    """Serve /metrics, /healthz and /readyz during the context.

    Raises `OSError` with the address and its variables if the port is taken. `health` and
    `readiness` are called on threads of the endpoint.
    """
    with _Server(address, registry, health, readiness) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serve_metrics(metrics: SinkMetrics, settings: SinkSettings, readiness: Readiness) -> Iterator[None]:
    """Serve a sink's metrics during the context if a port is set. Raises `OSError` if it is taken.

    `readiness` answers /readyz: whether the sink keeps up with its log.
    """
    if settings.metrics_port is None:
        yield
        return
    with serve_pages((settings.metrics_host, settings.metrics_port), metrics.registry, metrics.health, readiness):
        yield
