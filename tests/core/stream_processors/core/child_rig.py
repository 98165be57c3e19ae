"""A fold with one run at work, and what its steps and reserved calls come to."""

from typing import Any

from sessionary.schemas.ids import call_key, run_key, step_key
from sessionary.schemas.records import (
    AuditRecord,
    EndedToolCall,
    FinishedRun,
    RunState,
    StepState,
    TimedStep,
    ToolCallState,
)
from sessionary.schemas.types import ErrorInfo, Limits
from sessionary.stream_processors.core.children.call import CallRow
from sessionary.stream_processors.core.children.step import StepRow
from tests.core.stream_processors.core.run.run_rig import RunRig

RETRYABLE, FATAL = ErrorInfo("retryable", "boom", "it broke"), ErrorInfo("fatal", "dead", "it is over")
UNCLEAR = ErrorInfo("UNKNOWN", "c", "m")
LONG = Limits(idle_ms=10**9, max_duration_ms=10**12, grace_ms=10**9)
LIMIT_MS = 1_000


class ChildRig(RunRig):
    """A fold; the run `r1` is detached and at work."""

    def __init__(self, mode: str = "detached", **created: Any) -> None:
        super().__init__(**{"limits": LONG, **created})
        self.begin(mode=mode)

    def step(self, event: str, attempt: int = 1, run_id: str | None = "r1", actor: str | None = None, **f: Any) -> str:
        """Send `step_` and `event` of the step `a`."""
        fields = {"name": "a", **f} if event == "skipped" else {"name": "a", "attempt": attempt, **f}
        marks = {"run_id": run_id, "actor": actor, "step_id": f"id-{attempt}"}
        return self.send(self.agent, f"step_{event}", marks, **fields)

    def step_row(self, name: str = "a", run_id: str = "r1") -> StepRow | None:
        """Return the row of a step."""
        row = self.fold.rows.get(step_key(run_key(*self.agent.key, run_id), name))
        assert row is None or isinstance(row, StepState | TimedStep)
        return row

    def found_step(self, name: str = "a") -> StepState:
        """Return the row of a step that is there; its attempt has no limit, or has ended."""
        row = self.step_row(name)
        assert isinstance(row, StepState)
        return row

    def timed_step(self, name: str = "a") -> TimedStep:
        """Return the row of a step that runs and has a limit."""
        row = self.step_row(name)
        assert isinstance(row, TimedStep)
        return row

    def call(
        self, event: str, try_number: int = 1, run_id: str | None = "r1", actor: str | None = None, **fields: Any
    ) -> str:
        """Send `tool_call_` and `event` of the call `k`."""
        named = {"tool_call_id": "id", "tool_name": "pay", "idem_key": "k", **fields}
        if event != "resolved":
            named["try_number"] = try_number
        if event == "started":
            named = {"side_effect": True, "limit_ms": LIMIT_MS, **named}
        marks = {"run_id": run_id, "actor": actor, "step_id": "s"}
        return self.send(self.agent, f"tool_call_{event}", marks, **named)

    def resolve(self, outcome: str = "succeeded", run_id: str | None = "r1", **fields: Any) -> str:
        """Say what became of the call `k`."""
        return self.call("resolved", run_id=run_id, **{"outcome": outcome, "resolved_by": "eve", **fields})

    def call_key(self, run_id: str | None = "r1", idem_key: str = "k") -> bytes:
        """Return the key of a call's row."""
        return call_key(run_key(*self.agent.key, run_id) if run_id else self.agent.key.encoded(), idem_key)

    def call_row(self, run_id: str | None = "r1", idem_key: str = "k") -> CallRow | None:
        """Return the row of a call."""
        row = self.fold.rows.get(self.call_key(run_id, idem_key))
        assert row is None or isinstance(row, ToolCallState | EndedToolCall)
        return row

    def running(self, run_id: str | None = "r1") -> ToolCallState:
        """Return the row of the call `k`, which runs."""
        row = self.call_row(run_id)
        assert isinstance(row, ToolCallState)
        return row

    def ended(self, run_id: str | None = "r1") -> EndedToolCall:
        """Return the row of the call `k`, which ended."""
        row = self.call_row(run_id)
        assert isinstance(row, EndedToolCall)
        return row

    def lose(self, run_id: str | None = "r1", idem_key: str = "k", **fields: Any) -> list[AuditRecord]:
        """Let a call become unknown, and return what was audited."""
        assert self.call("started", run_id=run_id, idem_key=idem_key, **fields) == "applied"
        self.leap(LIMIT_MS)
        return self.audits()

    def open_run(self, run_id: str = "r1") -> RunState:
        """Return the row of a run that is open."""
        row = self.found(run_id)
        assert isinstance(row, RunState)
        return row

    def finished_run(self, run_id: str = "r1") -> FinishedRun:
        """Return the row of a run that finished."""
        row = self.found(run_id)
        assert isinstance(row, FinishedRun)
        return row
