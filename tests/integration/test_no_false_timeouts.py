"""A lagging processor or a broker outage causes no timeout of a live session."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.producers import Session, SessionClient
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig, brief_limits
from tests.support.pipelines import new_pipeline
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.waiting import wait_until

# Longer than a busy machine pauses the agent; and for how long nothing fires after an outage, in
# which the agent has to reach the broker again.
BUDGET_MS, OUTAGE_GRACE_MS = 12_000, 20_000
SESSIONS = 8


def read_timeouts(kafka: KafkaSettings) -> list[AuditRecord]:
    records = read_records(kafka, kafka.topics.audit)
    return [record for record in records if isinstance(record, AuditRecord) and record.transition == "T06"]


@contextmanager
def heartbeat_sessions(client: SessionClient) -> Iterator[list[Session]]:
    """Yield sessions that only send heartbeats, like an agent that waits for a model."""
    sessions = [client.create(user_id="u", limits=brief_limits(BUDGET_MS)).start() for _ in range(SESSIONS)]
    yield sessions
    for session in sessions:
        session.close()


def wait_applied(kafka: KafkaSettings, transition: str, count: int, timeout_s: float = 180) -> None:
    def enough() -> bool:
        records = read_records(kafka, kafka.topics.audit, timeout_s)
        return sum(isinstance(r, AuditRecord) and r.transition == transition for r in records) >= count

    wait_until(enough, timeout_s, f"{count} x {transition}", pause_s=0.5)


def test_a_lagging_processor_causes_no_false_timeout(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    processor = pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path)
    with (
        SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client,
        heartbeat_sessions(client),
    ):
        wait_applied(kafka, "T02", SESSIONS)
        processor.signal(signal.SIGSTOP)
        frozen_at = time.monotonic()
        # Longer than budget and group session timeout: the processor is fenced when it resumes.
        wait_until(lambda: time.monotonic() - frozen_at > 1.5 * BUDGET_MS / 1000, 120, "the budget to pass")
        processor.signal(signal.SIGCONT)
        wait_until(pipeline.is_ready, 60, "the processor to own its partitions again")
        silent = client.create(user_id="u", limits=brief_limits(BUDGET_MS)).start()
        silent.lifecycle.detach()
        wait_applied(kafka, "T06", 1)
    wait_applied(kafka, "T13", SESSIONS)
    assert [record.session_id for record in read_timeouts(kafka)] == [silent.session_id]


def test_a_lagging_processor_times_out_no_session_that_waits_for_its_verdict(
    broker: LocalBroker, processes: Processes, tmp_path: Path
) -> None:
    # In one partition the others' heartbeats leave no outage, after which no timer would fire.
    kafka = new_pipeline(broker.bootstrap_servers, partitions=1)
    pipeline = PipelineRig(kafka, None, processes)
    processor = pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path)
    with (
        SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client,
        heartbeat_sessions(client) as sessions,
        ThreadPoolExecutor(2) as threads,
    ):
        paused, failed = sessions[:2]
        paused.pause()
        failed.error(TimeoutError("slow"))
        wait_applied(kafka, "T10", 1)
        processor.signal(signal.SIGSTOP)
        verdicts = [threads.submit(paused.resume), threads.submit(failed.recover)]
        frozen_at = time.monotonic()
        wait_until(lambda: time.monotonic() - frozen_at > 3 * BUDGET_MS / 1000, 30, "the budget to pass thrice")
        assert not any(verdict.done() for verdict in verdicts)
        processor.signal(signal.SIGCONT)
        for verdict in verdicts:
            verdict.result(60)
        assert (paused.epoch, failed.epoch) == (2, 2)
    wait_applied(kafka, "T13", SESSIONS)
    assert read_timeouts(kafka) == []


def test_a_broker_outage_causes_no_false_timeout(broker: LocalBroker, processes: Processes, tmp_path: Path) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    pipeline = PipelineRig(kafka, None, processes)
    # The silent session times out only after the outage grace.
    pipeline.start_processor(outage_grace_ms=str(OUTAGE_GRACE_MS))
    settings = pipeline.client_settings(tmp_path)
    with (
        SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client,
        heartbeat_sessions(client) as sessions,
    ):
        wait_applied(kafka, "T02", SESSIONS)
        silent = sessions.pop()
        broker.kill()
        killed_at = time.monotonic()
        silent.lifecycle.detach()
        for session in sessions:
            session.activity("llm", "during the outage")
        wait_until(lambda: time.monotonic() - killed_at > 1.5 * BUDGET_MS / 1000, 120, "the budget to pass")
        broker.start()
        broker.wait_ready()
        wait_applied(kafka, "T06", 1)
        assert client.flush(180) == 0
    wait_applied(kafka, "T13", SESSIONS - 1)
    assert [record.session_id for record in read_timeouts(kafka)] == [silent.session_id]
