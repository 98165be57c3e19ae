"""Every metric of a sink has a name of one list, a sentence and a unit."""

import http.client
import socket
import urllib.error
import urllib.request
from typing import get_args

import pytest

from sessionary.infra.local.ports import free_port
from sessionary.sinks.metrics import HELP, MetricName, SinkMetrics, serve_metrics
from sessionary.sinks.settings import SinkSettings


@pytest.fixture
def metrics() -> SinkMetrics:
    return SinkMetrics("audit", "g")


def test_every_metric_is_in_the_list_and_explained_by_a_sentence(metrics: SinkMetrics) -> None:
    assert set(HELP) == set(get_args(MetricName))
    families = {family.name: family.documentation for family in metrics.registry.collect()}
    assert families == {name.removesuffix("_total"): text for name, text in HELP.items()}
    for name, text in HELP.items():
        assert name.startswith("sessionary_sink_")
        assert text.endswith(".")
        assert ("Seconds" in text) == name.endswith("_seconds")


def test_a_partition_reports_its_position_until_another_sink_owns_it(metrics: SinkMetrics) -> None:
    labels = {"sink": "audit", "group": "g", "partition": "3"}
    names = ("sessionary_sink_landed_offset", "sessionary_sink_lag_records", "sessionary_sink_lag_seconds")
    metrics.report_position(3, 70, 30, 1.5)
    assert [metrics.registry.get_sample_value(name, labels) for name in names] == [70, 30, 1.5]
    metrics.drop_partition(3)
    assert [metrics.registry.get_sample_value(name, labels) for name in names] == [None] * 3


def test_one_reason_at_a_time_blocks_a_sink(metrics: SinkMetrics) -> None:
    def blocked(reason: str) -> float | None:
        labels = {"sink": "audit", "group": "g", "reason": reason}
        return metrics.registry.get_sample_value("sessionary_sink_blocked", labels)

    metrics.set_blocked("no_topic")
    metrics.set_blocked("no_table")
    assert (blocked("no_topic"), blocked("no_table")) == (0, 1)
    assert metrics.health() == (True, "blocked: no_table")
    metrics.clear_blocked()
    assert blocked("no_table") == 0
    assert metrics.health() == (True, "ok")


def test_the_endpoint_serves_metrics_and_health(metrics: SinkMetrics) -> None:
    metrics.rows.inc(4)
    settings = SinkSettings(metrics_port=free_port())

    def read(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{settings.metrics_port}{path}", timeout=60) as answer:
            text: bytes = answer.read()
        return text.decode()

    readiness = [(True, "ready")]
    with serve_metrics(metrics, settings, lambda: readiness[0]):
        assert 'sessionary_sink_rows_total{group="g",sink="audit"} 4.0' in read("/metrics")
        assert (read("/healthz"), read("/readyz")) == ("ok\n", "ready\n")
        readiness[0] = False, "partition 3 stands"
        with pytest.raises(urllib.error.HTTPError) as answer:
            read("/readyz")
        with answer.value as error:
            assert (error.code, error.read()) == (503, b"partition 3 stands\n")
        assert read("/healthz") == "ok\n"


@pytest.mark.parametrize("is_ready", [True, False])
def test_head_is_answered_as_get_is_without_the_body(metrics: SinkMetrics, *, is_ready: bool) -> None:
    settings = SinkSettings(metrics_port=free_port())

    def ask(verb: str, path: str) -> tuple[int, str | None, str | None, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", settings.metrics_port, timeout=60)
        try:
            connection.request(verb, path)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.headers["Content-Length"], answer.read()
        finally:
            connection.close()

    with serve_metrics(metrics, settings, lambda: (is_ready, "a line")):
        for path in ("/metrics", "/healthz", "/readyz", "/unknown"):
            got = ask("GET", path)
            assert len(got[3]) == int(got[2] or 0) > 0
            assert ask("HEAD", path) == (*got[:3], b"")


def test_a_taken_port_is_named_with_its_variable(metrics: SinkMetrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        pages = serve_metrics(metrics, SinkSettings(metrics_port=port), lambda: (True, "ready"))
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: Address already in use; .*SESSIONARY_METRICS_PORT"):
            pages.__enter__()


def test_blocked_partitions_are_named_beside_the_sinks_own_reason(metrics: SinkMetrics) -> None:
    def is_blocked(partition: int) -> float | None:
        labels = {"sink": "audit", "group": "g", "partition": str(partition), "reason": "batch_unreadable"}
        return metrics.registry.get_sample_value("sessionary_sink_partition_blocked", labels)

    metrics.set_blocked("no_table")
    metrics.block_partition(3, "batch_unreadable")
    metrics.block_partition(1, "batch_unreadable")
    assert metrics.health() == (
        True,
        "blocked: no_table, partition 1: batch_unreadable, partition 3: batch_unreadable",
    )
    metrics.clear_blocked()
    metrics.unblock_partition(3)
    assert (is_blocked(1), is_blocked(3)) == (1, None)
    assert metrics.health() == (True, "blocked: partition 1: batch_unreadable")
