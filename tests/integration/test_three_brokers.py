"""Three brokers: the loss of a partition's leader costs no event and times out no live session."""

import json
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.kafka.cluster import broker_answers, broker_processes, plan_cluster, write_cluster
from sessionary.infra.local.supervisor import Part, Supervisor
from sessionary.infra.topics import apply_topics
from sessionary.producers import Session, SessionClient
from sessionary.schemas.codec import Event
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.committed import PartitionSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig, brief_limits
from tests.integration.refold import find_differences, refold
from tests.integration.test_no_false_timeouts import read_timeouts, wait_applied
from tests.integration.test_pipeline import check_oracle, check_rejections, cut, log_in_kafka, table_in_kafka
from tests.support.logs import log_folder
from tests.support.processes import Processes
from tests.support.reading import read_events, read_records
from tests.support.waiting import wait_until

SESSIONS = 8
# More than a client needs to give up a silent broker; less than a silence of librdkafka's default.
BUDGET_MS = 30_000
START_S = 300.0


class ThreeBrokers:
    """Three supervised brokers, with the topics of a pipeline."""

    def __init__(self, folder: Path, log_name: str) -> None:
        cluster = plan_cluster(folder)
        write_cluster(folder, cluster)
        self.kafka = KafkaSettings(
            bootstrap_servers=cluster.bootstrap_servers, topic_prefix=f"t{secrets.token_hex(5)}", partitions=4
        )
        parts = [
            Part(
                broker.name,
                [sys.executable, "-m", "sessionary.infra.cli", "serve", "broker", *broker.options],
                log_folder() / f"{log_name}.{broker.name}.log",
                ready=lambda address=broker.address: broker_answers(address),  # type: ignore[misc]
            )
            for broker in broker_processes(folder, cluster.bootstrap_servers)
        ]
        self._supervisors = [Supervisor([part]) for part in parts]
        self._admin = AdminClient(self.kafka.client_config())

    def start(self) -> None:
        """Start the brokers and create the topics."""
        for supervisor in self._supervisors:
            supervisor.start()
        for supervisor in self._supervisors:
            supervisor.wait_ready(START_S)
        wait_until(lambda: self._brokers_known() == 3, START_S, "three brokers")
        apply_topics(self.kafka, 3)

    def stop(self, *brokers: int) -> None:
        """Stop these brokers, or all."""
        for broker in brokers or (1, 2, 3):
            self._supervisors[broker - 1].stop()

    def _brokers_known(self) -> int:
        try:
            return len(self._admin.list_topics(timeout=60).brokers)
        except KafkaException:
            return 0

    def pid(self, broker: int) -> int | None:
        """Return the pid of a broker; None while it does not run."""
        return self._supervisors[broker - 1].pid(f"broker-{broker}")

    def leader(self, partition: int) -> int:
        """Return the broker that leads a partition of the events; -1: none, or no answer."""
        topic = self.kafka.topics.events
        try:
            return self._admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader
        except KafkaException:  # a silent broker was asked
            return -1

    def has_replicas(self, count: int) -> bool:
        """Return True if each partition has so many replicas in sync."""
        try:
            topics = self._admin.list_topics(timeout=60).topics.values()
        except KafkaException:  # a silent broker was asked
            return False
        return all(len(place.isrs) == count for topic in topics for place in topic.partitions.values())

    def signal(self, broker: int, number: signal.Signals) -> int:
        """Send a signal to a broker; return its pid."""
        pid = self.pid(broker)
        assert pid is not None
        os.killpg(pid, number)
        return pid


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(tmp_path / "brokers", request.node.name)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def start_sessions(client: SessionClient) -> list[Session]:
    return [client.create(user_id="u", limits=brief_limits(BUDGET_MS)).start() for _ in range(SESSIONS)]


def partition(kafka: KafkaSettings, session: Session) -> int:
    return partition_of(SessionKey(TENANT, session.session_id).encoded(), kafka.partitions)


def check_log(kafka: KafkaSettings, journal: Path) -> None:
    """Check that no event that was acknowledged is missing, and that each was applied once."""
    events = {event.envelope.event_id for event in read_events(kafka) if isinstance(event, Event)}
    acknowledged = {line["event_id"] for line in map(json.loads, journal.read_text().splitlines()) if not line["error"]}
    assert len(acknowledged) > 3 * SESSIONS
    assert acknowledged <= events
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    rejected = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    rows, ends = table_in_kafka(kafka)
    folded = refold(cut(log_in_kafka(kafka), ends), PartitionSettings(kafka.topics.events, kafka.partitions))
    assert find_differences(folded, rows, audits) == []
    check_rejections(folded, rejected)
    check_oracle(kafka, audits, rejected)


def test_a_killed_leader_costs_no_event_and_comes_back(
    brokers: ThreeBrokers, processes: Processes, tmp_path: Path
) -> None:
    kafka = brokers.kafka
    pipeline = PipelineRig(kafka, None, processes)
    processor = pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        sessions = start_sessions(client)
        wait_applied(kafka, "T02", SESSIONS)
        place = partition(kafka, sessions[0])
        leader = wait_until(lambda: max(brokers.leader(place), 0), START_S, "a leader")
        killed = brokers.signal(leader, signal.SIGKILL)
        wait_until(lambda: brokers.leader(place) not in (leader, -1), START_S, "another leader")
        sessions[0].complete()
        wait_applied(kafka, "T13", 1)
        for session in sessions[1:]:
            session.activity("llm", "after the loss of a broker")
        wait_until(lambda: brokers.pid(leader) not in (None, killed), START_S, "a restart")
        wait_until(lambda: brokers.has_replicas(3), START_S, "three replicas in sync", pause_s=0.5)
        for session in sessions[1:]:
            session.complete()
        assert client.flush(120) == 0
    wait_applied(kafka, "T13", SESSIONS)
    processor.stop(180)
    assert read_timeouts(kafka) == []
    check_log(kafka, tmp_path / "agent-journal.ndjson")


def test_a_leader_that_falls_silent_times_out_no_live_session(
    brokers: ThreeBrokers, processes: Processes, tmp_path: Path
) -> None:
    kafka = brokers.kafka
    pipeline = PipelineRig(kafka, None, processes)
    processor = pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        sessions = start_sessions(client)
        wait_applied(kafka, "T02", SESSIONS)
        ((place, _),) = Counter(partition(kafka, session) for session in sessions).most_common(1)
        silent = next(session for session in sessions if partition(kafka, session) == place)
        sessions.remove(silent)
        leader = wait_until(lambda: max(brokers.leader(place), 0), START_S, "a leader")
        brokers.signal(leader, signal.SIGSTOP)
        silent.lifecycle.detach()
        wait_until(lambda: brokers.leader(place) not in (leader, -1), START_S, "another leader")
        # It times out after the outage grace; the others would too, if their heartbeats were late.
        wait_applied(kafka, "T06", 1, timeout_s=2 * START_S)
        assert [record.session_id for record in read_timeouts(kafka)] == [silent.session_id]
        brokers.signal(leader, signal.SIGCONT)
        wait_until(lambda: brokers.has_replicas(3), START_S, "three replicas in sync", pause_s=0.5)
        for session in sessions:
            session.complete()
        assert client.flush(120) == 0
    wait_applied(kafka, "T13", SESSIONS - 1)
    processor.stop(180)
    check_log(kafka, tmp_path / "agent-journal.ndjson")
