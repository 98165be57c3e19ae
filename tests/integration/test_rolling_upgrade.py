"""From 0.1.0 to today's release, back, and forward again, worker by worker, while clients work.

The older workers are the code of 0.1.0 itself: `tests/recorded/0.1.0/processor.tar.xz` holds its
packages `schemas` and `stream_processors`, which run in today's environment.
"""

import json
import signal
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.infra.settings import OperatorSettings
from sessionary.producers import ProducerSettings
from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.records import BatchRecord
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from tests.auditor.checks import CHECKS, check_clickhouse, replay_evidence
from tests.auditor.evidence import Evidence, compact_changelog, read_journals, read_outputs, read_topic
from tests.chaos.agent import limits
from tests.chaos.background_sessions import BackgroundSessions
from tests.integration.processor_load import (
    BackgroundLoad,
    check_everything,
    last_writers,
    start_processor,
    wait_caught_up,
    wait_for_writers,
)
from tests.support import Processes, read_records, wait_until

pytestmark = pytest.mark.long

RELEASE = Path(__file__).parents[1] / "recorded" / "0.1.0" / "processor.tar.xz"
PARTITIONS = range(4)
HOLE_MS, QUIET_MS = 5_000, 25_000  # as the auditor has them
MOVE_S = 40.0
NEWEST = NEWEST_RULES.version


class Worker(NamedTuple):
    child: Child
    url: str

    def end(self) -> None:
        """End it gracefully."""
        self.child.signal(signal.SIGTERM)
        assert self.child.wait(30)
        assert self.child.exit_code == 0


class Fleet:
    """Starts workers of both releases for one pipeline."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, former: Path) -> None:
        self._kafka, self._processes, self._former = kafka, processes, former

    def start_old(self, name: str) -> Worker:
        """Start a worker of 0.1.0."""
        folders = [str(self._former / package) for package in ("schemas", "stream_processors")]
        return self._start(name, {"t": "acme"}, PYTHONPATH=":".join(folders))

    def start_new(self, name: str) -> Worker:
        """Start a worker of today's release."""
        return self._start(name, {"op": {"principal": "on-call", "roles": ["operator"]}})

    def _start(self, name: str, tokens: dict[str, Any], **environ: str) -> Worker:
        port = free_port()
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in environ.items():
                patch.setenv(variable, value)
            child = start_processor(
                self._processes,
                self._kafka,
                name,
                api_port=str(port),
                api_tokens=json.dumps(tokens),
                hole_ms=str(HOLE_MS),
                quiet_ms=str(QUIET_MS),
            )
        return Worker(child, f"http://127.0.0.1:{port}")


@pytest.fixture
def fleet(kafka: KafkaSettings, processes: Processes, tmp_path: Path) -> Fleet:
    with tarfile.open(RELEASE) as archive:
        archive.extractall(tmp_path / "former", filter="data")
    return Fleet(kafka, processes, tmp_path / "former")


class Clients:
    """Agents of today's client, each with a journal."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        settings = ProducerSettings.model_validate({**kafka.model_dump(), "spool_dir": folder / "spool"})
        self.journals = [folder / f"journal-{n}.ndjson" for n in range(3)]
        self._agents = [
            BackgroundSessions(settings, "acme", "billing", journal, limits(brief=False)) for journal in self.journals
        ]
        ids = [[new_session_id() for _ in range(1_000)] for _ in self._agents]
        until_s = time.time() + 3_600
        self._threads = [
            threading.Thread(target=agent.run, args=(own, 20.0, until_s))
            for agent, own in zip(self._agents, ids, strict=True)
        ]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            agent._stop.set()
        for thread in self._threads:
            thread.join()
        for agent in self._agents:
            agent.close()


def operator(worker: Worker) -> ControlApiClient:
    """Return the client of an operator."""
    return ControlApiClient(OperatorSettings.model_validate({"control_url": worker.url, "operator_token": "op"}))


def rules_in_force(kafka: KafkaSettings) -> dict[int, int]:
    """Return the rules of each partition's last batch."""
    found = (record for record in read_records(kafka, kafka.topics.batches) if isinstance(record, BatchRecord))
    return {batch.partition: batch.rules for batch in found}


def is_open_everywhere(worker: Worker) -> bool:
    return [found["state"] for found in operator(worker).list_partitions()] == ["open"] * len(PARTITIONS)


def audit_differences(kafka: KafkaSettings, journals: list[Path]) -> Iterator[str]:
    """Yield what the independent auditor finds in Kafka; there is no ClickHouse here."""
    servers, topics = kafka.bootstrap_servers, kafka.topics
    outputs, acknowledgements = read_outputs(servers, kafka.topic_prefix)
    table, positions = compact_changelog(read_topic(servers, topics.changelog))
    log, journal = read_topic(servers, topics.events), read_journals(journals)
    evidence = Evidence(kafka.partitions, log, outputs, table, positions, journal, {})
    inputs = replay_evidence(evidence._replace(acknowledgements=acknowledgements))
    for check in CHECKS:
        if check is not check_clickhouse:
            yield from (str(difference) for difference in check(inputs))


def test_workers_are_upgraded_forth_and_back_and_rules_begin_once_all_know_them(
    kafka: KafkaSettings, fleet: Fleet, tmp_path: Path
) -> None:
    with Clients(kafka, tmp_path) as clients, BackgroundLoad(kafka, 40, 200, 5, limits(brief=False)):
        one, two = fleet.start_old("old-1"), fleet.start_old("old-2")
        wait_for_writers(kafka, {"old-1", "old-2"}, MOVE_S)
        # Forth and back: by the rules of 0.1.0, each release takes over what the other wrote.
        one.end()
        one = fleet.start_new("new-1")
        wait_for_writers(kafka, {"new-1", "old-2"}, MOVE_S)
        two.end()
        two = fleet.start_new("new-2")
        wait_for_writers(kafka, {"new-1", "new-2"}, MOVE_S)
        one.end()
        one = fleet.start_old("old-1")
        wait_for_writers(kafka, {"old-1", "new-2"}, MOVE_S)
        two.end()
        two = fleet.start_old("old-2")
        wait_for_writers(kafka, {"old-1", "old-2"}, MOVE_S)
        # Forward again. While an old worker lives, the rules stay.
        one.end()
        one = fleet.start_new("new-1")
        wait_for_writers(kafka, {"new-1", "old-2"}, MOVE_S)
        with pytest.raises(
            Invalid, match=rf"not every worker is known to know rules {NEWEST}: {two.url} \(it is of an"
        ):
            operator(one).activate_rules(NEWEST)
        two.end()
        two = fleet.start_new("new-2")
        wait_for_writers(kafka, {"new-1", "new-2"}, MOVE_S)
        wait_until(lambda: is_open_everywhere(one), MOVE_S, "all partitions open", pause_s=0.5)
        assert set(rules_in_force(kafka).values()) == {1}

        operator(two).activate_rules(NEWEST)
        wait_until(lambda: rules_in_force(kafka) == dict.fromkeys(PARTITIONS, NEWEST), 20, "rules in force")
        listing = operator(one).activate_rules(NEWEST)  # harmless
        assert [(found["rules"], found["announced"]) for found in listing["partitions"]] == [(NEWEST, None)] * 4

        # An old worker that takes a new one's place halts what it is given, and writes nothing.
        two.end()
        late = fleet.start_old("old-3")
        wait_until(lambda: "changelog_unreadable" in late.child.log.read_text("utf-8"), MOVE_S, "the old worker's halt")
        assert "old-3" not in last_writers(kafka).values()
        late.end()
        two = fleet.start_new("new-2")
        wait_until(lambda: is_open_everywhere(one), MOVE_S, "all partitions open again", pause_s=0.5)
        wait_for_writers(kafka, {"new-1", "new-2"}, MOVE_S)
    wait_caught_up(kafka, 60)
    for worker in (one, two):
        worker.end()

    assert list(audit_differences(kafka, clients.journals)) == []
    audits = check_everything(kafka, hole_ms=HOLE_MS, quiet_ms=QUIET_MS)
    decisions = [audit for audit in audits if audit.kind == "decision"]
    assert sorted(audit.source_partition for audit in decisions) == list(PARTITIONS)
    assert {audit.actor for audit in decisions} == {"on-call"}
    assert "old-3" not in {
        batch.instance for batch in read_records(kafka, kafka.topics.batches) if isinstance(batch, BatchRecord)
    }
