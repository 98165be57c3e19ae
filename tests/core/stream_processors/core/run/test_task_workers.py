"""A task is of the worker that has claimed it; each event is judged as the oracle does."""

import pytest

from sessionary.schemas.records import RunState
from sessionary.schemas.types import ErrorInfo, Limits
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

ERROR = ErrorInfo("retryable", "e", "e")
TAKEN = "rejected task_taken_over"


class WorkersRig:
    """A session's process, and two workers; each event is judged by the fold and the oracle."""

    def __init__(self, mode: str = "detached") -> None:
        self.rig = OracleRig()
        self.agent = EventFactory()
        self.first, self.second = EventFactory(producer="w1"), EventFactory(producer="w2")
        self.rig.start(self.agent, limits=Limits())
        assert self.say(self.agent, "run_queued", mode=mode) == "applied"

    def say(self, sender: EventFactory, event_type: str, **fields: object) -> str:
        return self.rig.send(sender, event_type, {"run_id": "r1"}, **fields)

    def claim(self, mode: str = "detached") -> None:
        assert self.say(self.first, "run_started", mode=mode, plan_json=None) == "applied"
        assert self.say(self.first, "run_running", progress=None) == "applied"

    def hand_over(self) -> None:
        assert self.say(self.second, "run_paused") == "applied"
        assert self.say(self.second, "run_resumed") == "applied"

    def row(self) -> RunState:
        (row,) = (row for row in self.rig.fold.rows.values() if isinstance(row, RunState))
        return row


@pytest.mark.parametrize(
    ("event_type", "fields"),
    [
        ("run_running", {"progress": 0.5}),
        ("run_completed", {}),
        ("run_failed", {"error": ERROR}),
        ("plan_recorded", {"plan_json": "[]"}),
        ("checkpoint_saved", {}),
        ("progress_reported", {}),
        ("step_started", {"name": "s", "attempt": 1, "limit_ms": None}),
        ("tool_call_started", {"idem_key": "k", "try_number": 1, "limit_ms": None}),
        ("artifact_created", {}),
        ("message_appended", {"content": "late"}),
    ],
)
def test_only_its_worker_reports_the_work_of_a_task(event_type: str, fields: dict[str, object]) -> None:
    rig = WorkersRig()
    rig.claim()
    assert rig.row().holder == "w1"
    assert rig.say(rig.agent, event_type, **fields) == TAKEN
    rig.hand_over()
    assert rig.row().holder == "w2"
    assert rig.say(rig.first, event_type, **fields) == TAKEN
    assert rig.say(rig.second, event_type, **fields) == "applied"


def test_a_rejected_event_of_a_late_worker_changes_nothing_of_the_task() -> None:
    rig = WorkersRig()
    rig.claim()
    rig.hand_over()
    before = rig.row()
    assert rig.say(rig.first, "run_completed") == TAKEN
    assert rig.row() == before


def test_any_process_cancels_a_task() -> None:
    rig = WorkersRig()
    rig.claim()
    assert rig.say(rig.agent, "run_cancelled") == "applied"
    assert rig.say(rig.first, "run_completed") == "rejected illegal_transition"


def test_a_task_that_has_just_been_claimed_is_handed_over_too() -> None:
    rig = WorkersRig()
    assert rig.say(rig.first, "run_started", mode="detached") == "applied"
    rig.hand_over()
    assert rig.say(rig.first, "run_running", progress=None) == TAKEN
    assert rig.say(rig.second, "run_completed") == "applied"


def test_the_outcome_of_what_a_lost_worker_began_is_taken() -> None:
    rig = WorkersRig()
    rig.claim()
    call = {"idem_key": "k", "try_number": 1}
    assert rig.say(rig.first, "tool_call_started", limit_ms=None, **call) == "applied"
    rig.hand_over()
    assert rig.say(rig.first, "tool_call_succeeded", **call) == "applied"
    assert rig.say(rig.first, "usage_recorded") == "applied"


def test_a_task_that_failed_and_is_resumed_is_no_worker_s() -> None:
    rig = WorkersRig()
    rig.claim()
    assert rig.say(rig.first, "run_failed", error=ERROR) == "applied"
    assert rig.say(rig.agent, "run_resumed") == "applied"
    assert rig.row().holder is None
    assert rig.say(rig.agent, "run_completed") == "applied"


@pytest.mark.parametrize("is_queued", [True, False])
def test_other_runs_are_reported_by_any_process(is_queued: bool) -> None:
    mode = "attached" if is_queued else "detached"
    rig = WorkersRig("attached") if is_queued else WorkersRig()
    run_id = "r1" if is_queued else "r2"

    def say(sender: EventFactory, event_type: str, **fields: object) -> str:
        return rig.rig.send(sender, event_type, {"run_id": run_id}, **fields)

    assert say(rig.first, "run_started", mode=mode) == "applied"
    assert say(rig.second, "run_running", progress=None) == "applied"
    assert say(rig.second, "run_paused") == "applied"
    assert say(rig.second, "run_resumed") == "applied"
    assert say(rig.first, "run_completed") == "applied"
