"""The servers of a measurement, on a temporary folder: a broker, a ClickHouse endpoint if needed.

    with running_stack(bench) as stack:
        kafka = stack.new_pipeline()                    # separate topics child =
        stack.start("sessionary.stream_processors", env=environment(kafka, instance="w1"),
        name="w1")

Other than in tests, the broker runs with the JVM options of Kafka's own scripts (the optimising
compiler, G1). Everything that was started ends with the context, also if this process is killed.
The folder is deleted, unless `--keep` is given.
"""

import itertools
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.process import Child, tail
from sessionary.infra.topics import apply_topics
from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.kafka.log_progress import LogEndClient
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.support.pipelines import environment, remove_pipeline

_STOP_GRACE_S = 15.0
_TRANSACTIONS_S = 30.0
_ANSWER_S = 5.0
_PROGRAM_S = 300.0
_LOOK_S = 0.1
PARTITIONS = 4


class Stack:
    """The servers of a measurement, and the processes that are started beside them."""

    def __init__(self, bench: Bench, folder: Path, bootstrap_servers: str | None = None) -> None:
        """`folder`: for data and logs.

        `bootstrap_servers`: a broker that runs already; None starts one.
        """
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
        """True if this object started the broker, so that its CPU time can be measured."""
        return self._running is None

    @property
    def broker_pid(self) -> int:
        """The process id of the own broker, which must run."""
        pid = self._broker.pid
        assert pid is not None, "the broker has ended"
        return pid

    def new_pipeline(self, partitions: int = PARTITIONS) -> KafkaSettings:
        """Create the topics of a pipeline with a separate prefix."""
        kafka = KafkaSettings(
            bootstrap_servers=self.bootstrap_servers,
            topic_prefix=f"bench{next(self._names)}-{secrets.token_hex(3)}",
            partitions=partitions,
        )
        apply_topics(kafka)
        return kafka

    def drop_pipeline(self, kafka: KafkaSettings) -> None:
        """Delete a pipeline's topics, to free disk and cache for the next one.

        Its transactions end first: a broker that is to mark their end in a topic that is gone was
        seen to mark no other one's for 30 s, which holds up the next measurement.
        """
        wait_transactions_end(kafka)
        remove_pipeline(kafka)

    def new_database(self) -> ClickHouseSettings:
        """Start the endpoint if it does not run yet, and create an empty database."""
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
        """The process id of the endpoint, which must run."""
        pid = None if self._clickhouse is None else self._clickhouse.pid
        assert pid is not None, "the endpoint does not run"
        return pid

    def start(self, module: str, *args: str, env: Mapping[str, str] | None = None, name: str) -> Child:
        """Run `python -m module args`; `env` is added to this process's environment.

        The process ends by `Child.stop` or `kill`, or with the stack.
        """
        return self.run([sys.executable, "-m", module, *args], env=env, name=name)

    def run_program(self, module: str, *args: str, kafka: KafkaSettings, name: str, **fields: str) -> dict[str, Any]:
        """Run a program of a client to its end; return the JSON object that it prints last.

        `fields`: further settings by field name. Raises `RuntimeError` if it fails, or does not end
        within five minutes.
        """
        return self.run_to_end([sys.executable, "-m", module, *args], environment(kafka, **fields), name, _PROGRAM_S)

    def run_to_end(self, argv: Sequence[str], env: Mapping[str, str], name: str, timeout_s: float) -> dict[str, Any]:
        """Run a command line to its end; return the JSON object that it prints last.

        Raises `RuntimeError` if it fails, or does not end in time.
        """
        child = self.run(argv, env=env, name=name)
        if not child.wait(timeout_s) or child.exit_code != 0:
            raise RuntimeError(f"{name} ended with {child.exit_code}:\n{child.log.read_text()[-2_000:]}")
        figures: dict[str, Any] = json.loads(child.log.read_text().splitlines()[-1])
        return figures

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, name: str) -> Child:
        """Run a command line. Its output goes to the log `name`, below the stack's folder."""
        log = self.folder / "logs" / f"{next(self._names):03}-{name}.log"
        temporary = self.folder / "tmp"  # what a killed process leaves is deleted with the folder
        temporary.mkdir(exist_ok=True)
        child = Child(argv, log, {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary), **(env or {})})
        self._children.append(child)
        return child

    def check_running(self, *children: Child) -> None:
        """Raise `RuntimeError` with the end of the log if one of the processes has ended."""
        for child in children:
            if child.exit_code is not None:
                raise RuntimeError(f"a process ended with code {child.exit_code}:\n{tail(child.log, 30)}")

    def start_servers(self) -> None:
        """Start the broker and block until it serves; do nothing if one was given."""
        if self._running is not None:
            return
        self._bench.print_progress("starting a broker")
        self._broker.start()
        self._broker.wait_ready()

    def stop(self) -> None:
        """Stop all processes and servers, the last started first. Blocks."""
        for child in reversed(self._children):
            child.stop(_STOP_GRACE_S)
        if self._clickhouse is not None:
            self._clickhouse.stop()
        self._broker.stop()


def wait_transactions_end(kafka: KafkaSettings, timeout_s: float = _TRANSACTIONS_S) -> None:
    """Block until no topic of a pipeline has an open transaction, or for `timeout_s` at most."""
    deadline_s = time.monotonic() + timeout_s
    connection = AdminConnection(kafka)
    high, stable = (LogEndClient(connection, committed_only=committed) for committed in (False, True))
    for topic in kafka.topics:
        partitions = range(kafka.partitions)
        # In this order: without an open transaction, the stable end is never the lower one.
        while time.monotonic() < deadline_s:
            ends = high.ask_ends(topic, partitions, _ANSWER_S)
            if stable.ask_ends(topic, partitions, _ANSWER_S) == ends:
                break
            time.sleep(_LOOK_S)


@contextmanager
def running_stack(bench: Bench, *, with_broker: bool = True) -> Iterator[Stack]:
    """Run a broker, unless none is wanted, while the context lasts; yield the stack."""
    folder = Path(tempfile.mkdtemp(prefix="sessionary-bench-"))
    stack = Stack(bench, folder)
    try:
        if with_broker:
            stack.start_servers()
        yield stack
    finally:
        stack.stop()
        if bench.options.keep:
            bench.print_progress(f"data and logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


__all__ = ["PARTITIONS", "Stack", "environment", "running_stack"]
