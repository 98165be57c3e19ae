"""A broker that freezes again and again: processor, sinks and clean-up go on after the last thaw.

A node whose session with its own controller expired during a freeze answers for a moment that the
cluster has no broker. A librdkafka client that hears this forgets its only broker for ever.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.process import Child
from sessionary.producers import Session, SessionClient
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import SINKS, TENANT, PipelineRig
from tests.integration.processor_load import Agent, OutgoingRecord, Sender
from tests.support.pipelines import new_pipeline
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.waiting import wait_until

FREEZES_S = (8, 5, 12, 7, 5)
PAUSE_S = 6
RECOVERY_S = 240  # a minute on an idle machine; never, if a client has forgotten its broker
SESSIONS = 12
EXIT_HUNG = 70  # a sink whose commit never returns ends, and its supervisor starts it again


def work_for(sessions: list[Session], seconds: float) -> None:
    """Let every session work, five times a second."""
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        for session in sessions:
            session.activity("llm")
        time.sleep(0.2)


def freeze_broker(broker: LocalBroker, sessions: list[Session], seconds: float) -> None:
    """Stop the broker's process for some seconds; the sessions work on."""
    assert broker.pid is not None
    os.killpg(broker.pid, signal.SIGSTOP)
    try:
        work_for(sessions, seconds)
    finally:
        os.killpg(broker.pid, signal.SIGCONT)


def offsets_of(kafka: KafkaSettings, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return partition → (log's end, committed by the group), asked by a new client."""
    consumer = Consumer({**kafka.client_config(), "group.id": group})
    try:
        places = [TopicPartition(topic, partition) for partition in range(kafka.partitions)]
        return {
            place.partition: (consumer.get_watermark_offsets(place, timeout=20)[1], place.offset)
            for place in consumer.committed(places, timeout=20)
        }
    finally:
        consumer.close()


def has_passed(kafka: KafkaSettings, group: str, topic: str) -> Callable[[], bool]:
    """Return a condition: the group has committed all that the topic holds at the first answer."""
    ends: dict[int, int] = {}

    def condition() -> bool:
        try:
            found = offsets_of(kafka, group, topic)
        except KafkaException:
            return False  # a node that has just resumed refuses or does not answer
        ends.update({partition: end for partition, (end, _) in found.items() if partition not in ends})
        return all(done >= ends[partition] for partition, (_, done) in found.items())

    return condition


def restart_ended(rig: PipelineRig, sinks: dict[str, Child]) -> None:
    """Start the sinks again that ended because a call hung."""
    for kind, sink in sinks.items():
        if sink.exit_code is not None:
            assert sink.exit_code == EXIT_HUNG
            sinks[kind] = rig.start_sink(kind)


def count_timeouts(kafka: KafkaSettings) -> int:
    records = read_records(kafka, kafka.topics.audit)
    return sum(isinstance(record, AuditRecord) and record.transition == "T06" for record in records)


def send_broken_records(kafka: KafkaSettings) -> None:
    """Send a record to every partition that is rejected."""
    sender = Sender(kafka)
    sender.send(*(OutgoingRecord(Agent().key.encoded(), b"\xc3\x01 broken") for _ in range(50)))
    sender.flush()


def test_processor_sinks_and_clean_up_go_on_after_repeated_freezes(
    broker: LocalBroker, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    rig = PipelineRig(kafka, clickhouse, processes)
    rig.start_processor()
    sinks = dict(zip(SINKS, rig.start_sinks(), strict=True))
    topics, prefix = kafka.topics, kafka.topic_prefix
    groups = {f"{prefix}.processor": topics.events}
    groups |= {
        f"{prefix}.sink.{kind}": topic
        for kind, topic in zip(SINKS, (topics.audit, topics.events, topics.rejected, topics.batches), strict=True)
    }
    settings = rig.client_settings(tmp_path)
    cleaned: set[str] = set()
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        client.on_cleanup(lambda request: cleaned.add(request.session_id))
        sessions = [client.create(user_id="u").start() for _ in range(SESSIONS)]
        send_broken_records(kafka)
        assert client.flush(180) == 0
        for group, topic in groups.items():
            wait_until(has_passed(kafka, group, topic), 60, f"{group} to catch up", pause_s=0.5)
        for seconds in FREEZES_S:
            freeze_broker(broker, sessions, seconds)
            work_for(sessions, PAUSE_S)
            restart_ended(rig, sinks)
        thawed_s = time.monotonic() - PAUSE_S
        for group, topic in groups.items():
            caught_up = has_passed(kafka, group, topic)

            def goes_on(caught_up: Callable[[], bool] = caught_up) -> bool:
                restart_ended(rig, sinks)
                return caught_up()

            left_s = thawed_s + RECOVERY_S - time.monotonic()
            wait_until(goes_on, left_s, f"{group} to catch up", pause_s=0.5, exact=True)
        assert client.flush(180) == 0
        for session in sessions:
            session.close()
        wait_until(lambda: len(cleaned) == SESSIONS, RECOVERY_S, "the clean-up of each session")
    assert count_timeouts(kafka) == 0
