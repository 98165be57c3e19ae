"""What a sink tells about itself: Prometheus metrics, and an endpoint with /metrics and /healthz."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sessionary.sinks.settings import SinkSettings

# A loop that has not come round for so long is taken for dead: one insert may take a minute.
_ALIVE_S = 150.0
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class SinkMetrics:
    """The metrics of one sink, in a registry of its own, so that several sinks may live in one process."""

    def __init__(self, sink: str, group: str) -> None:
        self.registry = CollectorRegistry()
        self._alive_at = time.monotonic()
        self._blocked: str | None = None
        base = {"sink": sink, "group": group}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (*base, *labels), registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, (*base, *labels), registry=self.registry)

        self._base = tuple(base.values())
        self.rows = counter("sink_rows", "Rows that ClickHouse has taken.").labels(*self._base)
        self.batches = counter("sink_batches", "Blocks that ClickHouse has taken.").labels(*self._base)
        self.replays = counter("sink_replays", "Blocks of a former owner, written again.").labels(*self._base)
        self.dead_letters = counter("sink_dead_letters", "Records that can become no row.").labels(*self._base)
        self._retries = counter("sink_retries", "Attempts that failed and are made again.", "reason")
        self._blocked_gauge = gauge("sink_blocked", "1 while the sink stands still, by reason.", "reason")
        self.replay_age = gauge("sink_replay_age_seconds", "Age of the last replayed intent.").labels(*self._base)
        self._landed = gauge("sink_landed_offset", "Every record below it is in ClickHouse.", "partition")
        self._lag = gauge("sink_lag_messages", "Offsets between the log's end and what has landed.", "partition")
        self._lag_s = gauge("sink_lag_seconds", "Age of the oldest record that has not landed.", "partition")
        self.insert_seconds = Histogram(
            "sink_insert_seconds", "Time of one insert.", tuple(base), buckets=_SECONDS, registry=self.registry
        ).labels(*self._base)

    def retry(self, reason: str) -> None:
        """Count an attempt that failed."""
        self._retries.labels(*self._base, reason).inc()

    def block(self, reason: str) -> None:
        """Say that the sink stands still; there is one reason at a time."""
        if self._blocked not in (None, reason):
            self.unblock()
        self._blocked = reason
        self._blocked_gauge.labels(*self._base, reason).set(1)

    def unblock(self) -> None:
        """Say that it goes on."""
        if self._blocked is not None:
            self._blocked_gauge.labels(*self._base, self._blocked).set(0)
            self._blocked = None

    def position(self, partition: int, landed: int, lag: int, lag_seconds: float) -> None:
        """Report where a partition stands."""
        label = (*self._base, str(partition))
        self._landed.labels(*label).set(landed)
        self._lag.labels(*label).set(lag)
        self._lag_s.labels(*label).set(lag_seconds)

    def forget(self, partition: int) -> None:
        """Drop a partition that is another's now."""
        for metric in (self._landed, self._lag, self._lag_s):
            metric.remove_by_labels({"partition": str(partition)})

    def beat(self) -> None:
        """The loop came round."""
        self._alive_at = time.monotonic()

    def health(self) -> tuple[bool, str]:
        """Whether the loop comes round, and a line for people. Standing still over trouble outside is healthy."""
        age_s = time.monotonic() - self._alive_at
        if age_s > _ALIVE_S:
            return False, f"the loop has not come round for {age_s:.0f} s"
        return True, f"blocked: {self._blocked}" if self._blocked else "ok"


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: scrapes are no news."""

    def do_GET(self) -> None:
        """Serve the two paths."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._reply(200, CONTENT_TYPE_LATEST, generate_latest(self.server.metrics.registry))
            case "/healthz":
                alive, text = self.server.metrics.health()
                self._reply(200 if alive else 503, "text/plain; charset=utf-8", f"{text}\n".encode())
            case _:
                self._reply(404, "text/plain; charset=utf-8", b"/metrics or /healthz\n")

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self, address: tuple[str, int], metrics: SinkMetrics) -> None:
        self.metrics = metrics
        super().__init__(address, _Handler)


@contextmanager
def served(metrics: SinkMetrics, settings: SinkSettings) -> Iterator[None]:
    """Serve the metrics while the context lasts, if a port is set. Raises `OSError` if the port is taken."""
    if settings.metrics_port is None:
        yield
        return
    with _Server((settings.metrics_host, settings.metrics_port), metrics) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


__all__ = ["SinkMetrics", "served"]
