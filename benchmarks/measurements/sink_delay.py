"""(f) The time from an audit record to its visible row, with the whole pipeline at a steady rate.

Every audit record's append time (the broker's stamp) is compared with the moment at which a query
first saw its row.
"""

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness.pipeline import Worker
from benchmarks.harness.sink_processes import start_sinks, stop_sinks
from benchmarks.harness.stack import Stack, environment
from benchmarks.results import Result, Target, quantile
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings

_PAUSE_S = 0.05  # between two queries
_ARRIVAL_S = 30.0
_WARM_UP_S = 8.0  # the sinks are still joining their groups


def measure_delays(stack: Stack, rate: float, seconds: float) -> list[float]:
    """Run the whole pipeline at `rate`; return the delay of each audit row in ms, sorted."""
    kafka, settings = stack.new_pipeline(), stack.new_database()
    worker = Worker(stack, kafka)
    sinks = start_sinks(stack, kafka, settings)
    try:
        worker.wait_ready()
        out = stack.folder / f"{kafka.topic_prefix}.sent"
        words = ("client", "--rate", str(rate), "--seconds", str(seconds), "--out", str(out))
        sender = stack.start("benchmarks.programs.sender", *words, env=environment(kafka), name="sender")
        visible = _watch_rows(
            stack, ClickHouseClient(settings), kafka.partitions, sender, [worker.child, *sinks.values()]
        )
        appended = _append_times(kafka)
    finally:
        stop_sinks(sinks.values())
        worker.stop()
    began_s = min(at_s for places in appended.values() for _, at_s in places)
    return sorted(
        (visible_at(visible[partition], offset) - at_s) * 1e3
        for partition, places in appended.items()
        for offset, at_s in places
        if at_s >= began_s + min(_WARM_UP_S, seconds / 2) and visible[partition] and offset <= visible[partition][-1][0]
    )


def visible_at(looks: Sequence[tuple[int, float]], offset: int) -> float:
    """Return when a row of at least this offset was first seen.

    `looks` are (highest offset, time of the query) in order.
    """
    return next(at_s for highest, at_s in looks if highest >= offset)


def _watch_rows(
    stack: Stack, clickhouse: ClickHouseClient, partitions: int, sender: Child, others: Sequence[Child]
) -> dict[int, list[tuple[int, float]]]:
    """Query the table until it has not grown for 2 s after the sender's end.

    Return the looks of each partition; a look's time is the end of its query.
    """
    seen: dict[int, list[tuple[int, float]]] = {partition: [] for partition in range(partitions)}
    grown_s = time.monotonic()
    while not sender.wait(_PAUSE_S) or time.monotonic() - grown_s < 2.0:
        stack.check_running(*others)
        rows = clickhouse.fetch_rows(
            "SELECT src_partition AS p, max(src_offset) AS o FROM audit GROUP BY src_partition"
        )
        at_s = time.time()
        for row in rows:
            looks = seen[row["p"]]
            if not looks or row["o"] > looks[-1][0]:
                looks.append((row["o"], at_s))
                grown_s = time.monotonic()
        if sender.exit_code is not None:
            time.sleep(_PAUSE_S)
    if sender.exit_code != 0:
        raise RuntimeError(f"the sender ended with {sender.exit_code}")
    return seen


def _append_times(kafka: KafkaSettings) -> dict[int, list[tuple[int, float]]]:
    """Return offset and append time of every committed audit record, by partition."""
    found: dict[int, list[tuple[int, float]]] = {partition: [] for partition in range(kafka.partitions)}
    consumer = Consumer(
        {
            **kafka.client_config(),
            "group.id": "benchmark",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(kafka.topics.audit, partition, 0) for partition in found])
    ends, deadline_s = 0, time.monotonic() + _ARRIVAL_S
    while ends < kafka.partitions and time.monotonic() < deadline_s:
        for message in consumer.consume(1_000, 0.2):
            if message.error() is not None:
                ends += 1
                continue
            found[message.partition() or 0].append((message.offset() or 0, message.timestamp()[1] / 1e3))
    consumer.close()
    return found


def delay_results(delays: list[list[float]], rate: float) -> list[Result]:
    notes = (
        f"audit record's append time to the row's first sight by a query, at {rate:,} events/s for the whole pipeline; "
        f"the first {_WARM_UP_S:g} s, in which the sinks join their groups, left out; looks every "
        f"{_PAUSE_S * 1e3:g} ms; a sink gathers rows for up to half a second",
    )
    if not all(delays):
        raise RuntimeError("no row became visible")
    p50, p95 = ([quantile(run, share) / 1e3 for run in delays] for share in (0.5, 0.95))
    details = {"records": [len(run) for run in delays]}
    return [
        Result("audit record to visible row, p50", "s", p50, None, notes, details),
        Result("audit record to visible row, p95", "s", p95, Target("<=", 2.0)),
    ]
