"""Runs with their parts, and conversations, in memory, as the control API reports them."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sessionary.producers.errors import SessionLost, Unavailable
from sessionary.producers.ports import TaskFilter, TaskPart, TaskQuestion, TaskView
from sessionary.producers.run_ports import (
    AgentRecord,
    AgentViewRead,
    ArtifactView,
    CallView,
    CheckpointView,
    ExecutionView,
    FollowedState,
    HandoverView,
    LogEntry,
    LogPosition,
    MessageView,
    RunAtWork,
    RunView,
    SharedView,
    SnapshotView,
    StateStream,
    StepView,
)
from sessionary.producers.testing.memory import InMemoryTransport
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.ids import SessionKey, agent_key, call_key, run_key, step_key
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    CheckpointState,
    EndedToolCall,
    FinishedRun,
    MessageState,
    RunState,
    SessionState,
    StepState,
    TimedStep,
    ToolCallState,
)

if TYPE_CHECKING:
    from sessionary.producers.testing.judged_log import JudgedLog
    from sessionary.producers.testing.memory import InMemoryTransport


# Following the sessions of a memory: a stream reports the state at the time of the call.


_BATCH = 500  # entries of a log that are read at once
_LOOK_S = 0.5  # a memory that falls silent wakes none that waits


class MemoryStream:
    """`StateStream` of one session of a memory. Waits in real time, for another thread's doing."""

    def __init__(self, memory: InMemoryTransport, session_id: str) -> None:
        self._memory, self._session_id = memory, session_id
        self._reported: FollowedState | None = None
        self._closed = threading.Event()

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        """Return the state if it differs from the last one. Raises `Unavailable`."""
        judge, deadline = self._memory.core.judge, time.monotonic() + timeout_s
        while True:
            if self._closed.is_set() or self._memory.core.is_silent:
                raise Unavailable("the control API is silent", 0.1)
            with self._memory.core.lock:
                folded, found = judge.folded, self._find_state()
            if found is None:
                return (FollowedState(None),)
            if self._reported is None or found.view != self._reported.view:
                self._reported = found
                return (found,)
            left_s = min(deadline - time.monotonic(), _LOOK_S)
            with judge.folded_more:
                judge.folded_more.wait_for(lambda: judge.folded != folded or self._closed.is_set(), max(left_s, 0.0))  # noqa: B023
            if judge.folded == folded and time.monotonic() >= deadline:
                return ()

    def _find_state(self) -> FollowedState | None:
        try:
            return self._memory.core.log.follow_session(self._session_id)
        except SessionLost:
            if self._reported is None:
                raise
            return None  # archived so long ago that nothing is left of it

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        with self._memory.core.judge.folded_more:
            self._memory.core.judge.folded_more.notify_all()


class MemoryFollows:
    """`Follows` of a memory. Thread-safe."""

    def __init__(self, memory: InMemoryTransport) -> None:
        """Follow the sessions of `memory`."""
        self._memory = memory

    def check_configured(self) -> None:
        """Do nothing: a memory needs no settings."""

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        """Return a stream. Raises `SessionLost`, `Unavailable` if the memory is silent."""
        if self._memory.core.is_silent:
            raise Unavailable("the control API is silent", 0.1)
        with self._memory.core.lock:
            self._memory.core.log.follow_session(session_id)
        return MemoryStream(self._memory, session_id)


class MemoryRecords:
    """`RecordReads` of one memory. Thread-safe; never blocks."""

    has_times = False

    def __init__(self, memory: "InMemoryTransport") -> None:
        """Read what was sent to `memory`."""
        self._memory = memory

    def read_log(self, key: SessionKey, timeout_s: float) -> Iterator[Sequence[LogEntry]]:
        """Yield the entries of a session in batches."""
        wanted = key.encoded()
        with self._memory.core.lock:
            entries = [entry for entry in self._memory.core.log.entries if entry.key == wanted]
        for first in range(0, len(entries), _BATCH):
            yield entries[first : first + _BATCH]


class MemoryTasks:
    """`TaskLookup` of one memory. Thread-safe; never blocks."""

    def __init__(self, memory: "InMemoryTransport", tenant_id: str | None) -> None:
        """`tenant_id`: whose tasks it knows; None: those of all tenants."""
        self._memory, self._tenant_id = memory, tenant_id

    def fetch_task(self, task_id: str, timeout_s: float, question: TaskQuestion) -> TaskView | None:
        """Return a task at once; None if there is none. Raises `Unavailable` if silenced."""
        with _ask_log(self._memory) as log:
            return log.view_task(self._tenant_id, task_id, question.after)

    def fetch_tasks(self, wanted: TaskFilter, timeout_s: float) -> TaskPart:
        """Return a part of the list of tasks. Raises `Unavailable` if silenced."""
        with _ask_log(self._memory) as log:
            return log.list_tasks(self._tenant_id, wanted)


class MemoryRuns:
    """`RunReads` of one memory. Thread-safe; never blocks."""

    def __init__(self, memory: "InMemoryTransport") -> None:
        self._memory = memory

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        """Return a run; None if there is no such one. Raises `Unavailable` if silenced."""
        with self._ask_log() as log:
            log.require_kept(session_id, run_id)
            row = log.find_child(session_id, lambda tenant: run_key(tenant, session_id, run_id))
            if not isinstance(row, RunState | FinishedRun):
                return None
            return _run_view(row)._replace(verdict=log.find_verdict(after))

    def fetch_steps(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[StepView]:
        """Return the steps of a run in the order in which they began, without their outputs."""
        with self._ask_log() as log:
            log.require_kept(session_id, run_id)
            return _step_views(log.find_children(session_id, lambda tenant: run_key(tenant, session_id, run_id)))

    def fetch_step(self, session_id: str, run_id: str, name: str, timeout_s: float) -> StepView | None:
        """Return a step with its output; None if there is no such one."""
        with self._ask_log() as log:
            log.require_kept(session_id, run_id)
            row = log.find_child(session_id, lambda tenant: step_key(run_key(tenant, session_id, run_id), name))
            return _step_view(row) if isinstance(row, StepState | TimedStep) else None

    def fetch_calls(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[CallView]:
        """Return the tool calls of a run in the order in which they began, without results."""
        with self._ask_log() as log:
            log.require_kept(session_id, run_id)
            return _call_views(log.find_children(session_id, lambda tenant: run_key(tenant, session_id, run_id)))

    def fetch_call(
        self, session_id: str, run_id: str | None, idem_key: str, after: LogPosition | None, timeout_s: float
    ) -> CallView | None:
        """Return a tool call with its result; None if there is no such one."""

        def key_of(tenant: str) -> bytes:
            return call_key(_parent_key(tenant, session_id, run_id), idem_key)

        with self._ask_log() as log:
            if run_id is not None:
                log.require_kept(session_id, run_id)
            row = log.find_child(session_id, key_of)
            if not isinstance(row, ToolCallState | EndedToolCall):
                return None
            return _call_view(row)._replace(verdict=log.find_verdict(after))

    def fetch_execution(self, session_id: str, after: LogPosition | None, timeout_s: float) -> ExecutionView:
        """Return a session's open runs, and its tool calls, in the order in which they began."""
        with self._ask_log() as log:
            open_runs = [run.run_id for run in log.find_row(session_id).open_runs]
            runs = [found for run_id in open_runs if (found := _run_at_work(log, session_id, run_id)) is not None]
            calls = log.find_children(session_id, lambda tenant: _parent_key(tenant, session_id, None))
            return ExecutionView(runs, _call_views(calls))

    def fetch_artifacts(
        self, session_id: str, run_id: str | None, after: LogPosition | None, timeout_s: float
    ) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation; none of an unknown run."""
        with self._ask_log() as log:
            if run_id is None:
                log.find_row(session_id)
            else:
                log.require_kept(session_id, run_id)
            rows = log.find_children(session_id, lambda tenant: _parent_key(tenant, session_id, run_id))
            artifacts = [row for row in rows if isinstance(row, ArtifactState)]
            artifacts.sort(key=lambda row: (row.created_at, row.artifact_id))
            return [ArtifactView(*(getattr(row, name) for name in ArtifactView._fields)) for row in artifacts]

    def fetch_checkpoints(
        self, session_id: str, run_id: str | None, operation: str | None, after: LogPosition | None, timeout_s: float
    ) -> Sequence[CheckpointView]:
        """Return the checkpoints of a run with data, the oldest first; none of an unknown run."""
        with self._ask_log() as log:
            if run_id is None:
                log.find_row(session_id)
            else:
                log.require_kept(session_id, run_id)
            rows = log.find_children(session_id, lambda tenant: _parent_key(tenant, session_id, run_id))
            found = [
                CheckpointView(
                    *(row.operation, saved.checkpoint_id, saved.at, *saved[3:]),
                    data_json=None if operation is None else saved.data_json,
                )
                for row in rows
                if isinstance(row, CheckpointState) and row.operation and operation in (None, row.operation)
                for saved in row.saved
            ]
            return sorted(found, key=lambda each: each.at_ms)

    def fetch_snapshot(self, session_id: str, snapshot_id: str, timeout_s: float) -> SnapshotView | None:
        """Return any snapshot of a session; None if it has no such one."""
        with self._ask_log() as log:
            entries = log.entries_of(session_id)
        past = InMemoryTransport(1, now_ms=entries[0].at_ms)
        for entry in entries:
            with suppress(DecodeError), past.core.lock:  # what cannot be read was rejected
                past.core.log.append_past(entry, has_times=False)
            row = past.core.judge.find_row(0, entry.key or b"")
            if isinstance(row, SessionState) and row.snapshot.snapshot_id == snapshot_id:
                contents = row.snapshot.state_json, row.state_schema_version, row.data_classes, row.user_id
                return SnapshotView(snapshot_id, *contents)
        return None

    def fetch_messages(
        self, session_id: str, last: int, after: LogPosition | None, timeout_s: float
    ) -> Sequence[MessageView]:
        """Return the last turns of a session's conversation in order, at most 200."""
        with self._ask_log() as log:
            return [_message_view(row) for row in log.find_turns(session_id, last) if isinstance(row, MessageState)]

    def fetch_agents(self, session_id: str, after: LogPosition | None, timeout_s: float) -> Sequence[AgentRecord]:
        """Return a session's agents in the order in which they were registered, without results."""
        with self._ask_log() as log:
            return [_agent_record(row) for row in _agent_rows(log, session_id)]

    def fetch_agent_view(
        self, session_id: str, agent_id: str, after: LogPosition | None, timeout_s: float
    ) -> AgentViewRead | None:
        """Return an agent's view; None if the agent is not registered."""
        from sessionary.stream_processors.core.children.agent import view_of

        with self._ask_log() as log:
            rows = _agent_rows(log, session_id)
            seen = view_of(agent_id, log.find_row(session_id).agents, rows)
            if seen is None:
                return None
            results = [
                SharedView(*(each.key, author.agent_id, author.role), *each[1:4], each.result_json, each.artifact_id)
                for author, each in seen.results
            ]
            context = {key: each.result_json for key, each in seen.shared_context.items()}
            record = _agent_record(seen.row)._replace(shared_context=context)
            return AgentViewRead(record, results, seen.dependencies)

    def _ask_log(self) -> "_AskedLog":
        return _ask_log(self._memory)


def _ask_log(memory: "InMemoryTransport") -> "_AskedLog":
    if memory.core.is_silent:
        raise Unavailable("the control API is silent", 1.0)
    return _AskedLog(memory)


class _AskedLog:
    """The memory's log, held while it is read."""

    def __init__(self, memory: "InMemoryTransport") -> None:
        self._memory = memory

    def __enter__(self) -> "JudgedLog":
        self._memory.core.lock.acquire()
        return self._memory.core.log

    def __exit__(self, *error: object) -> None:
        self._memory.core.lock.release()


def _parent_key(tenant_id: str, session_id: str, run_id: str | None) -> bytes:
    if run_id is not None:
        return run_key(tenant_id, session_id, run_id)
    return SessionKey(tenant_id, session_id).encoded()


def _agent_rows(log: "JudgedLog", session_id: str) -> list[AgentState]:
    """Return the rows of a session's agents in the order in which they were registered."""
    names = [agent.agent_id for agent in log.find_row(session_id).agents]
    rows = [
        log.find_child(session_id, lambda tenant, name=name: agent_key(_parent_key(tenant, session_id, None), name))  # type: ignore[misc]
        for name in names
    ]
    return [row for row in rows if isinstance(row, AgentState)]


def _agent_record(row: AgentState) -> AgentRecord:
    handover = None if row.handover is None else HandoverView(*row.handover)
    tasks = row.current_task, list(row.completed_tasks)
    return AgentRecord(
        row.agent_id, row.role, row.service_id, *tasks, row.snapshot_id, row.updated_at, handover=handover
    )


def _run_at_work(log: "JudgedLog", session_id: str, run_id: str) -> RunAtWork | None:
    row = log.find_child(session_id, lambda tenant: run_key(tenant, session_id, run_id))
    if not isinstance(row, RunState):
        return None
    children = log.find_children(session_id, lambda tenant: run_key(tenant, session_id, run_id))
    run = _run_view(row)._replace(input_json=None, plan_json=None, result_json=None)
    return RunAtWork(run, _step_views(children), _call_views(children))


def _run_view(row: RunState | FinishedRun) -> RunView:
    contents = (row.input_json, row.plan_json, row.result_json, row.artifact_id)
    return RunView(
        row.run_id, row.mode, row.task_type, row.state, row.error, *contents, None, row.checkpoint, row.reason_code
    )


def _message_view(row: MessageState) -> MessageView:
    return MessageView(
        *(row.turn, row.role, row.content, row.name, row.artifact_id, row.run_id, row.agent_id, row.service_id),
        at_ms=row.at,
    )


def _step_views(rows: Sequence[object]) -> list[StepView]:
    """Return the steps among rows in the order in which they began, without their outputs."""
    steps = sorted((row for row in rows if isinstance(row, StepState | TimedStep)), key=lambda row: row.started_at)
    return [_step_view(row)._replace(output_json=None, input_json=None) for row in steps]


def _call_views(rows: Sequence[object]) -> list[CallView]:
    """Return the tool calls among rows in the order in which they began, without results."""
    calls = [row for row in rows if isinstance(row, ToolCallState | EndedToolCall)]
    return [_call_view(row)._replace(result_json=None) for row in sorted(calls, key=lambda row: row.started_at)]


def _step_view(row: StepState | TimedStep) -> StepView:
    if isinstance(row, TimedStep):
        return StepView(row.name, "running", row.attempt, input_json=row.input_json)
    return StepView(row.name, row.state, row.attempt, row.error, row.output_json, row.input_json)


def _call_view(row: ToolCallState | EndedToolCall) -> CallView:
    head = CallView(row.tool_name, row.idem_key, "running", row.try_number, row.side_effect)
    if isinstance(row, ToolCallState):
        return head._replace(reservation=row.reservation)
    return head._replace(state=row.state, error=row.error, result_json=row.result_json)
