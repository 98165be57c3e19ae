"""From 0.1.0 to today's release, back, and forward again, part by part, while clients work.

The older parts are the code of 0.1.0 itself; `former_release` runs it.
"""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.infra.settings import OperatorSettings
from sessionary.producers import ProducerSettings
from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.records import AuditRecord, CleanupRequest, RejectedEvent
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.clickhouse.migrate import apply_migrations
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
from tests.auditor.checks import replay_evidence, run_checks
from tests.auditor.evidence import gather_evidence
from tests.chaos.agent import limits
from tests.chaos.background_sessions import BackgroundSessions
from tests.chaos.settle import count_open_claims
from tests.integration import former_agent
from tests.integration.former_release import (
    HOLE_MS,
    QUIET_MS,
    Fleet,
    FormerRelease,
    SinkFleet,
    Worker,
    end_process,
)
from tests.integration.pipeline_rig import COMMAND
from tests.integration.processor_load import (
    BackgroundLoad,
    check_everything,
    last_writers,
    wait_caught_up,
    wait_for_writers,
    wait_group,
)
from tests.integration.sink_rig import settings_for
from tests.support import Processes, environment, read_batches, read_records, run_sql, wait_until

PARTITIONS = range(4)
MOVE_S = 120.0  # a busy machine starts processes slowly
LAND_S = 120.0
NEWEST = NEWEST_RULES.version
LATE = "late-2"
# What newer rules may find wrong with an older client. A session may be late on a busy machine.
UNREAD = {"undecodable", "unknown_schema", "invalid_value", "broken_chain", "hash_mismatch", "not_member"}


@pytest.fixture
def former(tmp_path: Path) -> FormerRelease:
    return FormerRelease(tmp_path / "former")


@pytest.fixture
def fleet(kafka: KafkaSettings, processes: Processes, former: FormerRelease) -> Fleet:
    return Fleet(kafka, processes, former)


@pytest.fixture
def sink_settings(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> SinkSettings:
    return settings_for(kafka, clickhouse, sink_flush_seconds=1.0, sink_idle_seconds=2.0)


@pytest.fixture
def sinks(sink_settings: SinkSettings, processes: Processes, former: FormerRelease) -> SinkFleet:
    return SinkFleet(sink_settings, processes, former)


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
    return {batch.partition: batch.rules for batch in read_batches(kafka)}


def is_open_everywhere(worker: Worker) -> bool:
    return [found["state"] for found in operator(worker).list_partitions()] == ["open"] * len(PARTITIONS)


def wait_landed(settings: SinkSettings) -> None:
    """Wait until the sinks have written all that the topics have now."""
    for kind, definition in SINKS.items():
        wait_group(settings, settings.group_id(kind), getattr(settings.topics, definition.topic), LAND_S)


def keep_doubled_rows(clickhouse: ClickHouseSettings) -> None:
    """Let no merge hide rows that were written twice."""
    for definition in SINKS.values():
        run_sql(clickhouse, f"SYSTEM STOP MERGES {clickhouse.clickhouse_database}.{definition.table.name}")


def differences(kafka: KafkaSettings, clickhouse: ClickHouseSettings, journals: list[Path]) -> list[str]:
    """Return what the independent auditor finds in Kafka and in ClickHouse."""
    evidence = gather_evidence(
        kafka.bootstrap_servers,
        kafka.topic_prefix,
        clickhouse.clickhouse_url,
        clickhouse.clickhouse_database,
        journals,
        kafka.partitions,
    )
    return [str(difference) for difference in run_checks(replay_evidence(evidence))]


def audits_of(kafka: KafkaSettings) -> list[AuditRecord]:
    return [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]


def ended_sessions(kafka: KafkaSettings) -> set[str]:
    """Return the sessions of the client of 0.1.0 that have ended."""
    return {
        audit.session_id
        for audit in audits_of(kafka)
        if audit.owner_service == former_agent.SERVICE and audit.to_state == "Terminated"
    }


def is_cleaned_up(kafka: KafkaSettings) -> bool:
    """Return whether the client of 0.1.0 has ended its sessions and answered all requests."""
    audits = [audit for audit in audits_of(kafka) if audit.owner_service == former_agent.SERVICE]
    released = {audit.cleanup_id for audit in audits if audit.kind == "release" and not audit.host_lost}
    requests = {
        record.cleanup_id
        for record in read_records(kafka, kafka.topics.cleanup)
        if isinstance(record, CleanupRequest) and record.service_id == former_agent.SERVICE
    }
    return {audit.session_id for audit in audits} == ended_sessions(kafka) and bool(requests) and released == requests


def refusals_of_former_client(kafka: KafkaSettings) -> list[RejectedEvent]:
    """Return what processors refused of the client of 0.1.0."""
    found = (record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent))
    return [refusal for refusal in found if refusal.service_id == former_agent.SERVICE]


def end_agent(kafka: KafkaSettings, agent: Child) -> None:
    """Let the agent of 0.1.0 end its sessions, answer what it is asked, and close its client."""
    agent.signal(signal.SIGTERM)
    wait_until(lambda: former_agent.FINISHED in agent.log.read_text("utf-8"), MOVE_S, "the agent's last session")
    wait_until(lambda: is_cleaned_up(kafka), MOVE_S, "the agent's clean-ups", pause_s=0.5)
    end_process(agent)


def roll_workers(
    kafka: KafkaSettings, start: Callable[[str], Worker], release: str, one: Worker, two: Worker
) -> tuple[Worker, Worker]:
    """Replace two workers, one after the other."""
    one.end()
    one = start(f"{release}-1")
    wait_for_writers(kafka, {one.name, two.name}, MOVE_S)
    two.end()
    two = start(f"{release}-2")
    wait_for_writers(kafka, {one.name, two.name}, MOVE_S)
    return one, two


def activate_rules(kafka: KafkaSettings, fleet: Fleet, one: Worker, two: Worker) -> tuple[Worker, Worker]:
    """Replace two workers of 0.1.0, and activate today's rules once both know them."""
    one.end()
    one = fleet.start_new("new-1")
    wait_for_writers(kafka, {one.name, two.name}, MOVE_S)
    # While an old worker lives, the rules stay.
    with pytest.raises(Invalid, match=rf"not every worker is known to know rules {NEWEST}: {two.url} \(it is of an"):
        operator(one).activate_rules(NEWEST)
    two.end()
    two = fleet.start_new("new-2")
    wait_for_writers(kafka, {one.name, two.name}, MOVE_S)
    wait_until(lambda: is_open_everywhere(one), MOVE_S, "all partitions open", pause_s=0.5)
    assert set(rules_in_force(kafka).values()) == {1}

    operator(two).activate_rules(NEWEST)
    wait_until(lambda: rules_in_force(kafka) == dict.fromkeys(PARTITIONS, NEWEST), 20, "rules in force")
    listing = operator(one).activate_rules(NEWEST)  # harmless
    assert [(found["rules"], found["announced"]) for found in listing["partitions"]] == [(NEWEST, None)] * 4
    return one, two


def turn_quotas_on(kafka: KafkaSettings, processes: Processes, worker: Worker) -> Worker:
    """Start a worker of the role quotas, and let runs ask for quotas; return it."""
    with pytest.raises(Invalid, match="no worker of the role quotas runs"):
        operator(worker).activate_rules(NEWEST, quotas=True)
    port = free_port()
    env = environment(kafka, api_port=str(port), instance="quotas-1")
    admitting = Worker(
        "quotas-1", processes.run([COMMAND, "serve", "quotas"], env=env, name="quotas"), f"http://127.0.0.1:{port}"
    )
    wait_until(lambda: operator(worker).list_rules()["quota_workers"] == 1, MOVE_S, "the worker of quotas", pause_s=0.5)
    operator(worker).activate_rules(NEWEST, quotas=True)

    def are_on() -> bool:
        return all(found["quotas"] for found in operator(worker).list_rules()["partitions"])

    wait_until(are_on, MOVE_S, "quotas in force", pause_s=0.5)
    return admitting


def try_late_worker(kafka: KafkaSettings, fleet: Fleet, one: Worker, two: Worker) -> Worker:
    """Let a worker of 0.1.0 take the second one's place: it halts what it is given.

    Return the worker that takes the place again.
    """
    two.end()
    late = fleet.start_old(LATE)
    wait_until(lambda: "changelog_unreadable" in late.child.log.read_text("utf-8"), MOVE_S, "the old worker's halt")
    assert LATE not in last_writers(kafka).values()
    late.end()
    two = fleet.start_new("new-2")
    wait_until(lambda: is_open_everywhere(one), MOVE_S, "all partitions open again", pause_s=0.5)
    wait_for_writers(kafka, {one.name, two.name}, MOVE_S)
    return two


def test_each_part_is_upgraded_and_taken_back_beside_the_others_and_rules_begin_once_all_know_them(
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    fleet: Fleet,
    sinks: SinkFleet,
    sink_settings: SinkSettings,
    former: FormerRelease,
    processes: Processes,
    tmp_path: Path,
) -> None:
    former.make_tables(processes, clickhouse)
    with Clients(kafka, tmp_path) as clients, BackgroundLoad(kafka, 40, 200, 5, limits(brief=False)):
        one, two = fleet.start_old("old-1"), fleet.start_old("old-2")
        sinks.start_old()
        agent = former.start_agent(processes, kafka, fleet.url_of("1"), tmp_path)
        wait_for_writers(kafka, {"old-1", "old-2"}, MOVE_S)
        wait_landed(sink_settings)
        # Tables first: the sinks of 0.1.0 go on.
        apply_migrations(clickhouse)
        keep_doubled_rows(clickhouse)
        wait_landed(sink_settings)
        # Then the sinks; blocks of those that were killed are finished.
        sinks.kill()
        sinks.start_new()
        wait_landed(sink_settings)
        # Processors forth and back: by the rules of 0.1.0, each release takes over what the
        # other wrote.
        one, two = roll_workers(kafka, fleet.start_new, "new", one, two)
        wait_landed(sink_settings)
        one, two = roll_workers(kafka, fleet.start_old, "old", one, two)
        # Back go the sinks, too, once they have ended; and forward again.
        sinks.end()
        sinks.start_old()
        wait_landed(sink_settings)
        sinks.end()
        sinks.start_new()
        one, two = activate_rules(kafka, fleet, one, two)
        quotas = turn_quotas_on(kafka, processes, one)
        two = try_late_worker(kafka, fleet, one, two)
        # The client of 0.1.0 works under the new rules.
        ended = len(ended_sessions(kafka))
        wait_until(lambda: len(ended_sessions(kafka)) >= ended + 6, MOVE_S, "sessions under new rules", pause_s=0.5)
        end_agent(kafka, agent)
    wait_until(lambda: count_open_claims(f"{quotas.url}/metrics") == 0, MOVE_S, "each run to be admitted", pause_s=0.5)
    wait_caught_up(kafka, 60)
    for worker in (one, two, quotas):
        worker.end()
    wait_landed(sink_settings)
    sinks.end()

    assert differences(kafka, clickhouse, [*clients.journals, tmp_path / former_agent.JOURNAL]) == []
    faults = "SELECT * FROM {db}.v_integrity_between(from='1970-01-01 00:00:00', to='2106-01-01 00:00:00', late_s=0)"
    assert run_sql(clickhouse, faults.replace("{db}", clickhouse.clickhouse_database)) == ""
    assert {refusal.reason for refusal in refusals_of_former_client(kafka)} & UNREAD == set()
    audits = check_everything(kafka, hole_ms=HOLE_MS, quiet_ms=QUIET_MS)
    decisions = [audit for audit in audits if audit.kind == "decision"]
    # The rules, and then quotas.
    assert sorted(audit.source_partition for audit in decisions) == sorted([*PARTITIONS, *PARTITIONS])
    assert {audit.actor for audit in decisions} == {"on-call"}
    assert sum(audit.reason_code == "quota_granted" for audit in audits) >= len(PARTITIONS)
    assert LATE not in {batch.instance for batch in read_batches(kafka)}
