"""A client's metrics for `prometheus_client`; needs the extra `metrics`.

    from prometheus_client import REGISTRY
    from sessionary.producers.prometheus_metrics import ClientCollector

    REGISTRY.register(ClientCollector(client))

The agent's process serves them, as it serves its own metrics.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sessionary.producers.metrics import HELP, LABELS, ClientMeter, MeasuredClient


class ClientCollector(Collector):
    """Collects the metrics of one client, or of several clients of a process in sum.

    It keeps the clients for as long as it lives. A forked child counts its own events only.
    """

    def __init__(self, *clients: MeasuredClient) -> None:
        """Take `SessionClient`s and `AsyncSessionClient`s, for tests also those in memory.

        Register the collector once: two over the same client would count its events twice.

        Args:
            clients: The clients to be measured.
        """
        self._meter = ClientMeter(*clients)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now. Does not wait for Kafka."""
        for name, samples in self._meter.read_samples().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, HELP[name], labels=LABELS.get(name, ()))
            for sample in samples:
                family.add_metric([] if sample.label is None else [sample.label], sample.value)
            yield family
