"""A task worker's pages: /metrics of its client, /healthz and /readyz."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from sessionary.infra.settings import TaskPagesSettings
from sessionary.producers.client import SessionClient
from sessionary.producers.prometheus_metrics import ClientCollector
from sessionary.producers.tasks.worker import TaskWorker
from sessionary.sinks.metrics import serve_pages


@contextmanager
def serve_task_pages(worker: TaskWorker, client: SessionClient, settings: TaskPagesSettings) -> Iterator[None]:
    """Serve the pages during the context if a port is set. Raises `OSError` if it is taken.

    `client` is the worker's.
    """
    if settings.metrics_port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(ClientCollector(client))
    with serve_pages((settings.metrics_host, settings.metrics_port), registry, worker.health, worker.readiness):
        yield
