"""A client's metrics, by both libraries: in memory, and with the spool without a broker."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, NumberDataPoint, Sum
from prometheus_client import CollectorRegistry, generate_latest

from sessionary.producers import AsyncSessionClient, QueueFull, Rejected, SessionClient
from sessionary.producers.delivery.spool import spool as spool_module
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import AGE_LIMIT_MS, Spool
from sessionary.producers.metrics import HELP, ClientMeter, Sample
from sessionary.producers.otel_metrics import AMOUNTS, COUNTERS, GAUGES, observe_clients
from sessionary.producers.prometheus_metrics import ClientCollector
from sessionary.producers.testing import memory_client
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until


def read_values(client: SessionClient | AsyncSessionClient) -> dict[str, float]:
    """Return every series, as a Prometheus registry serves it."""
    registry = CollectorRegistry()
    registry.register(ClientCollector(client))
    page = generate_latest(registry).decode()
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, value in lines}


def delivered(client: SessionClient | AsyncSessionClient) -> float:
    return read_values(client)['sessionary_client_events_total{outcome="delivered"}']


def test_the_events_of_a_client_are_counted_by_outcome() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        session.activity("llm")
        session.pause()
        memory.reject_next("stale_epoch")
        with pytest.raises(Rejected):
            session.resume()
        values = read_values(client)
    assert values == {
        f'sessionary_client_events_total{{outcome="{outcome}"}}': count
        for outcome, count in {
            "delivered": len(memory.records()) - 1,  # the end of the session came later
            "dropped": 0,
            "failed": 0,
            "expired": 0,
            "rejected": 1,
        }.items()
    } | {
        "sessionary_client_spool_damaged_events_total": 0,
        "sessionary_client_queue_events": 0,
        "sessionary_client_spool_events": 0,
        "sessionary_client_spool_bytes": 0,
        "sessionary_client_oldest_event_age_seconds": 0,
        'sessionary_client_policy_clients{policy="memory"}': 1,
    }


def test_both_clients_are_measured_and_several_add_up() -> None:
    (one, first), (other, second) = memory_client(), memory_client("globex")
    with one.session(user_id="u"):
        pass

    async def use_asyncio() -> None:
        async with AsyncSessionClient.wrap(other) as client, client.session(user_id="u") as session:
            await session.activity("llm")
            assert delivered(client) == len(second.records())

    asyncio.run(use_asyncio())
    samples = ClientMeter(one, AsyncSessionClient.wrap(other)).read_samples()["sessionary_client_events_total"]
    assert samples[0] == Sample("delivered", len(first.records()) + len(second.records()))
    one.close()
    assert delivered(one) == len(first.records())  # a counter does not fall when its client closes


def test_a_forked_child_counts_nothing_twice() -> None:
    client = memory_client()[0]
    client.create(user_id="u")
    meter = ClientMeter(client)

    def delivered_events() -> float:
        return meter.read_samples()["sessionary_client_events_total"][0].value

    assert delivered_events() == 1
    child = os.fork()
    if child == 0:
        os._exit(int(delivered_events()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_spool_and_its_oldest_event_are_measured(closed_address: str, tmp_path: Path) -> None:
    of = new_settings(closed_address, tmp_path, spool_bytes_max=1 << 18)
    dead = Spool(of.spool_folder, "dead", 1 << 18)
    dead.append_frame(Frame(time.time_ns() // 1_000_000 - 3_600_000, b"k", None, b"of a dead process"), None)
    dead.close()
    with new_client(of, []) as client:
        session = client.session(user_id="u")
        sent = client.counters.sent
        values = read_values(client)
        # The frame of the dead process is unreadable: it is given up as soon as it is read.
        assert values["sessionary_client_queue_events"] in (sent, sent + 1)
        assert values["sessionary_client_spool_events"] == values["sessionary_client_queue_events"]
        given_up = 'sessionary_client_delivery_errors_total{reason="unreadable_frame"}'
        wait_until(lambda: read_values(client).get(given_up) == 1, 60, "the dead process's frame")
        values = read_values(client)
        assert values['sessionary_client_events_total{outcome="failed"}'] == 1
        assert values["sessionary_client_spool_events"] == sent
        assert 0 < values["sessionary_client_oldest_event_age_seconds"] < 3_600
        before = values["sessionary_client_spool_bytes"]
        session.activity("x", "y" * 1_000)
        assert read_values(client)["sessionary_client_spool_bytes"] > before + 1_000
        for _ in range(300):
            session.activity("x", "y" * 1_000)
        values = read_values(client)
        dropped = values['sessionary_client_events_total{outcome="dropped"}']
        assert values['sessionary_client_delivery_errors_total{reason="spool_full"}'] == dropped > 0
        wait_until(
            lambda: any("brokers_down" in series or "transport" in series for series in read_values(client)),
            60,
            "the broker's absence",
        )
    closed = read_values(client)
    assert (closed["sessionary_client_queue_events"], closed["sessionary_client_spool_bytes"]) == (0, 0)


def test_an_event_that_is_too_old_to_be_replayed_is_counted_as_expired(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "OLD_WAIT_S", 0.0)
    of = new_settings(closed_address, tmp_path)
    dead = Spool(of.spool_folder, "dead", 1 << 18)
    dead.append_frame(Frame(time.time_ns() // 1_000_000 - AGE_LIMIT_MS - 1_000, b"k", None, b"old"), None)
    dead.close()
    with new_client(of, []) as client:
        expired = 'sessionary_client_events_total{outcome="expired"}'
        wait_until(lambda: read_values(client)[expired] == 1, 60, "the old event")


def test_the_age_is_that_of_a_dead_process_s_events_too(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "one", 1 << 20)
    assert spool.oldest_ms() is None
    places = [spool.append_frame(Frame(written_ms, b"k", None, b"v"), None) for written_ms in (1_000, 2_000)]
    assert spool.oldest_ms() == 1_000
    spool.mark_done(places[0])
    assert spool.oldest_ms() == 2_000
    spool.close()
    heir = Spool(tmp_path, "two", 1 << 20)
    heir.append_frame(Frame(500, b"k", None, b"v"), None)
    assert heir.oldest_ms() == 500
    heir.close()


@pytest.mark.parametrize("policy", ["block", "drop"])
def test_without_a_spool_the_queue_and_its_errors_are_measured(
    policy: str, closed_address: str, tmp_path: Path
) -> None:
    of = new_settings(closed_address, tmp_path, delivery_policy=policy, queue_bytes_max=1 << 16, block_timeout_s=0.1)
    with new_client(of, []) as client:
        session = client.session(user_id="u")
        values = read_values(client)
        assert values["sessionary_client_queue_events"] == client.counters.sent
        age_s = values["sessionary_client_oldest_event_age_seconds"]
        assert age_s > 0
        full = 'sessionary_client_delivery_errors_total{reason="queue_full"}'
        for _ in range(1_000):
            try:
                session.activity("x", "y" * 1_000)
            except QueueFull:
                break
        values = read_values(client)
        assert values[full] == (1 if policy == "block" else client.counters.dropped) > 0
        assert values["sessionary_client_spool_events"] == 0
        assert values["sessionary_client_oldest_event_age_seconds"] > age_s
    assert read_values(client)["sessionary_client_oldest_event_age_seconds"] == 0


def test_an_error_is_counted_by_librdkafka_s_name_as_often_as_it_occurs(closed_address: str, tmp_path: Path) -> None:
    with new_client(new_settings(closed_address, tmp_path, delivery_policy="drop"), []) as client:
        for _ in range(2):
            client.core.ports.transport._kafka.report_error(KafkaError(KafkaError._MSG_TIMED_OUT))  # type: ignore[attr-defined]
        assert client.counters.errors["msg_timed_out"] == 2


def test_opentelemetry_exports_the_same_values_with_units() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    client, memory = memory_client()
    observe_clients(provider.get_meter("test"), client)
    with client, client.session(user_id="u") as session:
        session.activity("llm")
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    # A counter without a value yet is not exported.
    assert found.keys() == {
        "sessionary.client.events",
        "sessionary.client.spool_damaged_events",
        "sessionary.client.queue_events",
        "sessionary.client.spool_events",
        "sessionary.client.spool",
        "sessionary.client.oldest_event_age",
        "sessionary.client.policy_clients",
    }
    assert {found[f"sessionary.client.{name}"].unit for name in ("events", "queue_events")} == {"{event}"}
    assert (found["sessionary.client.spool"].unit, found["sessionary.client.oldest_event_age"].unit) == ("By", "s")
    events, queue = found["sessionary.client.events"].data, found["sessionary.client.queue_events"].data
    assert isinstance(events, Sum)
    assert isinstance(queue, Sum)
    assert (events.is_monotonic, queue.is_monotonic) == (True, False)
    assert isinstance(found["sessionary.client.oldest_event_age"].data, Gauge)
    values = {
        point.attributes["outcome"]: point.value
        for point in events.data_points
        if isinstance(point, NumberDataPoint) and point.attributes is not None
    }
    assert values["delivered"] == len(memory.records()) > 0
    assert values["dropped"] == 0
    provider.shutdown()


def test_every_metric_has_an_instrument() -> None:
    assert {**COUNTERS, **AMOUNTS, **GAUGES}.keys() == HELP.keys()
