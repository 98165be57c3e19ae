"""Runs one sink."""

import gc
import threading
from functools import partial

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.kafka.log_progress import LogEndClient
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.schemas.telemetry.role_traces import role_tracer
from sessionary.sinks.core.sink_kinds import SINKS, SinkDefinition, SinkKind
from sessionary.sinks.errors import Fenced
from sessionary.sinks.integrity.landed_ends import EndReport
from sessionary.sinks.memory import keep_freed_memory
from sessionary.sinks.metrics import SinkMetrics, serve_metrics
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.runtime.consumer import COMMIT_S_MAX, SinkConsumer
from sessionary.sinks.runtime.hung_calls import CallWatchdog
from sessionary.sinks.runtime.kafka_client import find_former, open_consumer, read_ranges
from sessionary.sinks.runtime.log_watch import LogWatch, SystemClock
from sessionary.sinks.runtime.ports import BlockTarget
from sessionary.sinks.settings import SinkSettings

_log = role_logger(__name__)
_ASK_S = 5.0
_FORMER_S = 1.5
# A sink holds up to a million small objects without cycles, and the collector would visit each of
# them again and again: that took a fifth of the sink's time. Few objects form cycles (errors, a
# lost connection); they are collected once two million objects were allocated.
_GC_THRESHOLDS = (2_000_000, 20, 100)


def run_sink(kind: SinkKind, settings: SinkSettings, stop: threading.Event, *, may_exit: bool = False) -> None:
    """Run the sink `kind` until `stop` is set, then write what it holds and leave. Blocks.

    Sets the process's garbage collector and allocator. Faults of Kafka and ClickHouse are retried
    without a limit.

    `may_exit`: end the whole process with code 70 if Kafka never answers a commit.

    Raises `Fenced` if another process runs under the same instance name, `SettingsError`, and
    `OSError` if the metrics port is taken.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    keep_freed_memory()
    definition = SINKS[kind]
    metrics = SinkMetrics(kind, settings.group_id(kind))
    watchdog = CallWatchdog(COMMIT_S_MAX)
    writer = BlockWriter(definition, settings, metrics, decoder_for(settings))
    clock = SystemClock()
    watching, planning = AdminConnection(settings), AdminConnection(settings)  # for two threads
    log_ends = LogEndClient(watching, committed_only=True)
    topic, partitions = getattr(settings.topics, definition.topic), range(settings.partitions)
    log_watch = LogWatch(
        lambda: {partition: end.offset for partition, end in log_ends.ask_ends(topic, partitions, _ASK_S).items()},
        clock,
        partial(ask_topic_id, watching, topic, _ASK_S),
    )
    with serve_metrics(metrics, settings, lambda: metrics.readiness(log_watch.readiness)):
        consumer = SinkConsumer(
            definition,
            settings,
            metrics,
            target=_traced_target(writer, definition, settings),
            open_consumer=partial(open_consumer, definition, settings),
            clock=clock,
            watchdog=watchdog,
            log_watch=log_watch,
            ask_topic_id=partial(ask_topic_id, planning, topic, _ASK_S),
            read_ranges=partial(read_ranges, definition, settings),
        )
        if may_exit:
            watchdog.start()
        end_report = EndReport(kind, settings)
        log_watch.start()
        end_report.start()
        if settings.instance is not None:
            asking = threading.Thread(target=_tell_former, args=(definition, settings), daemon=True)
            asking.start()
            asking.join(_FORMER_S)  # before this sink joins; if Kafka is away, the consumer is to say so soon
        try:
            consumer.run(stop)
        except Fenced as error:
            # Kafka goes on to show the host of the process that had the name first: often this one.
            raise Fenced(
                f"{error}. Another sink {kind} runs as SESSIONARY_INSTANCE={settings.instance}: give each its own "
                "name, and start this one again"
            ) from error
        finally:
            end_report.stop()
            log_watch.stop()


def _tell_former(definition: SinkDefinition, settings: SinkSettings) -> None:
    if former := find_former(AdminConnection(settings), definition, settings):
        _log.warning(
            "another sink %(kind)s is a member of the group as SESSIONARY_INSTANCE=%(instance)s: %(former)s. This "
            "one takes its place, and if that one still runs, it ends now. Give each its own name",
            kind=definition.kind,
            instance=settings.instance,
            former=former,
        )


def _traced_target(target: BlockTarget, definition: SinkDefinition, settings: SinkSettings) -> BlockTarget:
    """Return a target that traces blocks, if the environment asks for traces."""
    tracer = role_tracer(f"sink {definition.kind}", settings.instance)
    if tracer is None:
        return target
    from sessionary.sinks.block_spans import TracedBlocks  # OpenTelemetry may be missing

    return TracedBlocks(target, tracer, definition, settings)


__all__ = ["SINKS", "SinkKind", "run_sink"]
