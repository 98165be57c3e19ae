"""(o) Times that operators wait: `lag`, `doctor`, `--help`, a scrape of the exporter, an import.

The times of commands are those of whole processes, from start to end. `doctor` runs beside a stack
of `sessionary up`. The scrape goes over HTTP, to an exporter that observes 50 groups.
"""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, environment, running_stack
from benchmarks.results import Result, Target
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings
from sessionary.sinks.core.sink_kinds import SINKS
from tests.support.waiting import wait_until

COMMAND = str(Path(sys.executable).parent / "sessionary")
TOPICS_READ = 4  # by the processor and the sinks: two of these five groups read the events
PARTITIONS, PARTITIONS_QUICK = 250, 10
GROUPS, GROUP_PARTITIONS = 50, 32
_ROLES = 1 + len(SINKS)
_SCRAPES = 10
_WAIT_S = 180.0
_STOP_S = 30.0
_LOOK_S = 0.2


def time_command(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """Run a command to its end; return its seconds. Raises `RuntimeError` if it fails."""
    began_s = time.monotonic()
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=_WAIT_S, check=False)
    took_s = time.monotonic() - began_s
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr[-2_000:]}")
    return took_s


def unread_pipeline(stack: Stack, partitions: int) -> KafkaSettings:
    """Return a pipeline with a record in each partition of the events that no group has read."""
    kafka = stack.new_pipeline(partitions)
    producer = Producer(kafka.client_config())
    for partition in range(partitions):
        producer.produce(kafka.topics.events, b"no event", partition=partition)
    if producer.flush(_STOP_S):
        raise RuntimeError("the broker did not acknowledge the records")
    return kafka


def many_groups(stack: Stack, groups: int, partitions: int) -> KafkaSettings:
    """Return a pipeline with so many groups: those of the roles, and services' clean-up groups."""
    kafka = stack.new_pipeline(partitions)
    admin, topic = AdminClient(kafka.client_config()), kafka.topics.cleanup
    for number in range(groups - _ROLES):
        places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        asked = ConsumerGroupTopicPartitions(f"{kafka.topic_prefix}.cleanup.acme:s{number}", places)
        wait_until(partial(_commit_offsets, admin, asked), _WAIT_S, "a coordinator of the group")
    return kafka


def _commit_offsets(admin: AdminClient, asked: ConsumerGroupTopicPartitions) -> bool:
    """Commit a group's offsets; return False if a new broker has no coordinator for it yet."""
    (answer,) = admin.alter_consumer_group_offsets([asked]).values()
    try:
        return all(place.error is None for place in answer.result(_STOP_S).topic_partitions)
    except KafkaException:
        return False


def scrape_ms(port: int, series: int) -> float:
    """Return the ms of a scrape, the longest of ten; at first wait until all series are served.

    Raises `AssertionError` if they are not within three minutes.
    """
    wait_until(
        lambda: read_page(port).count("\nsessionary_lag_records{") >= series, _WAIT_S, "all series", pause_s=_LOOK_S
    )
    times: list[float] = []
    for _ in range(_SCRAPES):
        began_s = time.monotonic()
        read_page(port)
        times.append((time.monotonic() - began_s) * 1_000)
    return max(times)


def read_page(port: int) -> str:
    """Return the exporter's page; empty if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_STOP_S) as answer:
            text: bytes = answer.read()
    except OSError:
        return ""
    return text.decode()


def _start_stack(stack: Stack, data: Path) -> Child:
    """Run `sessionary up` and wait until it says its variables. Raises `RuntimeError`."""
    up = stack.run([COMMAND, "up", "--data", str(data), "--json"], env={}, name="up")
    deadline_s = time.monotonic() + _WAIT_S
    while '"SESSIONARY_CONTROL_URL"' not in up.log.read_text():
        stack.check_running(up)
        if time.monotonic() > deadline_s:
            raise RuntimeError("the stack does not start")
        time.sleep(_LOOK_S)
    return up


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    partitions = PARTITIONS_QUICK if bench.options.quick else PARTITIONS
    away = f"http://127.0.0.1:{free_port()}"  # ClickHouse is not asked for anything here
    found: dict[str, list[float]] = {}

    def measure(name: str, work: Callable[[], float]) -> None:
        found[name] = bench.repeat(name, lambda _: work())

    with running_stack(bench) as stack:
        env = environment(unread_pipeline(stack, partitions), clickhouse_url=away)
        measure("lag", partial(time_command, [COMMAND, "lag"], env))
        port = free_port()
        kafka = many_groups(stack, GROUPS, GROUP_PARTITIONS)
        exporter = stack.run(
            [COMMAND, "serve", "lag-exporter", "--port", str(port)],
            env=environment(kafka, clickhouse_url=away),
            name="exporter",
        )
        measure("scrape", partial(scrape_ms, port, GROUPS * GROUP_PARTITIONS))
        exporter.stop(_STOP_S)
        measure("help", partial(time_command, [COMMAND, "--help"], {}))
        measure("import", partial(time_command, [sys.executable, "-c", "import sessionary.producers"], {}))
        measure("python", partial(time_command, [sys.executable, "-c", "pass"], {}))
        data = stack.folder / "up"
        up = _start_stack(stack, data)
        measure("doctor", partial(time_command, [COMMAND, "doctor", "--data", str(data)], {}))
        up.stop(_STOP_S)
    notes = (
        f"lag: {partitions * TOPICS_READ:,} partitions of {TOPICS_READ} topics, {partitions:,} with an unread record; "
        f"a scrape: {GROUPS * GROUP_PARTITIONS:,} series a metric, the longest of {_SCRAPES}",
        "commands: whole processes, Python's start included",
    )
    return [
        Result("sessionary lag", "s", found["lag"], Target("<=", 2.0), notes),
        Result("scrape of the lag exporter", "ms", found["scrape"], Target("<=", 500.0)),
        Result("sessionary doctor, well stack", "s", found["doctor"], Target("<=", 3.0)),
        Result("sessionary --help", "s", found["help"], Target("<=", 0.5)),
        Result("import of the client", "s", found["import"]),
        Result("start of Python alone", "s", found["python"]),
    ]
