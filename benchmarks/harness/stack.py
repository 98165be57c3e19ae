"""The servers of a measurement: a broker and, where asked for, a ClickHouse endpoint, on a temporary folder.

    with running_stack(bench) as stack:
        kafka = stack.new_pipeline()                    # topics of its own
        child = stack.start("sessionary.stream_processors", env=environment(kafka, instance="w1"), name="w1")

The broker runs as Kafka's own scripts run it (the optimising compiler, G1), other than in tests. Everything that was
started ends with the context, also when this process is killed; the folder goes unless `--keep`.
"""

import itertools
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.kafka.broker import LocalBroker
from sessionary.infra.local.process import Child, tail
from sessionary.infra.topics import apply_topics
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.support.pipelines import environment, remove_pipeline

_STOP_GRACE_S = 15.0
PARTITIONS = 4


class Stack:
    """The servers that run, and what is started beside them."""

    def __init__(self, bench: Bench, folder: Path, bootstrap_servers: str | None = None) -> None:
        """`folder`: for data and logs. `bootstrap_servers`: of a broker that runs already; none is started then."""
        self.folder = folder
        self._bench = bench
        self._names = itertools.count(1)
        self._children: list[Child] = []
        self._running = bootstrap_servers
        self._broker = LocalBroker(folder / "kafka", None, folder / "logs" / "broker.log", optimising=True)
        self._clickhouse: LocalClickHouse | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address."""
        return self._running or self._broker.bootstrap_servers

    @property
    def own_broker(self) -> bool:
        """Whether the broker is ours, so that its CPU time can be told."""
        return self._running is None

    @property
    def broker_pid(self) -> int:
        """The process of our own broker."""
        pid = self._broker.pid
        assert pid is not None, "the broker has ended"
        return pid

    def new_pipeline(self, partitions: int = PARTITIONS) -> KafkaSettings:
        """Make the topics of a pipeline under a prefix of its own."""
        kafka = KafkaSettings(
            bootstrap_servers=self.bootstrap_servers,
            topic_prefix=f"bench{next(self._names)}-{secrets.token_hex(3)}",
            partitions=partitions,
        )
        apply_topics(kafka)
        return kafka

    def drop_pipeline(self, kafka: KafkaSettings) -> None:
        """Delete a pipeline's topics, so that the next one has its disk and its cache."""
        remove_pipeline(kafka)

    def new_database(self) -> ClickHouseSettings:
        """Start the endpoint where it does not run yet, and make an empty database."""
        if self._clickhouse is None:
            self._bench.print_progress("starting the ClickHouse endpoint")
            self._clickhouse = LocalClickHouse(
                self.folder / "clickhouse", None, self.folder / "logs" / "clickhouse.log"
            )
            self._clickhouse.start()
            self._clickhouse.wait_ready()
        settings = ClickHouseSettings(
            clickhouse_url=self._clickhouse.url, clickhouse_database=f"bench{next(self._names)}"
        )
        ClickHouseClient(settings.model_copy(update={"clickhouse_database": "default"})).execute(
            f"CREATE DATABASE {settings.clickhouse_database}"
        )
        return settings

    @property
    def clickhouse_pid(self) -> int:
        """The endpoint's process; it must have been started."""
        pid = None if self._clickhouse is None else self._clickhouse.pid
        assert pid is not None, "the endpoint does not run"
        return pid

    def start(self, module: str, *args: str, env: Mapping[str, str] | None = None, name: str) -> Child:
        """Run `python -m module args`; `env` is added to ours. End it by `Child.stop` or `kill`, or leave it to us."""
        return self.run([sys.executable, "-m", module, *args], env=env, name=name)

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, name: str) -> Child:
        """Run a command line from the project's folder; its output goes to the log `name`."""
        log = self.folder / "logs" / f"{next(self._names):03}-{name}.log"
        temporary = self.folder / "tmp"  # what a killed process leaves goes with the folder
        temporary.mkdir(exist_ok=True)
        child = Child(argv, log, {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary), **(env or {})})
        self._children.append(child)
        return child

    def check_running(self, *children: Child) -> None:
        """Raise `RuntimeError` with the log's end where one of them has ended."""
        for child in children:
            if child.exit_code is not None:
                raise RuntimeError(f"a process ended with code {child.exit_code}:\n{tail(child.log, 30)}")

    def start_servers(self) -> None:
        """Start the broker and wait for it; nothing where one runs already."""
        if self._running is not None:
            return
        self._bench.print_progress("starting a broker")
        self._broker.start()
        self._broker.wait_ready()

    def stop(self) -> None:
        """End all, the last one first."""
        for child in reversed(self._children):
            child.stop(_STOP_GRACE_S)
        if self._clickhouse is not None:
            self._clickhouse.stop()
        self._broker.stop()


@contextmanager
def running_stack(bench: Bench) -> Iterator[Stack]:
    """Run a broker while the context lasts."""
    folder = Path(tempfile.mkdtemp(prefix="sessionary-bench-"))
    stack = Stack(bench, folder)
    try:
        stack.start_servers()
        yield stack
    finally:
        stack.stop()
        if bench.options.keep:
            bench.print_progress(f"data and logs stay in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


__all__ = ["PARTITIONS", "Stack", "environment", "running_stack"]
