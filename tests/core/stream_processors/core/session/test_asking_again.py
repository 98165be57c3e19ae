"""An operator has the open requests of a session sent again: which are open, and what they are."""

from typing import Any

from sessionary.schemas.records import CleanupRequest, MigrationRequest, QuotaNotice, TaskRequest
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import CleanupAction, ErrorInfo
from sessionary.stream_processors.core.session.migration import CLEANUP_ACTIONS
from sessionary.stream_processors.core.session.open_requests import WORKER_SILENT_MS
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.support.event_factory import EventFactory, snapshot

TASK: dict[str, Any] = {"mode": "detached", "task_type": "train", "input_json": "[1]"}


class AskingRig(OracleRig):
    """One session, and an operator who asks again; the oracle judges everything too."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(position=FIRST_POSITION._replace(rules=NEWEST_RULES._replace(**rules)))
        self.agent = EventFactory()

    def started(self) -> "AskingRig":
        self.start(self.agent)
        return self

    def written(self, stream: str) -> list[Any]:
        return [record for _, record in self.outcomes[-1].records_on(stream)]  # type: ignore[arg-type]

    def ask_again(self, reason: str | None = "lost", producer: str = "operator") -> list[Any]:
        """Ask again for what is open; return the requests that were written."""
        operator = EventFactory(service="control-api", producer=f"{producer}-{self.next_offset}")
        operator.epoch = self.row_of(self.agent).epoch
        before = self.row_of(self.agent)
        assert self.send(operator, "requests_repeated", reason=reason) == "applied"
        after = self.row_of(self.agent)
        moved = {"producers", "audit_seq"}
        names = [name for name in after._fields if getattr(after, name) != getattr(before, name)]
        assert set(names) == moved  # no clock begins again
        (line,) = self.last_audits()
        assert (line.kind, line.event_type, line.reason_code) == ("repeat", "requests_repeated", "asked_again")
        requests = [one for stream in ("cleanup", "tasks", "migrations", "quotas") for one in self.written(stream)]
        assert len(requests) == sum(
            getattr(self.outcomes[-1].counts, stream) for stream in ("cleanup", "tasks", "migrations", "quotas")
        )
        return requests

    def end(self) -> CleanupRequest:
        assert self.send(self.agent, "session_terminated", reason="closed") == "applied"
        (asked,) = self.written("cleanup")
        assert isinstance(asked, CleanupRequest)
        return asked

    def confirm(self, cleanup: CleanupRequest) -> str:
        actions = [CleanupAction(name, done=True, at=1) for name in cleanup.actions]
        given: dict[str, Any] = {
            "cleanup_id": cleanup.cleanup_id,
            "actions": actions,
            "bytes_released": None,
            "host_lost": False,
        }
        return self.send(self.agent, "resources_released", **given)


def test_a_session_with_nothing_open_leaves_a_line_that_says_so() -> None:
    rig = AskingRig().started()
    assert rig.ask_again("did the broker lose it?") == []
    assert rig.last_audits()[0].reason == "nothing was open: did the broker lose it?"


def test_a_clean_up_is_asked_for_again_with_its_identity_until_it_is_confirmed() -> None:
    rig = AskingRig().started()
    asked = rig.end()
    for _ in range(2):
        assert rig.ask_again() == [asked._replace(reason="asked again: closed")]
        assert rig.last_audits()[0].reason == "cleanup 1: lost"
    assert rig.confirm(asked) == "applied"
    assert rig.ask_again(None) == []
    assert rig.last_audits()[0].reason == "nothing was open"
    assert rig.confirm(asked) == "rejected already_released"


def test_both_clean_ups_of_a_session_that_timed_out_and_ended_are_open_in_their_order() -> None:
    rig = AskingRig().started()
    assert rig.advance(120_000)[0].startswith("T06")
    assert rig.advance(400_000)[-1].startswith("T08")
    first, second = rig.ask_again()
    assert [one.reason_code for one in (first, second)] == ["inactive", "timeout_cleanup"]
    assert first.actions == second.actions == ("memory_cleanup", "close_connection", "release_context", "mark_closed")


def test_a_clean_up_of_a_session_that_works_again_is_not_open() -> None:
    """What it would release is in use."""
    rig = AskingRig().started()
    assert rig.advance(120_000)[0].startswith("T06")
    assert len(rig.ask_again()) == 1
    assert rig.send(rig.agent, "session_resumed") == "applied"
    assert rig.ask_again() == []
    assert rig.advance(120_000)[0].startswith("T06")
    assert len(rig.ask_again()) == 2


def test_a_session_that_may_recover_keeps_what_was_to_be_released_before_its_resume() -> None:
    rig = AskingRig().started()
    assert rig.advance(120_000)[0].startswith("T06")
    assert rig.send(rig.agent, "session_resumed") == "applied"
    error = ErrorInfo("retryable", "timeout_cleanup", "It broke")
    assert rig.send(rig.agent, "session_errored", error=error) == "applied"
    (asked,) = rig.written("cleanup")
    assert rig.ask_again() == [asked._replace(reason="asked again: timeout_cleanup")]
    assert rig.send(rig.agent, "session_terminated", reason="unrecoverable") == "applied"
    assert [one.reason_code for one in rig.ask_again()] == ["inactive", "timeout_cleanup", "unrecoverable"]


def test_the_clean_up_of_a_former_owner_is_open_while_the_session_works_elsewhere() -> None:
    rig = AskingRig().started()
    target = EventFactory(service="shipping", producer="t")
    assert rig.send(rig.agent, "session_migration_offered") == "applied"
    (offered,) = rig.ask_again()
    assert isinstance(offered, MigrationRequest)
    assert (offered.migration_id, offered.step, offered.service_id) == ("m1", "offered", "shipping")
    target.epoch = 1
    assert rig.send(target, "session_migration_loaded") == "applied"
    assert [one.step for one in rig.ask_again()] == ["prepared"]
    row = rig.row_of(rig.agent)
    accepted: dict[str, Any] = {
        "target_service": "shipping",
        "version": row.version,
        "content_hash": row.snapshot.content_hash,
    }
    assert rig.send(target, "session_migration_accepted", migration_id="m1", **accepted) == "applied"
    (asked,) = rig.written("cleanup")
    assert (asked.service_id, asked.epoch, asked.actions) == ("billing", 1, CLEANUP_ACTIONS)
    assert rig.ask_again() == [asked._replace(reason="asked again: migrated")]


def test_a_task_is_open_while_it_is_queued_and_again_once_its_worker_is_silent() -> None:
    rig = AskingRig().started()
    of_run = {"run_id": "r1", "run_seq": 1}
    assert rig.send(rig.agent, "run_queued", of_run, **TASK) == "applied"
    (asked,) = rig.written("tasks")
    (again,) = rig.ask_again()
    assert isinstance(again, TaskRequest)
    assert again == asked._replace(requested_at=again.requested_at)
    assert rig.send(rig.agent, "run_started", {"run_id": "r1", "run_seq": 2}, **TASK, plan_json=None) == "applied"
    assert rig.ask_again() == []
    rig.at += WORKER_SILENT_MS - 1
    assert rig.ask_again() == []
    rig.at += 1
    (again,) = rig.ask_again()
    assert again == asked._replace(requested_at=again.requested_at)
    assert rig.send(rig.agent, "run_running", {"run_id": "r1", "run_seq": 3}, progress=None) == "applied"
    assert rig.ask_again() == []


def test_a_waiting_claim_is_open_and_a_granted_one_is_the_quotas_to_ask_for() -> None:
    rig = AskingRig(session_quotas=True)
    offset = rig.next_offset
    assert rig.send(rig.agent, "session_created") == "applied"
    claim = QuotaNotice("live_sessions", "requested", *rig.agent.key, "", offset)
    assert rig.written("quotas") == [claim]
    assert rig.ask_again() == [claim]


def test_a_waiting_run_asks_for_its_slot_again_and_its_task_only_once_it_has_one() -> None:
    rig = AskingRig(quotas=True).started()
    offset = rig.next_offset
    assert rig.send(rig.agent, "run_queued", {"run_id": "r1", "run_seq": 1}, **TASK) == "applied"
    assert rig.ask_again() == [QuotaNotice("concurrent_runs", "requested", *rig.agent.key, "r1", offset)]


def test_only_an_operator_may_ask_again() -> None:
    rig = AskingRig().started()
    assert rig.send(rig.agent, "requests_repeated", as_operator=False) == "rejected operator_only"


def test_a_paused_session_and_one_that_is_archived() -> None:
    rig = AskingRig().started()
    assert rig.send(rig.agent, "session_paused", snapshot=snapshot("p")) == "applied"
    assert rig.ask_again() == []
    operator = EventFactory(service="control-api", producer="late")
    assert rig.send(rig.agent, "session_terminated", reason="cancelled") == "applied"
    assert rig.advance(400_000, step_ms=4_000)[-1].startswith("T14")
    assert rig.send(operator, "requests_repeated") == "rejected session_archived"


def test_an_operator_who_asks_again_is_no_sign_of_life_of_the_agent() -> None:
    rig = AskingRig().started()
    rig.advance(20_000)
    rig.ask_again()
    assert rig.advance(40_000) == ["T06 inactive"]
