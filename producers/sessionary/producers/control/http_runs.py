"""Runs with their parts, and conversations, by the control API over HTTP."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

from sessionary.producers.control.http_control import (
    HttpControl,
    RecordUnknown,
    known_classes,
    parse_error,
    parse_verdict,
)
from sessionary.producers.run_ports import (
    AgentRecord,
    AgentViewRead,
    ArtifactView,
    CallView,
    CheckpointView,
    ExecutionView,
    HandoverView,
    LogPosition,
    MessageView,
    RunAtWork,
    RunView,
    SharedView,
    SnapshotView,
    StepView,
)
from sessionary.schemas.types import Checkpoint

V = TypeVar("V")


class HttpRuns:
    """`RunReads` by the processor's HTTP API. Thread-safe."""

    def __init__(self, control: HttpControl) -> None:
        self._control = control

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        """Return a run; None if there is no such one."""
        return self._fetch(_path(session_id, run_id), after, timeout_s, parse_run, f"run {run_id}")

    def fetch_steps(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[StepView]:
        """Return the steps of a run in the order in which they began, without their outputs."""
        found = self._fetch(
            _path(session_id, run_id, "steps"), None, timeout_s, parse_steps, f"the steps of run {run_id}"
        )
        return found or ()

    def fetch_step(self, session_id: str, run_id: str, name: str, timeout_s: float) -> StepView | None:
        """Return a step with its output; None if there is no such one."""
        return self._fetch(_path(session_id, run_id, "steps", name), None, timeout_s, parse_step, f"step {name}")

    def fetch_calls(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[CallView]:
        """Return the tool calls of a run in the order in which they began, without results."""
        path, about = _path(session_id, run_id, "tool-calls"), f"the tool calls of run {run_id}"
        return self._fetch(path, None, timeout_s, parse_calls, about) or ()

    def fetch_call(
        self, session_id: str, run_id: str | None, idem_key: str, after: LogPosition | None, timeout_s: float
    ) -> CallView | None:
        """Return a tool call with its result; None if there is no such one."""
        path = _path(session_id, run_id, "tool-calls", idem_key)
        return self._fetch(path, after, timeout_s, parse_call, f"tool call {idem_key}")

    def fetch_execution(self, session_id: str, after: LogPosition | None, timeout_s: float) -> ExecutionView:
        """Return a session's open runs, and its tool calls, in the order in which they began."""
        path, about = _path(session_id, None, "execution"), f"the execution of session {session_id}"
        return self._fetch(path, after, timeout_s, parse_execution, about) or ExecutionView((), ())

    def fetch_artifacts(
        self, session_id: str, run_id: str | None, after: LogPosition | None, timeout_s: float
    ) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation; none of an unknown run."""
        path, about = _path(session_id, run_id, "artifacts"), f"the artifacts of session {session_id}"
        return self._fetch(path, after, timeout_s, parse_artifacts, about) or ()

    def fetch_checkpoints(
        self, session_id: str, run_id: str | None, operation: str | None, after: LogPosition | None, timeout_s: float
    ) -> Sequence[CheckpointView]:
        """Return the checkpoints of a run with data, the oldest first; none of an unknown run."""
        path, about = _path(session_id, run_id, "checkpoints"), f"the checkpoints of session {session_id}"
        parameters = {} if operation is None else {"operation": operation}
        return self._fetch(path, after, timeout_s, parse_checkpoints, about, parameters) or ()

    def fetch_snapshot(self, session_id: str, snapshot_id: str, timeout_s: float) -> SnapshotView | None:
        """Return any snapshot of a session; None if it has no such one."""
        about, point = f"snapshot {snapshot_id} of session {session_id}", {"snapshot": snapshot_id}
        return self._fetch(_path(session_id, None, "at"), None, timeout_s, parse_snapshot, about, point)

    def fetch_messages(
        self, session_id: str, last: int, after: LogPosition | None, timeout_s: float
    ) -> Sequence[MessageView]:
        """Return the last turns of a session's conversation in order, at most 200."""
        path, about = _path(session_id, None, "conversation"), f"the conversation of session {session_id}"
        return self._fetch(path, after, timeout_s, parse_messages, about, {"last": f"{last}"}) or ()

    def fetch_agents(self, session_id: str, after: LogPosition | None, timeout_s: float) -> Sequence[AgentRecord]:
        """Return a session's agents in the order in which they were registered, without results."""
        path, about = _path(session_id, None, "agents"), f"the agents of session {session_id}"
        return self._fetch(path, after, timeout_s, parse_agents, about) or ()

    def fetch_agent_view(
        self, session_id: str, agent_id: str, after: LogPosition | None, timeout_s: float
    ) -> AgentViewRead | None:
        """Return an agent's view; None if the agent is not registered."""
        path = _path(session_id, None, "agents", agent_id)
        return self._fetch(path, after, timeout_s, parse_agent_view, f"agent {agent_id}")

    def _fetch(
        self,
        path: str,
        after: LogPosition | None,
        timeout_s: float,
        parse: Callable[[dict[str, Any]], V],
        about: str,
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> V | None:
        try:
            document = self._control.fetch_document(path, after, timeout_s, about, parameters)
        except RecordUnknown:
            return None
        return self._control.parse_document(document, parse, about)


def _path(session_id: str, run_id: str | None, *rest: str) -> str:
    parts = (session_id, *(() if run_id is None else ("runs", run_id)), *rest)
    return "/".join(quote(part, safe="") for part in parts)


def parse_run(body: dict[str, Any]) -> RunView:
    """Return the run in the API's JSON. Raises `KeyError`, `TypeError`."""
    return RunView(
        run_id=body["run_id"],
        mode=body["mode"],
        task_type=body["task_type"],
        state=body["state"],
        error=parse_error(body["error"]),
        input_json=body.get("input_json"),
        plan_json=body.get("plan_json"),
        result_json=body.get("result_json"),
        artifact_id=body["artifact_id"],
        verdict=parse_verdict(body.get("verdict")),
        checkpoint=parse_checkpoint(body.get("checkpoint")),
        reason_code=body.get("reason_code"),
    )


def parse_snapshot(body: dict[str, Any]) -> SnapshotView:
    """Return the snapshot that is the head of a state at a point, in the API's JSON.

    Raises `KeyError`, `TypeError`.
    """
    row = body["row"]
    head = row["snapshot"]
    classes = known_classes(row["data_classes"])
    return SnapshotView(head["snapshot_id"], head["state_json"], row["state_schema_version"], classes, row["user_id"])


def parse_checkpoint(body: dict[str, Any] | None) -> Checkpoint | None:
    """Return a run's last checkpoint in the API's JSON. Raises `KeyError`, `TypeError`."""
    if body is None:
        return None
    return Checkpoint(at=body["at_ms"], **{name: body[name] for name in Checkpoint._fields if name != "at"})


def parse_checkpoints(body: dict[str, Any]) -> list[CheckpointView]:
    """Return the checkpoints in the API's JSON. Raises `KeyError`, `TypeError`."""
    return [CheckpointView(**{name: each[name] for name in CheckpointView._fields}) for each in body["checkpoints"]]


def parse_steps(body: dict[str, Any]) -> list[StepView]:
    """Return the steps in the API's JSON. Raises `KeyError`, `TypeError`."""
    return [parse_step(each) for each in body["steps"]]


def parse_step(body: dict[str, Any]) -> StepView:
    """Return the step in the API's JSON. Raises `KeyError`, `TypeError`."""
    return StepView(
        body["name"],
        body["state"],
        int(body["attempt"]),
        parse_error(body["error"]),
        body.get("output_json"),
        body.get("input_json"),
    )


def parse_calls(body: dict[str, Any]) -> list[CallView]:
    """Return the tool calls in the API's JSON. Raises `KeyError`, `TypeError`."""
    return [parse_call(each) for each in body["tool_calls"]]


def parse_call(body: dict[str, Any]) -> CallView:
    """Return the tool call in the API's JSON. Raises `KeyError`, `TypeError`."""
    return CallView(
        tool_name=body["tool_name"],
        idem_key=body["idem_key"],
        state=body["state"],
        try_number=int(body["try_number"]),
        side_effect=bool(body["side_effect"]),
        reservation=body["reservation"],
        error=parse_error(body["error"]),
        result_json=body.get("result_json"),
        verdict=parse_verdict(body.get("verdict")),
    )


def parse_execution(body: dict[str, Any]) -> ExecutionView:
    """Return the work of a session in the API's JSON. Raises `KeyError`, `TypeError`."""
    runs = [RunAtWork(parse_run(each), parse_steps(each), parse_calls(each)) for each in body["runs"]]
    return ExecutionView(runs, parse_calls(body))


def parse_artifacts(body: dict[str, Any]) -> list[ArtifactView]:
    """Return the artifacts in the API's JSON. Raises `KeyError`, `TypeError`."""
    return [ArtifactView(**{name: each[name] for name in ArtifactView._fields}) for each in body["artifacts"]]


def parse_messages(body: dict[str, Any]) -> list[MessageView]:
    """Return the turns in the API's JSON. Raises `KeyError`, `TypeError`."""
    return [MessageView(**{name: each[name] for name in MessageView._fields}) for each in body["messages"]]


def parse_agents(body: dict[str, Any]) -> list[AgentRecord]:
    """Return the agents in the API's JSON. Raises `KeyError`, `TypeError`."""
    return [parse_agent(each) for each in body["agents"]]


def parse_agent(body: dict[str, Any]) -> AgentRecord:
    """Return the agent in the API's JSON. Raises `KeyError`, `TypeError`."""
    handover, shared = body["handover"], body.get("shared_context")
    return AgentRecord(
        agent_id=body["agent_id"],
        role=body["role"],
        service_id=body["service_id"],
        current_task=body["current_task"],
        completed_tasks=list(body["completed_tasks"]),
        snapshot_id=body["snapshot_id"],
        timestamp_ms=int(body["timestamp_ms"]),
        shared_context=None if shared is None else dict(shared),
        handover=None if handover is None else HandoverView(*(handover[name] for name in HandoverView._fields)),
    )


def parse_agent_view(body: dict[str, Any]) -> AgentViewRead:
    """Return an agent's view in the API's JSON. Raises `KeyError`, `TypeError`."""
    results = [SharedView(*(each[name] for name in SharedView._fields)) for each in body["results"]]
    return AgentViewRead(parse_agent(body["agent_state"]), results, list(body["dependencies"]))
