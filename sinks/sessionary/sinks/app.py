"""Running a sink."""

import threading

from sessionary.schemas.decoding import decoder_for
from sessionary.sinks.consumer import SinkConsumer
from sessionary.sinks.definitions import SINKS, SinkKind
from sessionary.sinks.flusher import Flusher
from sessionary.sinks.metrics import SinkMetrics, served
from sessionary.sinks.settings import SinkSettings


def run_sink(kind: SinkKind, settings: SinkSettings, stop: threading.Event) -> None:
    """Run the sink `kind` until `stop` is set, then write what it holds and leave. Blocks.

    Trouble of Kafka or ClickHouse is waited out. Raises
    `Fenced` where another process runs under the same instance name, `SettingsError`, and `OSError` where the metrics
    port is taken.
    """
    definition = SINKS[kind]
    metrics = SinkMetrics(kind, settings.group(kind))
    flusher = Flusher(definition, settings, metrics, decoder_for(settings))
    with served(metrics, settings):
        SinkConsumer(definition, settings, flusher, metrics).run(stop)


__all__ = ["SINKS", "SinkKind", "run_sink"]
