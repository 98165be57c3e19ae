"""The whole pipeline for a test: processor and sinks as processes, with own topics and database."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pydantic import SecretStr

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.types import Limits
from tests.style.project import ROOT
from tests.support.pipelines import environment, run_sql
from tests.support.processes import Processes
from tests.support.waiting import wait_until

COMMAND = str(Path(sys.executable).parent / "sessionary")
TENANT = "acme"
TOKEN = "token-of-acme"
OTHER, OTHER_TOKEN = "globex", "token-of-globex"
OPERATOR_TOKEN, OPERATOR = "op", {"principal": "ops", "roles": ["operator"]}
# Who may ask a processor that tests share.
API_TOKENS = json.dumps({TOKEN: TENANT, OTHER_TOKEN: OTHER, OPERATOR_TOKEN: OPERATOR})
SINKS = ("audit", "history", "rejected", "batches")
# On a busy machine: of a server's answer, and of what a client waits for.
_ANSWER_S, _CLIENT_S = 60.0, 120.0


def brief_limits(budget_ms: int = 3_000, grace_ms: int = 1_500) -> Limits:
    """Return limits with which a session's whole life takes seconds."""
    part = budget_ms // 3
    return Limits(
        init_ms=60_000,
        model_ms=part,
        tool_ms=part,
        network_ms=budget_ms - 2 * part,
        idle_ms=None,
        attached_run_ms=None,
        max_duration_ms=None,
        grace_ms=grace_ms,
        hold_ms=None,
        recovery_ms=None,
        archive_delay_ms=500,
        release_limit_ms=2_000,
        context_limit_bytes=None,
        override=True,
    )


class PipelineRig:
    """Starts the processes, knows their addresses, and waits until all rows have arrived.

    `processor`: the one that was started last.
    """

    processor: Child

    def __init__(self, kafka: KafkaSettings, clickhouse: ClickHouseSettings | None, processes: Processes) -> None:
        self.kafka, self.clickhouse = kafka, clickhouse
        self._processes = processes
        self.api_port = free_port()
        self.control_url = f"http://127.0.0.1:{self.api_port}"

    def start_processor(self, **settings: str) -> Child:
        """Start a processor and wait until it owns its partitions."""
        defaults = {
            "instance": "w1",
            "api_port": str(self.api_port),
            "api_tokens": f'{{"{TOKEN}": "{TENANT}"}}',
            **settings,
        }
        env = environment(self.kafka, **defaults)
        child = self._processes.start("sessionary.stream_processors", env=env, name=f"processor-{defaults['instance']}")
        self.processor = child
        wait_until(self.is_ready, 180, "the processor to own its partitions")
        return child

    def partition_states(self) -> dict[str, str]:
        """Return what the processor says of each of its partitions."""
        with urllib.request.urlopen(f"{self.control_url}/readyz", timeout=_ANSWER_S) as answer:
            states: dict[str, str] = json.load(answer)["partitions"]
        return states

    def is_ready(self) -> bool:
        """Return True if all of the processor's partitions have been open, or halted."""
        try:
            with urllib.request.urlopen(f"{self.control_url}/readyz", timeout=_ANSWER_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def start_sinks(self, kinds: Sequence[str] = SINKS) -> list[Child]:
        """Create the tables and start the sinks."""
        assert self.clickhouse is not None
        env = environment(self.kafka, self.clickhouse)
        migrated = self._processes.run([COMMAND, "db", "migrate"], env=env, name="migrate")
        assert migrated.wait(600)
        assert migrated.exit_code == 0
        return [self.start_sink(kind) for kind in kinds]

    def start_sink(self, kind: str, **settings: str) -> Child:
        """Start a sink whose tables exist."""
        assert self.clickhouse is not None
        # Tests wait until all has landed, ticks too.
        env = environment(self.kafka, self.clickhouse, **{"sink_idle_seconds": "0.5", **settings})
        return self._processes.run([COMMAND, "serve", "sink", kind], env=env, name=f"sink-{kind}")

    def client_settings(self, folder: Path, name: str = "agent") -> ProducerSettings:
        """Return settings of a client with its own spool and journal below `folder`."""
        return ProducerSettings(
            **self.kafka.model_dump(),
            control_url=self.control_url,
            api_token=SecretStr(TOKEN),
            spool_dir=folder / f"{name}-spool",
            journal_path=folder / f"{name}-journal.ndjson",
            handle_sigterm=False,
            verdict_timeout_s=_CLIENT_S,
            close_timeout_s=_CLIENT_S,
        )

    def run_jobs(self, module: str, folder: Path, jobs: Sequence[object], limit_s: float) -> str:
        """Let a module of `tests.support` carry jobs out, in processes that may kill themselves.

        It gets the folder, and the file with the jobs; returns what it printed.
        """
        (folder / "jobs.json").write_text(json.dumps(jobs))
        wait_s = f"{_CLIENT_S:g}"
        own = {"control_url": self.control_url, "api_token": TOKEN}
        own |= {"verdict_timeout_s": wait_s, "close_timeout_s": wait_s}
        done = subprocess.run(
            [sys.executable, "-m", f"tests.support.{module}", folder, folder / "jobs.json"],
            env={**os.environ, **environment(self.kafka, **own)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout

    def ask(self, page: str) -> Any:
        """Return what the control API's page of a session says, for example `<id>/conversation`.

        An owner that was just started answers after its first commit, and 503 until then.
        """
        request = urllib.request.Request(
            f"{self.control_url}/v1/sessions/{page}", headers={"Authorization": f"Bearer {TOKEN}"}
        )

        def answer() -> list[Any] | None:
            try:
                with urllib.request.urlopen(request, timeout=_ANSWER_S) as found:
                    return [json.load(found)]
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                error.close()
                return None

        return wait_until(answer, _CLIENT_S, f"an answer about {page}")[0]

    def sql(self, statement: str) -> list[list[str]]:
        """Run a query in the test's database; return rows of text."""
        assert self.clickhouse is not None
        statement = statement.replace("{db}", self.clickhouse.clickhouse_database)
        return [line.split("\t") for line in run_sql(self.clickhouse, statement).splitlines()]

    def lag(self, group: str, topic: str) -> int:
        """Return a group's lag on a topic, in records."""
        return sum(end - landed for landed, end in self._landed_and_ends(group, topic))

    def _landed_and_ends(self, group: str, topic: str) -> list[tuple[int, int]]:
        """Return of each partition up to which offset the group has read it, and its end."""
        consumer = Consumer({**self.kafka.client_config(), "group.id": group})
        try:
            places = [TopicPartition(topic, partition) for partition in range(self.kafka.partitions)]
            found: list[tuple[int, int]] = []
            for place in consumer.committed(places, timeout=_ANSWER_S):
                low, high = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
                found.append((max(place.offset, low), high))
            return found
        finally:
            consumer.close()

    def wait_landed(self, timeout_s: float = 60, kinds: Sequence[str] = ("audit", "history", "rejected")) -> None:
        """Wait until the sinks of these kinds have stored what has been written until now."""
        names = self.kafka.topics
        topics = {"audit": names.audit, "history": names.events, "rejected": names.rejected}
        for kind in kinds:
            topic = topics[kind]
            group = f"{self.kafka.topic_prefix}.sink.{kind}"
            ends = [end for _, end in self._landed_and_ends(group, topic)]

            def has_landed(group: str = group, topic: str = topic, ends: Sequence[int] = ends) -> bool:
                found = self._landed_and_ends(group, topic)
                return all(landed >= end for (landed, _), end in zip(found, ends, strict=True))

            wait_until(has_landed, timeout_s, f"sink {kind} to catch up", pause_s=0.5)


def started_pipeline(
    kafka: KafkaSettings, processes: Processes, clickhouse: ClickHouseSettings | None = None, **settings: str
) -> PipelineRig:
    """Return a pipeline with a processor that owns its partitions. `settings`: the processor's."""
    pipeline = PipelineRig(kafka, clickhouse, processes)
    pipeline.start_processor(**settings)
    return pipeline
