"""Runs, steps and tool calls of clients in memory, as the control API tells them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionary.producers.errors import Unavailable
from sessionary.producers.run_ports import CallView, LogPosition, RunView, StepView
from sessionary.schemas.ids import call_key, run_key, step_key
from sessionary.schemas.records import EndedToolCall, FinishedRun, RunState, StepState, TimedStep, ToolCallState

if TYPE_CHECKING:
    from sessionary.producers.testing.judged_log import JudgedLog
    from sessionary.producers.testing.memory import InMemoryTransport


class MemoryRuns:
    """`RunReads` of one memory. Thread-safe; never blocks."""

    def __init__(self, memory: "InMemoryTransport") -> None:
        self._memory = memory

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        """Return a run; None if there is no such one. Raises `Unavailable` if silenced."""
        with self._ask_log() as log:
            row = log.find_child(session_id, lambda tenant: run_key(tenant, session_id, run_id))
            if not isinstance(row, RunState | FinishedRun):
                return None
            contents = (row.input_json, row.plan_json, row.result_json, row.artifact_id)
            verdict = log.find_verdict(after)
            head = (row.run_id, row.mode, row.task_type, row.state, row.error)
            return RunView(*head, *contents, verdict, row.checkpoint)

    def fetch_steps(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[StepView]:
        """Return the steps of a run in the order in which they began, without their outputs."""
        with self._ask_log() as log:
            rows = log.find_children(session_id, lambda tenant: run_key(tenant, session_id, run_id))
            steps = sorted(
                (row for row in rows if isinstance(row, StepState | TimedStep)), key=lambda row: row.started_at
            )
            return [_step_view(row)._replace(output_json=None) for row in steps]

    def fetch_step(self, session_id: str, run_id: str, name: str, timeout_s: float) -> StepView | None:
        """Return a step with its output; None if there is no such one."""
        with self._ask_log() as log:
            row = log.find_child(session_id, lambda tenant: step_key(run_key(tenant, session_id, run_id), name))
            return _step_view(row) if isinstance(row, StepState | TimedStep) else None

    def fetch_calls(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[CallView]:
        """Return the tool calls of a run in the order in which they began, without results."""
        with self._ask_log() as log:
            rows = log.find_children(session_id, lambda tenant: run_key(tenant, session_id, run_id))
            calls = [row for row in rows if isinstance(row, ToolCallState | EndedToolCall)]
            return [_call_view(row)._replace(result_json=None) for row in sorted(calls, key=lambda row: row.started_at)]

    def fetch_call(
        self, session_id: str, run_id: str | None, idem_key: str, after: LogPosition | None, timeout_s: float
    ) -> CallView | None:
        """Return a tool call with its result; None if there is no such one."""

        def key_of(tenant: str) -> bytes:
            parent = f"{tenant}:{session_id}".encode() if run_id is None else run_key(tenant, session_id, run_id)
            return call_key(parent, idem_key)

        with self._ask_log() as log:
            row = log.find_child(session_id, key_of)
            if not isinstance(row, ToolCallState | EndedToolCall):
                return None
            return _call_view(row)._replace(verdict=log.find_verdict(after))

    def _ask_log(self) -> "_AskedLog":
        if self._memory._silent:
            raise Unavailable("the control API is silent", 1.0)
        return _AskedLog(self._memory)


class _AskedLog:
    """The memory's log, held while it is read."""

    def __init__(self, memory: "InMemoryTransport") -> None:
        self._memory = memory

    def __enter__(self) -> "JudgedLog":
        self._memory._lock.acquire()
        return self._memory._log

    def __exit__(self, *error: object) -> None:
        self._memory._lock.release()


def _step_view(row: StepState | TimedStep) -> StepView:
    if isinstance(row, TimedStep):
        return StepView(row.name, "running", row.attempt)
    return StepView(row.name, row.state, row.attempt, row.error, row.output_json)


def _call_view(row: ToolCallState | EndedToolCall) -> CallView:
    head = CallView(row.tool_name, row.idem_key, "running", row.try_number, row.side_effect)
    if isinstance(row, ToolCallState):
        return head._replace(reservation=row.reservation)
    return head._replace(state=row.state, error=row.error, result_json=row.result_json)


__all__ = ["MemoryRuns"]
