"""The pages of a task worker, served on a port; without Kafka."""

import socket
import threading
from collections.abc import Iterator

import pytest

from sessionary.infra.cli.task_pages import serve_task_pages
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import TaskPagesSettings
from tests.core.producers.tasks.worker_rig import WorkerRig
from tests.support.metrics_page import read_page


@pytest.fixture
def rig() -> Iterator[WorkerRig]:
    rig = WorkerRig()
    yield rig
    rig.client.close()


def page(settings: TaskPagesSettings, name: str) -> tuple[int, str]:
    return read_page(f"http://127.0.0.1:{settings.metrics_port}/{name}")


def test_the_three_pages_follow_the_worker(rig: WorkerRig) -> None:
    settings = TaskPagesSettings(metrics_port=free_port())
    reported: list[tuple[int, str]] = []
    with serve_task_pages(rig.worker, rig.client, settings):
        assert page(settings, "healthz") == (200, "ok\n")
        assert page(settings, "readyz") == (503, "its group has given it no assignment yet\n")
        rig.run_steps(lambda: rig.kafka.schedule_assignment(0), lambda: reported.append(page(settings, "readyz")))
        assert reported == [(200, "ok\n")]
        rig.now_s += 61.0
        hung = (503, "the loop that reads requests has not made a turn for 61 s\n")
        assert [page(settings, path) for path in ("healthz", "readyz")] == [hung, hung]
        status, before = page(settings, "metrics")
        assert (status, 'sessionary_client_events_total{outcome="delivered"} 0.0' in before) == (200, True)
        rig.client.create(user_id="u1")
        assert 'sessionary_client_events_total{outcome="delivered"} 1.0' in page(settings, "metrics")[1]


def test_without_a_port_nothing_is_served(rig: WorkerRig) -> None:
    def threads(settings: TaskPagesSettings) -> list[str]:
        with serve_task_pages(rig.worker, rig.client, settings):
            return [thread.name for thread in threading.enumerate()]

    assert "metrics" not in threads(TaskPagesSettings())
    assert "metrics" in threads(TaskPagesSettings(metrics_port=free_port()))


def test_a_taken_port_is_named_with_its_variable(rig: WorkerRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        pages = serve_task_pages(rig.worker, rig.client, TaskPagesSettings(metrics_port=port))
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: Address already in use; .*SESSIONARY_METRICS_PORT"):
            pages.__enter__()
