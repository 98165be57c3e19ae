"""Running a sink."""

import gc
import threading

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.metrics import SinkMetrics, served
from sessionary.sinks.runtime.block_writer import Flusher
from sessionary.sinks.runtime.consumer import SinkConsumer
from sessionary.sinks.runtime.memory import keep_freed_memory
from sessionary.sinks.settings import SinkSettings

# A sink holds up to a million small objects without cycles, and the collector would look at each of them again and
# again: a fifth of the sink's time went there. What does form cycles (errors, a lost connection) is little, and is
# collected once there are two millions of it.
_GC_THRESHOLDS = (2_000_000, 20, 100)


def run_sink(kind: SinkKind, settings: SinkSettings, stop: threading.Event, *, may_exit: bool = False) -> None:
    """Run the sink `kind` until `stop` is set, then write what it holds and leave. Blocks.

    `may_exit`: where Kafka never answers a commit, the whole process ends with code 70. Sets the process's garbage
    collector and allocator. Trouble of Kafka or ClickHouse is waited out. Raises `Fenced` where another process runs
    under the same instance name, `SettingsError`, and `OSError` where the metrics port is taken.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    keep_freed_memory()
    definition = SINKS[kind]
    metrics = SinkMetrics(kind, settings.group(kind))
    flusher = Flusher(definition, settings, metrics, decoder_for(settings))
    with served(metrics, settings):
        consumer = SinkConsumer(definition, settings, flusher, metrics)
        if may_exit:
            consumer.watchdog.start()
        consumer.run(stop)


__all__ = ["SINKS", "SinkKind", "run_sink"]
