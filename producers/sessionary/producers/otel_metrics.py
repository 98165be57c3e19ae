"""A client's metrics for OpenTelemetry; needs the extra `otel`.

    from opentelemetry import metrics
    from sessionary.producers.otel_metrics import observe_clients

    observe_clients(metrics.get_meter("my-agent"), client)

Without a meter provider of an SDK nothing is measured. Exported to Prometheus, the metrics have the
same names and labels as those of `prometheus_metrics`.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from sessionary.producers.metrics import HELP, LABELS, ClientMeter, MeasuredClient, MetricName

# The unit is no part of a name; things that are counted have an annotation as their unit.
COUNTERS: Final[dict[MetricName, tuple[str, str]]] = {
    "sessionary_client_events_total": ("sessionary.client.events", "{event}"),
    "sessionary_client_delivery_errors_total": ("sessionary.client.delivery_errors", "{error}"),
    "sessionary_client_spool_damaged_events_total": ("sessionary.client.spool_damaged_events", "{event}"),
}
# Amounts that can be added up over processes.
AMOUNTS: Final[dict[MetricName, tuple[str, str]]] = {
    "sessionary_client_queue_events": ("sessionary.client.queue_events", "{event}"),
    "sessionary_client_spool_events": ("sessionary.client.spool_events", "{event}"),
    "sessionary_client_spool_bytes": ("sessionary.client.spool", "By"),
    "sessionary_client_policy_clients": ("sessionary.client.policy_clients", "{client}"),
}
GAUGES: Final[dict[MetricName, tuple[str, str]]] = {
    "sessionary_client_oldest_event_age_seconds": ("sessionary.client.oldest_event_age", "s"),
}


def observe_clients(meter: Meter, *clients: MeasuredClient) -> None:
    """Let a meter observe one client, or several clients of a process in sum.

    The meter keeps the clients for as long as it lives. Call this once per meter: a second call
    would count the events twice, or be ignored.

    Args:
        meter: A meter of the agent's meter provider.
        clients: `SessionClient`s and `AsyncSessionClient`s, for tests also those in memory.
    """
    measured = ClientMeter(*clients)

    def observe(metric: MetricName, _options: CallbackOptions) -> Iterable[Observation]:
        labels = LABELS.get(metric, ())
        for sample in measured.read_samples()[metric]:
            yield Observation(sample.value, {labels[0]: sample.label} if sample.label is not None else None)

    for table, create in (
        (COUNTERS, meter.create_observable_counter),
        (AMOUNTS, meter.create_observable_up_down_counter),
        (GAUGES, meter.create_observable_gauge),
    ):
        for metric, (name, unit) in table.items():
            create(name, callbacks=[partial(observe, metric)], unit=unit, description=HELP[metric])
