"""A failure in any part of a record that changes several rows leaves all of them as before."""

from typing import Any
from unittest.mock import patch

import pytest

from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.run.rows import RunRows
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.session.rows import SessionRows
from tests.core.stream_processors.core.run.run_rig import RunRig


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a fault of the judge")


@pytest.mark.parametrize("method", ["due_ms", "estimate_bytes"])
def test_failing_rows_of_runs_leave_all_rows_as_before(method: str) -> None:
    rig = RunRig()
    rig.begin("a1")
    rig.begin("a2")
    rows, live, vanishing = dict(rig.fold.rows), rig.fold.live, rig.fold.vanishing
    with patch.object(RunRows, method, fail):
        assert rig.send(rig.agent, "session_terminated", reason="closed") == "rejected internal_error"
    assert rig.fold.rows == rows
    assert (rig.fold.live, rig.fold.vanishing) == (live, vanishing)
    assert [record.kind for record in rig.audits()] == ["rejection"]
    assert [record.source_n for record in rig.audits()] == [0]


@pytest.mark.parametrize(
    ("failing", "method"), [(SessionRows, "estimate_bytes"), (SessionJudge, "evolve"), (SessionJudge, "report")]
)
def test_a_failing_judge_of_sessions_leaves_all_rows_as_before(failing: type[Any], method: str) -> None:
    rig = RunRig()
    rig.begin("a1")
    rows = dict(rig.fold.rows)
    with patch.object(failing, method, fail):
        assert rig.send(rig.agent, "session_terminated", reason="closed") == "rejected internal_error"
    assert rig.fold.rows == rows


def test_rows_of_a_void_batch_are_as_before_and_fire_again() -> None:
    rig = RunRig()
    rig.begin("d1", "detached")
    rows, deadline = dict(rig.fold.rows), rig.fold.next_deadline_ms
    batch = rig.fold.begin()
    value = rig.agent.event_bytes("run_completed", {"run_id": "d1"})
    assert batch.apply(LogRecord(rig.offset, rig.at, rig.agent.key.encoded(), value))
    rig.fold.begin()
    assert (rig.fold.rows, rig.fold.next_deadline_ms) == (rows, deadline)
