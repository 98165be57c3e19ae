"""Verdicts: sent at once, again until they are heard, and after a restart from the rows."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import quota_key
from sessionary.schemas.records import QuotaNotice, QuotaVerdict
from sessionary.schemas.types import QuotaStep
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.quotas import verdict_sender
from sessionary.stream_processors.quotas.settings import QuotaSettings
from sessionary.stream_processors.quotas.verdict_sender import (
    CHECK_MS,
    REPEAT_MS,
    REPEAT_MS_MAX,
    VerdictSender,
    quotas_job,
)
from sessionary.stream_processors.runtime.ticker import RENEW_MS
from tests.auditor.signatures import SECRETS, is_signed

KEY = quota_key("acme", "concurrent_runs")
NOW_MS = 1_000_000.0


class FakeProducer:
    """Keeps what is produced; fails if asked to."""

    made: list["FakeProducer"]

    def __init__(self, config: dict[str, Any]) -> None:
        self.sent: list[tuple[str, bytes, QuotaVerdict]] = []
        self.fails = False
        FakeProducer.made.append(self)

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes,
        headers: list[tuple[str, bytes]],
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._QUEUE_FULL))
        assert is_signed(key, value, headers)
        verdict = Decoder().decode_record(value)
        assert isinstance(verdict, QuotaVerdict)
        self.sent.append((topic, key, verdict))

    def poll(self, timeout_s: float) -> int:
        return 0

    def flush(self, timeout_s: float) -> int:
        return 0


class SenderRig:
    """A partition of quotas with a limit of one, and what sends its verdicts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        FakeProducer.made = []
        monkeypatch.setattr(verdict_sender, "Producer", FakeProducer)
        monkeypatch.setattr(verdict_sender, "discard_producer", lambda _: None)
        self.job = quotas_job(QuotaSettings(partitions=1, instance="q1", signing_keys=SECRETS))
        assert isinstance(self.job.follower, VerdictSender)
        self.sender = self.job.follower
        self.state = self.opened()
        self.now_ms = NOW_MS
        self.offset = 0

    def opened(self) -> PartitionState:
        state = self.job.new_state(0)
        state.families.home._limits_of = lambda _: TenantLimits(1, "reject", tokens=10)  # type: ignore[attr-defined]
        state.finish_loading()
        return state

    def tell(self, step: QuotaStep, run_id: str, tokens: int = 0, offset: int = 5) -> None:
        value = encode_record(QuotaNotice("concurrent_runs", step, "acme", "s1", run_id, offset, tokens))
        batch = self.state.begin()
        assert batch.apply(LogRecord(self.offset, int(self.now_ms), KEY, value))
        self.offset += 1
        self.outcome = batch.finish()
        self.state.merge(batch)
        self.sender.note_commit(0, self.outcome)

    def attend(self, later_ms: float = 0) -> list[tuple[str, bool]]:
        """Let time pass; return the verdicts that are sent: run, and if it is granted."""
        self.now_ms += later_ms
        producer = FakeProducer.made[-1]
        before = len(producer.sent)
        self.sender.attend(self.now_ms, {0: self.state})
        return [(verdict.run_id, verdict.granted) for _, _, verdict in producer.sent[before:]]

    def attend_for(self, seconds: int) -> list[tuple[int, str]]:
        """Let time pass; return the second of the hour, and the run, of each verdict."""
        return [(int(self.now_ms) // 1_000 % 3_600, run) for _ in range(seconds) for run, _ in self.attend(1_000)]


def test_a_verdict_is_sent_until_its_session_has_heard_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    assert rig.attend() == []
    rig.tell("requested", "a")
    rig.tell("requested", "b")
    assert rig.attend(1) == [("a", True), ("b", False)]
    assert FakeProducer.made[0].sent[0][:2] == ("sessionary.events", b"acme:s1")
    assert rig.attend(1) == []
    assert rig.attend(REPEAT_MS) == [("a", True), ("b", False)]
    rig.tell("taken", "a")
    assert rig.attend(2 * REPEAT_MS) == [("b", False)]
    rig.tell("released", "b")
    assert rig.attend(REPEAT_MS_MAX) == []
    assert rig.sender.gauges["sessionary_processor_quota_claims"]() == {
        "waiting": 0,
        "granted": 0,
        "taken": 1,
        "rejected": 0,
    }
    of_sessions = rig.sender.gauges["sessionary_processor_session_claims"]()
    assert of_sessions == {"waiting": 0, "granted": 0, "taken": 0, "rejected": 0}


def test_accounts_of_tokens_are_counted_by_whether_these_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    rig.attend()
    read = rig.sender.gauges["sessionary_processor_token_accounts"]
    assert read() == {"within": 0, "used_up": 0}
    rig.tell("used", "", 9)
    assert read() == {"within": 1, "used_up": 0}
    rig.tell("used", "", 1)
    assert read() == {"within": 0, "used_up": 1}
    rig.tell("requested", "a")
    assert rig.attend(1) == [("a", False)]
    claims = rig.sender.gauges["sessionary_processor_quota_claims"]()
    assert claims == {"waiting": 0, "granted": 0, "taken": 0, "rejected": 1}


def test_each_hour_those_that_hold_a_slot_are_asked_and_the_lost_release_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = SenderRig(monkeypatch)
    rig.attend()
    rig.tell("requested", "a")
    assert rig.attend() == [("a", True)]
    rig.tell("taken", "a")
    for _ in range(2):
        assert rig.attend_for(3_600) == [(5, "a")]
        rig.tell("taken", "a")  # it holds it still
    rig.tell("released", "a")  # its release had been lost
    assert rig.attend(2 * CHECK_MS) == []
    rig.tell("requested", "c")
    assert rig.attend() == [("c", True)]


def test_each_slot_has_its_second_of_the_hour_also_if_workers_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    rig.attend()
    rig.state.families.home._limits_of = lambda _: TenantLimits(3)  # type: ignore[attr-defined]
    for run_id, offset in (("a", 1_100), ("b", 1_101), ("c", 3_600 * 9 + 4)):
        rig.tell("requested", run_id, offset=offset)
        rig.tell("taken", run_id, offset=offset)
    rig.attend(1_000)
    found = rig.attend_for(1_798)
    for _ in range(3):
        later = SenderRig(monkeypatch)
        later.state, later.now_ms = rig.state, rig.now_ms
        assert later.attend(1_000) == []
        found += later.attend_for(1_799)
        rig = later
    assert found == [(1_100, "a"), (1_101, "b"), (4, "c")] * 2
    assert rig.attend(3 * CHECK_MS) == [("a", True), ("b", True), ("c", True)]


def test_the_pause_between_two_repetitions_doubles_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    rig.attend()
    rig.tell("requested", "a")
    sent_at = [rig.now_ms for _ in range(300) if rig.attend(REPEAT_MS)]
    pauses = [later - sooner for sooner, later in pairwise(sent_at)]
    assert pauses[:3] == [REPEAT_MS, 2 * REPEAT_MS, 4 * REPEAT_MS]
    assert max(pauses) == pauses[-1] == REPEAT_MS_MAX


def test_a_new_owner_sends_what_its_rows_have(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    rig.attend()
    rig.tell("requested", "a")
    assert rig.attend() == [("a", True)]
    rows = dict(rig.state.rows)
    rig.state = rig.opened()
    for key, row in rows.items():
        rig.state.load(key, row)
    rig.state.finish_loading()
    later = SenderRig(monkeypatch)
    later.state = rig.state
    assert later.attend() == [("a", True)]
    rig.sender.attend(rig.now_ms, {})  # the partition has left
    assert rig.sender.gauges["sessionary_processor_quota_claims"]() == dict.fromkeys(
        ("waiting", "granted", "taken", "rejected"), 0
    )


def test_a_producer_that_fails_is_replaced_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    rig.attend()
    FakeProducer.made[0].fails = True
    rig.tell("requested", "a")
    assert rig.attend() == []
    assert len(FakeProducer.made) == 2  # the first one is older than the shortest life of a producer
    assert rig.attend(REPEAT_MS) == [("a", True)]
    assert RENEW_MS < NOW_MS


def test_a_transaction_writes_rows_alone_to_a_changelog_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SenderRig(monkeypatch)
    rig.tell("requested", "a")
    transaction = rig.job.transaction(0, rig.outcome, 0)
    assert [(record[0], record[1]) for record in transaction.records] == [("sessionary.quotas-changelog", KEY)]
    assert list(transaction.rows) == [KEY]
    assert transaction.elsewhere == ()
