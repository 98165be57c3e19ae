"""Runs that ask for their tenant's quota: what their sessions say, and what verdicts come to."""

from typing import Any

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import SessionKey, partition_of, quota_key
from sessionary.schemas.records import FinishedRun, QuotaNotice, QuotaVerdict, RunState, TaskRequest
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import TopicNames
from sessionary.schemas.types import ErrorInfo, Limits, Rejection, RunQuota
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.core.run.run_rig import RunRig

LONG = Limits(idle_ms=10**9, max_duration_ms=10**12, grace_ms=10**9)
RETRYABLE = ErrorInfo("retryable", "boom", "it broke")
STARTED: dict[str, Any] = {"mode": "attached", "input_json": "[1]", "plan_json": None}


class QuotaRig(RunRig):
    """A fold by rules with quotas."""

    def __init__(self, **created: Any) -> None:
        super().__init__(**created)
        self.activate(NEWEST_RULES._replace(quotas=True))

    def ask(self, run_id: str = "r1", event_type: str = "run_started", **fields: Any) -> int:
        """Let a run ask; return the offset that names its claim."""
        offset = self.offset
        fields = {**(STARTED if event_type == "run_started" else {}), **fields}
        assert self.say(event_type, run_id, **fields) == "applied"
        return offset

    def decide(
        self, offset: int, run_id: str = "r1", granted: bool = True, limit: int = 3, token_limit: int | None = None
    ) -> str:
        """Append a verdict on a claim."""
        verdict = QuotaVerdict("concurrent_runs", run_id, offset, granted, limit, "q1", token_limit)
        return self.append(self.agent.key.encoded(), encode_record(verdict))

    def notices(self) -> list[tuple[str, str, int]]:
        """Return step, run and claim of what the quotas were just reported."""
        found = [Decoder().decode_record(value) for _, _, value, _ in self.written if value is not None]
        return [(one.step, one.run_id, one.offset) for one in found if isinstance(one, QuotaNotice)]

    def state(self, run_id: str = "r1") -> str:
        return self.found(run_id).state

    def changes(self) -> list[tuple[str, str | None, str | None, str]]:
        """Return the changes of runs that were just reported: event, states and reason."""
        return [(one.event_type, one.from_run_state, one.to_run_state, one.reason_code) for one in self.reported()]


def test_without_quotas_a_run_asks_for_nothing() -> None:
    rig = RunRig()
    assert rig.say("run_started", **STARTED) == "applied"
    assert rig.found()._asdict()["quota"] is None
    topics = TopicNames.with_prefix("sessionary")
    assert {topic for topic, *_ in rig.written} == {topics.changelog, topics.batches}


def test_a_run_waits_until_it_is_granted_its_slot_and_releases_it_at_its_end() -> None:
    rig = QuotaRig()
    asked = rig.ask()
    row = rig.found()
    assert isinstance(row, RunState)
    assert (row.state, row.reason_code, row.due_at) == ("queued", "quota_requested", None)
    assert rig.notices() == [("requested", "r1", asked)]
    assert rig.changes() == [("run_queued", None, "queued", "quota_requested")]
    assert rig.say("run_running", progress=None) == "rejected illegal_transition"
    rig.at += 1_000
    assert rig.decide(asked) == "tick"
    row = rig.found()
    assert isinstance(row, RunState)
    assert (row.state, row.reason_code, row.due_at) == ("started", "quota_granted", rig.at + 900_000)
    assert (row.input_json, row.run_seq) == ("[1]", 1)
    assert rig.notices() == [("taken", "r1", asked)]
    assert rig.changes() == [("run_started", "queued", "started", "quota_granted")]
    assert rig.reported()[0].user_id == "u1"
    assert rig.say("run_running", progress=None) == "applied"
    assert rig.notices() == []
    assert rig.say("run_completed", result_json="6", artifact_id=None) == "applied"
    assert rig.notices() == [("released", "r1", asked)]
    assert rig.open_ids() == []


def test_a_notice_goes_to_the_partition_of_its_tenant() -> None:
    rig = QuotaRig()
    rig.ask()
    assert rig.outcome is not None
    transaction = processor_job(ProcessorSettings(partitions=1)).transaction(0, rig.outcome, 0)
    (notice,) = transaction.elsewhere
    assert notice[:2] == (TopicNames.with_prefix("sessionary").quotas, b"acme/concurrent_runs")
    assert notice[1] == quota_key("acme", "concurrent_runs")
    assert partition_of(notice[1], 8) != partition_of(rig.agent.key.encoded(), 8)
    assert all(record[0] != notice[0] for record in transaction.records)


def test_a_verdict_counts_once_and_for_its_claim_only() -> None:
    rig = QuotaRig()
    assert rig.decide(5) == "tick"  # there is no such run
    asked = rig.ask()
    for offset in (asked - 1, asked + 1):
        assert rig.decide(offset) == "tick"
        assert rig.state() == "queued"
    before = rig.decide(asked), rig.found()
    for granted in (True, False):
        assert rig.decide(asked, granted=granted) == "tick"
        assert rig.found() == before[1]
        assert (rig.notices(), rig.changes()) == ([("taken", "r1", asked)], [])
    assert rig.say("run_cancelled") == "applied"
    assert rig.notices() == [("released", "r1", asked)]
    assert rig.decide(asked) == "tick"
    assert rig.state() == "cancelled"
    assert rig.notices() == [("released", "r1", asked)]


def test_a_rejected_run_has_its_record_and_reason_and_no_row() -> None:
    rig = QuotaRig()
    asked = rig.ask()
    event_id = rig.found()._asdict()["quota"].event_id
    assert rig.decide(asked, granted=False, limit=3) == "tick"
    assert rig.run() is None
    assert rig.open_ids() == []
    assert rig.notices() == [("released", "r1", asked)]
    assert rig.changes() == [("run_rejected", "queued", "rejected", "quota_exceeded")]
    assert rig.reported()[0].reason == "Run rejected: the limit of concurrent_runs of tenant acme is 3"
    assert rig.row_of(rig.agent).rejections == (Rejection(asked, "quota_exceeded", event_id),)
    assert rig.say("run_running", progress=None) == "rejected unknown_run"
    # The id may be used again: its next claim is another one.
    again = rig.ask()
    assert rig.decide(asked) == "tick"
    assert rig.state() == "queued"
    rig.decide(again)
    assert rig.state() == "started"


def test_rejections_stay_in_the_order_of_the_log() -> None:
    rig = QuotaRig()
    asked = rig.ask()
    assert rig.say("run_running", progress=None) == "rejected illegal_transition"
    rig.decide(asked, granted=False)
    rejections = rig.row_of(rig.agent).rejections
    assert [(one.offset, one.reason) for one in rejections] == [
        (asked, "quota_exceeded"),
        (asked + 1, "illegal_transition"),
    ]


def test_a_waiting_run_ends_in_any_way_and_releases_its_claim() -> None:
    rig = QuotaRig()
    asked = rig.ask()
    assert rig.say("run_cancelled") == "applied"
    assert rig.notices() == [("released", "r1", asked)]
    asked = rig.ask("r2")
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    assert rig.notices() == [("released", "r2", asked)]
    assert rig.state("r2") == "failed"


def test_a_run_that_its_clock_ends_releases_its_claim() -> None:
    rig = QuotaRig(limits=LONG)
    asked = rig.ask()
    rig.decide(asked)
    notices = []
    while rig.state() == "started":
        rig.at += 4_000
        assert rig.send(rig.agent, "heartbeat") == "applied"
        notices += rig.notices()
    assert notices == [("released", "r1", asked)]
    assert rig.changes() == [("run_failed", "started", "failed", "attached_limit")]


def test_a_task_is_asked_for_once_it_is_granted_its_slot() -> None:
    rig = QuotaRig()
    asked = rig.ask("t1", "run_queued", mode="detached", task_type="train", input_json='{"n": 1}')
    assert _tasks(rig) == []
    started = {**STARTED, "mode": "detached", "task_type": "train"}
    assert rig.say("run_started", "t1", **started) == "rejected quota_exceeded"
    rig.at += 10
    assert rig.decide(asked, "t1") == "tick"
    (task,) = _tasks(rig)
    assert (task.run_id, task.task_type, task.input_json, task.service_id) == ("t1", "train", '{"n": 1}', "billing")
    assert (task.user_id, task.requested_at) == ("u1", rig.at * 1_000)
    assert rig.state("t1") == "queued"
    assert rig.changes() == [("run_queued", "queued", "queued", "quota_granted")]
    assert rig.say("run_started", "t1", **started) == "applied"
    assert rig.state("t1") == "started"
    assert rig.notices() == []


def _tasks(rig: QuotaRig) -> list[TaskRequest]:
    assert rig.outcome is not None
    return [record for _, record in rig.outcome.records_on("tasks")]


def test_a_run_that_is_resumed_after_a_failure_asks_again() -> None:
    rig = QuotaRig()
    rig.decide(rig.ask())
    assert rig.say("run_running", progress=None) == "applied"
    assert rig.say("run_failed", error=RETRYABLE) == "applied"
    for granted in (False, True):
        asked = rig.offset
        assert rig.say("run_resumed") == "applied"
        row = rig.found()
        assert isinstance(row, RunState)
        assert row.state == "queued"
        assert row.quota is not None
        assert row.quota._replace(event_id="") == RunQuota(asked, "run_resumed", "", granted=False)
        assert rig.notices() == [("requested", "r1", asked)]
        assert rig.changes() == [("run_queued", "failed", "queued", "quota_requested")]
        rig.decide(asked, granted=granted)
        if not granted:
            failed = rig.found()
            assert isinstance(failed, FinishedRun)
            assert (failed.state, failed.error, failed.reason_code) == ("failed", RETRYABLE, "quota_exceeded")
            assert rig.open_ids() == []
    row = rig.found()
    assert isinstance(row, RunState)
    assert (row.state, row.error, row.due_at) == ("running", None, rig.at + 900_000)
    assert rig.changes() == [("run_resumed", "queued", "running", "quota_granted")]


def test_a_run_keeps_its_claim_if_quotas_are_turned_off() -> None:
    rig = QuotaRig()
    asked = rig.ask()
    rig.activate(NEWEST_RULES)
    rig.decide(asked)
    assert rig.state() == "started"
    assert rig.say("run_started", "r2", **STARTED) == "applied"
    assert rig.state("r2") == "started"
    assert rig.say("run_cancelled") == "applied"
    assert rig.notices() == [("released", "r1", asked)]


def test_a_verdict_on_an_unknown_session_changes_nothing() -> None:
    rig = QuotaRig()
    verdict = encode_record(QuotaVerdict("concurrent_runs", "r1", 0, granted=True, limit=1, instance="q1"))
    assert rig.append(SessionKey("acme", "other").encoded(), verdict) in ("tick", "rejected bad_key")


def test_a_verdict_on_a_run_that_never_asked_changes_nothing() -> None:
    rig = QuotaRig()
    rig.activate(NEWEST_RULES)
    asked = rig.offset
    assert rig.say("run_started", **STARTED) == "applied"
    before = rig.found()
    for granted in (False, True):
        assert rig.decide(asked, granted=granted) == "tick"
        assert rig.found() == before


def test_an_attached_run_that_was_queued_is_no_task_once_it_is_granted_its_slot() -> None:
    rig = QuotaRig()
    rig.decide(rig.ask(event_type="run_queued", mode="attached"))
    assert _tasks(rig) == []
    assert rig.state() == "queued"
    assert rig.say("run_started", **{**STARTED, "plan_json": None}) == "applied"
    assert rig.state() == "started"


def test_what_is_reported_of_a_run_names_its_last_checkpoint() -> None:
    rig = QuotaRig()
    rig.decide(rig.ask())
    assert rig.say("run_running", progress=None) == "applied"
    assert rig.say("checkpoint_saved", checkpoint_id="c1") == "applied"
    assert rig.say("run_failed", error=RETRYABLE) == "applied"
    asked = rig.offset
    assert rig.say("run_resumed") == "applied"
    assert [one.checkpoint_id for one in rig.reported()] == ["c1"]
    rig.decide(asked, granted=False)
    assert rig.state() == "failed"
