"""Topic settings on a real broker: a worker refuses wrong ones, `topics apply` corrects them."""

import asyncio
import base64
import json
import random
import time

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sessionary.infra.local.ports import free_port
from sessionary.infra.topics import apply_topics, list_topic_changes
from sessionary.schemas.errors import Invalid, SettingsError
from sessionary.schemas.events.session import SessionErrored, StateUpdated
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import RETENTION_MS, VALUE_BYTES_MAX
from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.startup import wait_for_topics
from tests.integration.processor_load import Agent, Sender, begin_with, changelog_of, start_processor, wait_judged
from tests.integration.test_processor_partition import WAIT_S, Bench
from tests.support import Processes, read_records, read_topic, wait_until
from tests.support.metrics_page import metric_value
from tests.support.pipelines import alter_topic


def worker_settings(kafka: KafkaSettings) -> ProcessorSettings:
    return ProcessorSettings.model_validate(kafka.model_dump())


def test_a_worker_refuses_wrong_settings_until_they_are_applied(kafka: KafkaSettings) -> None:
    settings, topics = worker_settings(kafka), kafka.topics
    wait_for_topics(settings, lambda: False)
    alter_topic(kafka, topics.events, {"message.timestamp.type": "CreateTime", "cleanup.policy": "compact"})
    alter_topic(kafka, topics.changelog, {"delete.retention.ms": "1000", "unclean.leader.election.enable": "true"})
    alter_topic(kafka, topics.audit, {"max.message.bytes": "1048588", "retention.ms": "1000"})
    # A broker tells its new settings a moment after it has accepted them.
    wait_until(lambda: len(list_topic_changes(kafka)) == 3, WAIT_S, "the settings to change")
    with pytest.raises(SettingsError) as caught:
        wait_for_topics(settings, lambda: False)
    text = str(caught.value)
    for fault in (
        f"topic {topics.events} has message.timestamp.type=CreateTime, but needs LogAppendTime",
        f"topic {topics.events} has cleanup.policy=compact, but needs delete",
        f"topic {topics.changelog} has delete.retention.ms=1000, but needs 86400000",
        f"topic {topics.changelog} has unclean.leader.election.enable=true, but needs false",
        f"topic {topics.audit} has max.message.bytes=1048588, but needs 2097152",
    ):
        assert fault in text
    assert text.endswith("run `sessionary topics apply`")
    assert "retention.ms=1000, but needs 604800000" not in text, "how long audit records stay is no worker's business"
    apply_topics(kafka)
    wait_until(lambda: list_topic_changes(kafka) == [], WAIT_S, "the settings to be right again")
    wait_for_topics(settings, lambda: False)


def test_what_exceeds_1_mib_passes_through_a_broker_with_kafkas_default_sizes(kafka: KafkaSettings) -> None:
    """The row of the longest content, and an error whose text is longer than any may be."""
    agent, sender = Agent(), Sender(kafka)
    text = base64.b64encode(random.Random(1).randbytes(825_000)).decode()  # which compression makes no shorter
    content = json.dumps({"a": text[: VALUE_BYTES_MAX - 9]})
    sender.send(*agent.start(), agent.event(StateUpdated(1, 2, content)))
    sender.send(agent.event(SessionErrored(ErrorInfo("fatal", "LargeError", text))))
    sender.flush()

    async def story() -> None:
        bench = Bench(kafka)
        bench.partition = sender.places[0][0]
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        log = [
            LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers)
            for stored in read_topic(kafka, kafka.topics.events)
            if stored.partition == bench.partition
        ]
        owner.offer_records(log[0].offset, log)
        assert await owner.wait_until_committed(max(offset for _, offset in sender.places), WAIT_S), owner.halted
        await bench.close(owner)

    asyncio.run(story())
    for topic in (kafka.topics.changelog, kafka.topics.rejected):
        assert any(len(stored.value or b"") > 1_048_588 for stored in read_topic(kafka, topic)), topic
    (letter,) = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    assert (letter.event_type, letter.reason) == ("session_errored", "invalid_value")


def test_a_topic_with_less_room_than_the_rules_in_force_may_need_halts_its_partitions(kafka: KafkaSettings) -> None:
    begin_with(kafka, NEWEST_RULES._replace(output_bytes_max=3_000_000))
    wait_for_topics(worker_settings(kafka), lambda: False)  # this release's own rules need less

    async def story() -> None:
        bench = Bench(kafka)
        halted = bench.own()
        await bench.seen(halted.task.done)
        assert halted.halted is not None
        assert halted.halted.reason == "record_too_large"
        assert f"topic {kafka.topics.audit} has max.message.bytes=2097152, and needs 3000000" in halted.halted.detail
        names = kafka.topics
        for topic in (names.audit, names.cleanup, names.tasks, names.migrations, names.batches, names.quotas):
            alter_topic(kafka, topic, {"max.message.bytes": "3000000"})
        owners, until_s = [halted], time.monotonic() + WAIT_S
        while not owners[-1].is_open:  # a broker tells its new settings a moment after it has accepted them
            assert time.monotonic() < until_s, owners[-1].halted
            owners.append(bench.own(owners[-1]))
            await bench.seen(lambda: owners[-1].is_open or owners[-1].task.done())
        await bench.close(*owners)

    asyncio.run(story())


def test_records_with_a_clients_time_halt_their_partition_before_they_are_folded(
    kafka: KafkaSettings, processes: Processes
) -> None:
    port = free_port()
    start_processor(processes, kafka, "w1", api_port=str(port))
    agent, sender = Agent(), Sender(kafka)
    sender.send(*agent.start())
    sender.flush()
    wait_judged(kafka, 4)
    alter_topic(kafka, kafka.topics.events, {"message.timestamp.type": "CreateTime"})
    wait_until(lambda: len(list_topic_changes(kafka)) == 1, WAIT_S, "the setting to change")
    halted = 'sessionary_processor_partitions_halted{reason="wrong_timestamp_type"}'
    in_an_hour_ms = int(time.time() * 1_000) + 3_600_000

    def is_halted() -> bool:
        sender.send_at(in_an_hour_ms, agent.work())
        sender.flush()
        return (metric_value(port, halted) or 0) >= 1

    wait_until(is_halted, 60, "the partition to halt", pause_s=0.5)
    _, positions = changelog_of(kafka)
    partition, _ = sender.places[0]
    assert positions[partition].clock_ms < in_an_hour_ms, "no client moves the clock"


def test_a_worker_ends_if_the_number_of_partitions_changes(kafka: KafkaSettings, processes: Processes) -> None:
    worker = start_processor(processes, kafka, "w1")
    agent, sender = Agent(), Sender(kafka)
    sender.send(*agent.start())
    sender.flush()
    wait_judged(kafka, 4)
    admin = AdminClient(kafka.client_config())
    for grown in admin.create_partitions([NewPartitions(kafka.topics.events, 6)]).values():
        grown.result(WAIT_S)
    assert worker.wait(180)
    assert worker.exit_code not in (0, None)
    [(_, log)] = processes.tails()
    assert "now has 6 partitions instead of 4" in log
    with pytest.raises(SettingsError, match="has 6 partitions, but SESSIONARY_PARTITIONS is 4"):
        wait_for_topics(worker_settings(kafka), lambda: False)


def test_a_setting_that_was_changed_is_found_and_corrected(kafka: KafkaSettings) -> None:
    assert apply_topics(kafka).changes == []
    alter_topic(kafka, kafka.topics.audit, {"retention.ms": "1000"})
    wait_until(lambda: list_topic_changes(kafka) != [], 10, "the difference")
    assert list_topic_changes(kafka) == [f"{kafka.topics.audit}: retention.ms = {RETENTION_MS}"]
    assert apply_topics(kafka).changes == [f"{kafka.topics.audit}: retention.ms = {RETENTION_MS}"]
    wait_until(lambda: list_topic_changes(kafka) == [], 10, "no difference")
    with pytest.raises(Invalid, match="partitions"):
        apply_topics(kafka.model_copy(update={"partitions": kafka.partitions - 1}))


def test_a_missing_topic_and_another_number_of_partitions_are_named(kafka: KafkaSettings) -> None:
    settings = worker_settings(kafka)
    wait_for_topics(settings, lambda: False)
    with pytest.raises(SettingsError, match="does not exist: run `sessionary topics apply`"):
        wait_for_topics(settings.model_copy(update={"topic_prefix": "unknown"}), lambda: False)
    with pytest.raises(SettingsError, match="SESSIONARY_PARTITIONS"):
        wait_for_topics(settings.model_copy(update={"partitions": 5}), lambda: False)
