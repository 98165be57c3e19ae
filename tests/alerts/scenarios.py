"""What goes wrong in the stack, and which alerts must say so."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from sessionary.infra.alerts.thresholds import Thresholds
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.infra.stack import api_ready
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.alerts.episode import Episode, follow_to_end, follow_to_webhook
from tests.alerts.load import CARELESS_SERVICE, CarelessHost
from tests.alerts.monitoring import Monitoring
from tests.alerts.watched_stack import WatchedStack
from tests.integration.test_unreadable_batches import PACKED, send_packed
from tests.support.metrics_page import metric_values
from tests.support.waiting import wait_until

SESSIONS = 60
_FIRES_S = 300.0
_RESOLVES_S = 300.0
_CALM_S = 300.0
_CLEANED_S = 300.0
_READY_S = 60.0  # a busy machine answers late, and a worker that is not ready never says that it is
_ASK_S = 60.0
_SMALL_LAG_S = 3.0
_RATIO_SLACK = 0.04  # the load's own sessions may time out on a slow machine
_RECLAIM = "sessionary_kpi_reclaim_ratio"
_TIMED_OUT = f"""
SELECT count() AS timed_out, countIf(confirmed) AS confirmed
FROM v_cleanups WHERE transition = 'T06' AND service_id = '{CARELESS_SERVICE}'"""


class Bench(NamedTuple):
    """What each scenario works with."""

    stack: WatchedStack
    monitoring: Monitoring
    settings: Thresholds
    folder: Path
    say: Callable[[str], None]

    @property
    def kafka(self) -> KafkaSettings:
        """The stack's Kafka."""
        return KafkaSettings.from_env(self.stack.environ)

    def new_episode(self, scenario: str, alert: str, labels: dict[str, str]) -> Episode:
        """Return an episode that begins now."""
        ticket = alert == "SessionaryReclaimLow"
        hold_s = self.settings.ticket_for_s if ticket else self.settings.page_for_s
        return Episode(scenario, alert, labels, hold_s)

    def wait_calm(self, alert: str, labels: Mapping[str, str]) -> None:
        """Wait until this alert is neither pending nor firing: a former one must not be ours."""
        wanted = {"alertname": alert, **labels}.items()
        wait_until(
            lambda: not any(wanted <= found["labels"].items() for found in self.monitoring.prometheus.active_alerts()),
            _CALM_S,
            f"{alert} to be silent",
            pause_s=0.5,
        )

    def wait_caught_up(self, group: str) -> None:
        """Wait until the exporter shows almost no lag of a group: a former one must not be ours."""
        wait_until(
            lambda: max(served_lags_s(self.stack, group), default=0.0) < _SMALL_LAG_S,
            _CALM_S,
            f"{group} to catch up",
            pause_s=0.5,
        )


class ReclaimFigures(NamedTuple):
    """Reclaimed sessions, by ClickHouse's rows and by the exporter."""

    timed_out: int
    confirmed: int
    exporter_ratio: float

    @property
    def ratio(self) -> float:
        """Share of the timed-out sessions whose clean-up was confirmed."""
        return self.confirmed / self.timed_out


def stop_sink(bench: Bench) -> list[Episode]:
    """Freeze a sink until the page for its lag arrives; its restart must resolve it."""
    group, topic = f"{bench.kafka.topic_prefix}.sink.audit", bench.kafka.topics.audit
    bench.wait_caught_up(group)
    bench.wait_calm("SessionaryLagTime", {"group": group})
    episode = bench.new_episode("a sink is stopped", "SessionaryLagTime", {"group": group})
    bench.stack.freeze_part("sink-audit")
    follow_to_webhook(bench.monitoring, episode, lambda: _lag_is_served(bench, group), _FIRES_S)
    episode.fact_s = oldest_unread_s(bench.kafka, group, topic) + bench.settings.lag_s
    bench.say(f"paged: {episode.says}; restarting the sink")
    episode.mended_s = time.time()
    bench.stack.restart_part("sink-audit")
    follow_to_end(bench.monitoring, episode, _RESOLVES_S)
    return [episode]


def stop_processor(bench: Bench) -> list[Episode]:
    """Freeze the processor until the pages arrive that it is down, and that it is behind."""
    scenario = "the processor is stopped"
    group, topic = f"{bench.kafka.topic_prefix}.processor", bench.kafka.topics.events
    bench.wait_caught_up(group)
    bench.wait_calm("SessionaryLagTime", {"group": group})
    bench.wait_calm("SessionaryProcessorDown", {"instance": "processor"})
    down = bench.new_episode(scenario, "SessionaryProcessorDown", {"instance": "processor"})
    behind = bench.new_episode(scenario, "SessionaryLagTime", {"group": group})
    down.fact_s = time.time()
    bench.stack.freeze_part("processor")
    is_down = 'up{instance="processor"} == 0'
    follow_to_webhook(bench.monitoring, down, lambda: bool(bench.monitoring.prometheus.query_values(is_down)), _FIRES_S)
    follow_to_webhook(bench.monitoring, behind, lambda: _lag_is_served(bench, group), _FIRES_S)
    behind.fact_s = oldest_unread_s(bench.kafka, group, topic) + bench.settings.lag_s
    bench.say(f"paged: {down.says}; {behind.says}; restarting the processor")
    down.mended_s = behind.mended_s = time.time()
    bench.stack.restart_part("processor")
    for episode in (down, behind):
        follow_to_end(bench.monitoring, episode, _RESOLVES_S)
    return [down, behind]


def halt_partition(bench: Bench) -> tuple[list[Episode], bool]:
    """Send a batch that cannot be read: its partition halts, and the worker must stay ready.

    Also returns whether it is ready, within seconds of the page.
    """
    bench.wait_calm("SessionaryPartitionHalted", {})
    control = ControlApiClient(OperatorSettings.from_env(bench.stack.environ))
    episode = bench.new_episode(
        "a partition is halted", "SessionaryPartitionHalted", {"reason": "batch_unreadable", "instance": "processor"}
    )
    send_packed(bench.kafka)
    halted = 'sessionary_processor_partitions_halted{reason="batch_unreadable"} > 0'
    follow_to_webhook(
        bench.monitoring, episode, lambda: bool(bench.monitoring.prometheus.query_values(halted)), _FIRES_S
    )
    is_ready = _becomes_ready(bench.stack.environ["SESSIONARY_CONTROL_URL"])
    (found,) = [one for one in control.list_partitions() if one["state"] == "halted"]
    episode.fact_s = found["halted_at_ms"] / 1_000
    match = re.search(r"begins at offset (\d+) ", found["detail"])
    if match is None:
        raise AssertionError(f"the halt names no batch: {found['detail']}")
    bench.say(f"paged: {episode.says}; skipping the batch at offset {match[1]}")
    episode.mended_s = time.time()
    control.skip_records(PACKED, int(match[1]), None, "a batch of the alerts' test")
    follow_to_end(bench.monitoring, episode, _RESOLVES_S)
    return [episode], is_ready


def _becomes_ready(control_url: str) -> bool:
    """Return whether a worker says within seconds that it is ready."""
    deadline = time.monotonic() + _READY_S
    while not (ready := api_ready(control_url, _READY_S)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return ready


def forget_cleanups(bench: Bench) -> tuple[list[Episode], ReclaimFigures]:
    """Have a host confirm nine clean-ups of ten: the reclaim alert must fire at about 0.90."""
    clickhouse = ClickHouseClient(ClickHouseSettings.from_env(bench.stack.environ))
    with CarelessHost(bench.stack.environ, bench.folder / "careless", bench.say) as host:
        episode = bench.new_episode("a tenth of the clean-ups is forgotten", "SessionaryReclaimLow", {})
        host.start_silent_sessions(SESSIONS)
        kept = SESSIONS - SESSIONS // 10

        counts = (0, 0)

        def are_done() -> bool:
            nonlocal counts
            row = clickhouse.fetch_one(_TIMED_OUT)
            found = int(row["timed_out"]), int(row["confirmed"])
            if found != counts:
                bench.say(f"{found[0]} sessions timed out, {found[1]} clean-ups are confirmed")
            counts = found
            return found[0] >= SESSIONS and found[1] >= kept

        wait_until(are_done, _CLEANED_S, "the clean-ups", pause_s=0.5)
        timed_out, confirmed = counts
        episode.fact_s = time.time()

        def is_low() -> bool:
            return bool(bench.monitoring.prometheus.query_values(f"{_RECLAIM} < {bench.settings.reclaim_ratio}"))

        follow_to_webhook(bench.monitoring, episode, is_low, _FIRES_S)
        ratio: list[float] = []

        def has_all_sessions() -> bool:
            """The figure leaves young timeouts out, so it begins with some of these sessions."""
            nonlocal ratio
            found = bench.monitoring.prometheus.query_values(_RECLAIM)
            if found != ratio:
                bench.say(f"by the exporter: {', '.join(f'{one:.3f}' for one in found)}")
            ratio = found
            return bool(found) and abs(found[0] - 0.9) < _RATIO_SLACK

        wait_until(has_all_sessions, _FIRES_S, "the exporter's figure to have all sessions", pause_s=0.5)
        bench.say(f"ticket: {episode.says}")
        return [episode], ReclaimFigures(timed_out, confirmed, ratio[0])


def oldest_unread_s(kafka: KafkaSettings, group: str, topic: str) -> float:
    """Return the stamp of the oldest record that a group has not committed, in seconds.

    Read from the log itself, for a group that stands still. Raises AssertionError without one.
    """
    consumer = Consumer({**kafka.reader_config_of(group), "auto.offset.reset": "earliest"})
    stamps = []
    try:
        places = [TopicPartition(topic, partition) for partition in range(kafka.partitions)]
        for place in consumer.committed(places, timeout=_ASK_S):
            if place.offset < 0:
                place.offset = consumer.get_watermark_offsets(place, timeout=_ASK_S)[0]
            consumer.assign([place])
            message = consumer.poll(_ASK_S)
            if message is not None and message.error() is None:
                stamps.append(message.timestamp()[1] / 1_000)
    finally:
        consumer.close()
    if not stamps:
        raise AssertionError(f"{group} has read all of {topic}")
    return min(stamps)


def served_lags_s(stack: WatchedStack, group: str) -> list[float]:
    """Return the time lags of a group's partitions on the exporter's own page."""
    prefix = f'sessionary_lag_seconds{{group="{group}",'
    return [lag_s for series, lag_s in metric_values(stack.exporter_port).items() if series.startswith(prefix)]


def _lag_is_served(bench: Bench, group: str) -> bool:
    return any(lag_s > bench.settings.lag_s for lag_s in served_lags_s(bench.stack, group))
