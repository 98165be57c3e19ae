"""The ways out of a halt that leave events out, on a real broker: what a partition does then."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.cli.app import run
from sessionary.infra.local.ports import free_port
from sessionary.infra.topics import apply_topics, list_topic_changes
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime import decisions
from sessionary.stream_processors.runtime.decisions import GapAcceptance, OperatorDecision, RecordSkip, SkippedRecords
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from tests.integration.processor_load import (
    Agent,
    OutgoingRecord,
    Sender,
    changelog_of,
    check_everything,
    count_records,
    start_processor,
    wait_judged,
)
from tests.integration.test_processor_partition import WAIT_S, Bench, new_store, offer
from tests.support import Processes, read_batches, read_records, read_topic, wait_until
from tests.support.failing_worker import FailingJudge
from tests.support.pipelines import alter_topic

TOKENS = json.dumps({"token-op": {"principal": "on-call", "roles": ["operator"]}})


def read_decisions(kafka: KafkaSettings) -> list[AuditRecord]:
    """Return the audit records of decisions."""
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    return [record for record in audits if record.event_type in ("records_skipped", "log_gap_accepted")]


class DecisionBench(Bench):
    """One partition whose owner may have a decision to carry out."""

    def decide(self, decision: OperatorDecision) -> PartitionOwner:
        return PartitionOwner(self.context, self.partition, new_store, None, decision)

    async def fold_rest(self, owner: PartitionOwner, first_offset: int) -> None:
        """Offer the log from an offset on to an owner that asks for it, and let it end."""
        await self.seen(lambda: self.fetch_control.asked[-1] == ("fetch", first_offset))
        offer(owner, [record for record in self.log if record.offset >= first_offset])
        assert await owner.wait_until_committed(self.log[-1].offset, WAIT_S), owner.halted
        owner.request_end()
        await owner.task


def test_an_accepted_gap_moves_the_partition_to_the_log_s_start(kafka: KafkaSettings) -> None:
    bench = DecisionBench(kafka)
    admin = AdminClient(kafka.client_config())
    begin = TopicPartition(kafka.topics.events, bench.partition, 7)

    async def story() -> None:
        for deleted in admin.delete_records([begin]).values():
            deleted.result(120)
        owner = bench.own()
        with pytest.raises(Halted, match="log_gap"):
            await owner.task
        owner = bench.decide(GapAcceptance("lost in the fire", "alice"))
        await bench.seen(lambda: owner.is_open)
        await bench.fold_rest(owner, 7)
        again = bench.decide(GapAcceptance("twice", "alice"))
        await bench.seen(lambda: again.is_open)  # there is no gap any more
        await bench.close(again)

    asyncio.run(story())
    (line,) = read_decisions(kafka)
    assert (line.gap_first, line.gap_last, line.actor) == (0, 6, "alice")
    assert line.reason == f"{kafka.topics.events}-{bench.partition}, offsets 0 to 6: lost in the fire"


def test_a_record_in_the_middle_of_a_batch_is_skipped_and_all_others_are_folded(kafka: KafkaSettings) -> None:
    bench = DecisionBench(kafka)
    fault = Halted("judge_failed", "reported so", offset=20)

    async def story() -> None:
        owner = bench.decide(RecordSkip(20, 20, "it fails", "alice", fault))
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log[:8])
        offer(owner, bench.log[12:30])  # a fetch was lost on the way
        await bench.seen(lambda: bench.fetch_control.asked[-1] == ("fetch", 8))
        offer(owner, bench.log[8:])
        await bench.fold_rest(owner, 21)
        again = bench.own()
        await bench.seen(lambda: again.is_open)
        await bench.close(again)

    asyncio.run(story())
    (line,) = read_decisions(kafka)
    assert (line.kind, line.gap_first, line.gap_last) == ("decision", 20, 20)
    (letter,) = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    assert (letter.source_offset, letter.reason, letter.value) == (20, "skipped", bench.log[20].value)
    assert sum(map(count_records, read_batches(kafka))) == len(bench.log), "a skipped record is counted as refused"


_read_records = decisions.read_records  # before a test replaces it


def read_without_epochs(*asked: Any) -> SkippedRecords:
    """Return skipped records as a broker hands them out that stores no leader epochs."""
    read = _read_records(*asked)
    return read._replace(records=[LogRecord(*record[:4]) for record in read.records])


def test_records_ahead_of_the_clock_are_skipped_and_the_clock_does_not_follow_them(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = DecisionBench(kafka)

    async def story() -> None:
        with monkeypatch.context() as slow:
            slow.setattr(time, "time", lambda: bench.log[0].timestamp_ms / 1_000 - 50)
            owner = bench.decide(RecordSkip(0, 39, "why", "alice", Halted("judge_failed", "reported so", offset=0)))
            await bench.seen(lambda: owner.is_open)
            offer(owner, bench.log)
            assert await owner.wait_until_committed(39, WAIT_S), owner.halted
            assert owner.state.position.clock_ms < bench.log[0].timestamp_ms
            owner.request_end()
            await owner.task
        again = bench.own()
        await bench.seen(lambda: again.is_open)  # it knows the skipped records by their leader's epoch
        await bench.close(again)

    asyncio.run(story())
    (line,) = read_decisions(kafka)
    assert (line.kind, line.gap_first, line.gap_last) == ("decision", 0, 39)


def test_what_lies_beyond_the_log_s_end_or_without_an_epoch_ahead_of_the_clock_is_not_skipped(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = DecisionBench(kafka)

    async def refused(first: int, last: int) -> str:
        fault = Halted("judge_failed", "reported so", offset=first)
        owner = bench.decide(RecordSkip(first, last, "why", "alice", fault))
        await bench.seen(lambda: owner.is_open or owner.halted is not None)
        offer(owner, bench.log)
        with pytest.raises(Halted) as caught:
            await asyncio.wait_for(owner.task, WAIT_S)
        assert (caught.value.reason, caught.value.offset) == ("judge_failed", first)
        return caught.value.detail

    async def story() -> None:
        with monkeypatch.context() as slow:
            slow.setattr(time, "time", lambda: bench.log[0].timestamp_ms / 1_000 - 50)
            slow.setattr(decisions, "read_records", read_without_epochs)
            assert "ahead of this worker's clock" in await refused(0, 39)
        assert "the log ends at 40" in await refused(39, 90)
        await bench.close()

    asyncio.run(story())
    assert read_decisions(kafka) == []


def test_a_failed_machine_halts_nothing_and_the_bytes_are_kept(kafka: KafkaSettings) -> None:
    bench = DecisionBench(kafka)
    bench.context = replace(bench.context, job=processor_job(bench.settings, FailingJudge()))

    async def story() -> None:
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        await bench.fold_rest(owner, 0)
        skipping = bench.decide(RecordSkip(40, 40, "why", "alice", Halted("judge_failed", "reported so", offset=40)))
        sender = Sender(kafka)
        sender.send(OutgoingRecord(bench.log[0].key, b"poison"))
        assert await asyncio.to_thread(sender.flush) == [(bench.partition, 40)]
        await bench.seen(lambda: skipping.is_open)
        offer(skipping, [LogRecord(40, int(time.time() * 1_000), bench.log[0].key, b"poison")])
        assert await skipping.wait_until_committed(40, WAIT_S), skipping.halted
        await bench.close(skipping)
        again = bench.own()
        await bench.seen(lambda: again.is_open)  # no log that lost records is reported
        await bench.close(again)

    asyncio.run(story())
    letters = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    assert [(letter.source_offset, letter.reason, letter.value) for letter in letters] == [
        *((record.offset, "internal_error", record.value) for record in bench.log[4:]),
        (40, "skipped", b"poison"),
    ]
    assert bench.metrics.errors.labels("judge")._value.get() == 36
    (line,) = read_decisions(kafka)
    assert (line.kind, line.gap_first, line.gap_last, line.actor) == ("decision", 40, 40, "alice")


def test_records_with_a_clients_time_are_skipped_by_the_command(
    kafka: KafkaSettings, processes: Processes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    start_processor(processes, kafka, "w1", api_port=str(port), api_tokens=TOKENS)
    monkeypatch.setenv("SESSIONARY_CONTROL_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "token-op")
    agent, sender = Agent(), Sender(kafka)
    sender.send(*agent.start())
    partition, _ = sender.flush()[-1]
    wait_judged(kafka, 4)
    alter_topic(kafka, kafka.topics.events, {"message.timestamp.type": "CreateTime"})
    wait_until(lambda: len(list_topic_changes(kafka)) == 1, WAIT_S, "the setting to change")

    def partition_list() -> list[dict[str, object]]:
        capfd.readouterr()
        assert run(["partition", "list", "--json"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    def send_stamped() -> int:
        """Send a record with a time of a minute ago; return the time that it got, in ms."""
        sender.send_at(int(time.time() * 1_000) - 60_000, agent.work())
        place = sender.flush()[-1]
        stored = read_topic(kafka, kafka.topics.events)
        return next(found.timestamp_ms for found in stored if (found.partition, found.offset) == place)

    def find_halted() -> list[dict[str, object]]:
        send_stamped()
        return [found for found in partition_list() if found["state"] == "halted"]

    wait_until(find_halted, 60, "the partition to halt", pause_s=0.5)
    apply_topics(kafka)
    wait_until(lambda: send_stamped() > (time.time() - 30) * 1_000, WAIT_S, "the broker's time")
    (halted,) = wait_until(find_halted, 60, "the halted partition", pause_s=0.5)  # now and then it is opened again
    last = sender.places[-1][1]
    first = int(str(halted["detail"]).partition("offset ")[2].split()[0])
    assert halted["partition"] == partition

    def is_refused() -> bool:
        capfd.readouterr()
        assert run(["partition", "skip", str(partition), str(first - 1), "--reason", "why"]) == 5
        return f"halted at offset {first}" in capfd.readouterr().err

    wait_until(is_refused, 60, "the refusal to skip before the halt", pause_s=0.5)
    skip = ["partition", "skip", str(partition), str(first), "--to", str(last - 1), "--reason", "wrong times"]
    wait_until(lambda: run(skip) == 0, 60, "the records to be skipped", pause_s=0.5)
    wait_until(lambda: changelog_of(kafka)[1][partition].next_offset > last, 30, "the partition to go on")
    processes.stop()
    check_everything(kafka)
    (line,) = read_decisions(kafka)
    assert (line.gap_last, line.actor) == (last - 1, "on-call")
