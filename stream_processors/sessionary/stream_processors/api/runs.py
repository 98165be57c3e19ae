"""Pages of runs, and of their steps, tool calls, artifacts and tasks."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp.web import Request, Response

from sessionary.schemas.ids import artifact_key, call_key, checkpoint_key, run_key, step_key
from sessionary.schemas.records import (
    ArtifactState,
    CheckpointState,
    EndedToolCall,
    FinishedRun,
    RunState,
    RunTombstone,
    StepState,
    TimedStep,
    ToolCallState,
)
from sessionary.schemas.types import Checkpoint, SavedCheckpoint
from sessionary.stream_processors.api.problems import Problem, json_response
from sessionary.stream_processors.api.session_poll import user_of
from sessionary.stream_processors.api.session_questions import (
    AskedOwner,
    SessionQuestions,
    gone_problem,
    log_document,
    require_session,
)
from sessionary.stream_processors.core.children.call import CallRow
from sessionary.stream_processors.core.children.step import StepRow, state_of
from sessionary.stream_processors.core.partition import PartitionState

RUN_CONTENTS = frozenset({"input_json", "plan_json", "result_json"})  # what lists of runs do not have


class RunPages:
    """Answers the requests for runs of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def run(self, request: Request) -> Response:
        """Answer `GET /v1/sessions/{session_id}/runs/{run_id}` with `run_document`.

        Raises `Problem`, as `require_run` does.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        state = asked.owner.state
        row = state.rows[require_run(asked, request.match_info["run_id"])]
        return json_response({**run_document(row, state), **log_document(asked)})

    async def open_runs(self, request: Request) -> Response:
        """Answer `GET /v1/sessions/{session_id}/runs` with a `run_document` for each open run.

        They are in the order in which they began. Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        key, state = asked.question.key, asked.owner.state
        rows = [state.rows[run_key(*key, run.run_id)] for run in require_session(asked).open_runs]
        rows = [row for row in rows if asked.question.caller.may_see(user_of(row))]
        return json_response({"runs": [run_document(row, state) for row in rows], **log_document(asked)})


def require_run(asked: AskedOwner, run_id: str) -> bytes:
    """Return the key of the session's run. Raises `Problem`: 404 if there is none, 410 if it went.

    A finished run is kept for 30 days, also if its session was archived; a 410 follows for 14 days.
    A run of another user than the caller's is none.
    """
    session = asked.question.key
    key = run_key(*session, run_id)
    state = asked.owner.state
    row = state.rows.get(key)
    may_see = asked.question.caller.may_see(user_of(row))
    if may_see and (isinstance(row, RunTombstone) or (row is None and state.is_packed(key))):
        raise gone_problem("run", run_id)
    if not may_see or not isinstance(row, RunState | FinishedRun):
        detail = f"session {session.session_id} of tenant {session.tenant_id} has no run {run_id}"
        raise Problem(404, "unknown_run", "Unknown run", detail)
    return key


def run_document(row: RunState | FinishedRun, state: PartitionState) -> dict[str, Any]:
    """Return the JSON document of a run, as `/openapi.json` describes it.

    Times are ms of log time since the epoch; `deadline_ms` is when an open run's clock fires.
    """
    names = ("run_id", "session_id", "mode", "task_type", "state", "reason_code", "run_seq", "progress", "resumes")
    contents = ("input_json", "plan_json", "result_json", "artifact_id")
    return {
        **{name: getattr(row, name) for name in (*names, "agent_id", *contents)},
        "error": None if row.error is None else row.error._asdict(),
        "created_ms": row.created_at,
        "entered_ms": row.entered_at,
        "last_event_ms": row.last_event_at,
        "unresolved_calls": row.unresolved_calls,
        "checkpoint": None if row.checkpoint is None else _checkpoint_document(row.checkpoint),
        "deadline_ms": state.deadline_ms(row) if isinstance(row, RunState) else None,
        "holder": row.holder if isinstance(row, RunState) else None,
    }


def _checkpoint_document(checkpoint: Checkpoint) -> dict[str, Any]:
    fields = checkpoint._asdict()
    return {"at_ms": fields.pop("at"), **fields}


# Rows that belong to a run or to a session: steps, reserved tool calls, artifacts.


RowT = TypeVar("RowT")
_SLICE = 50  # rows that are read before other requests have their turn
_KIND_BYTES = 2  # that follow the parent's key in a child's key, and name the kind of child


def require_parent(asked: AskedOwner, run_id: str | None) -> bytes:
    """Return the key of the run, or of the session if `run_id` is None. Raises `Problem`."""
    if run_id is not None:
        return require_run(asked, run_id)
    require_session(asked)
    return asked.question.key.encoded()


async def read_children(
    state: PartitionState, parent: bytes, key_of: Callable[[bytes, str], bytes], *row_classes: type[RowT]
) -> list[RowT]:
    """Return the rows of these classes that belong to the row under the key `parent`, in any order.

    `key_of` makes a child's key from the parent's and a name, as `step_key` does. No other row is
    read: the turns of a session may be large. Other requests have their turn meanwhile, so a row
    may be newer than one before it.
    """
    found: list[RowT] = []
    kind = key_of(parent, "")[: len(parent) + _KIND_BYTES]
    keys = [key for key in state.children(parent) if key.startswith(kind)]
    for n, key in enumerate(keys):
        if n and n % _SLICE == 0:
            await asyncio.sleep(0)
        row = state.rows.get(key)
        if isinstance(row, row_classes):
            found.append(row)
    return found


# The control API's pages of artifacts: data that a run, or a session, has stored elsewhere.
#
#     GET /v1/sessions/{session_id}/artifacts                   those outside of runs
#     GET /v1/sessions/{session_id}/runs/{run_id}/artifacts     a run's
#
# They show an artifact's metadata, and where its body is. They are kept as long as their run, or
# their session.


class ArtifactPages:
    """Answers the requests for artifacts of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def artifacts(self, request: Request) -> Response:
        """Answer `GET …/artifacts` with an `artifact_document` for each of the run or the session.

        They are in the order in which they were created. Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        parent = require_parent(asked, request.match_info.get("run_id"))
        log = log_document(asked)  # rows may be newer than the position, never older
        rows = await read_children(asked.owner.state, parent, artifact_key, ArtifactState)
        rows.sort(key=lambda row: (row.created_at, row.artifact_id))
        return json_response({"artifacts": [artifact_document(row) for row in rows], **log})


def artifact_document(row: ArtifactState) -> dict[str, Any]:
    """Return the JSON document of an artifact. Times are ms of log time."""
    names = ("run_id", "session_id", "step_id", "artifact_id", "artifact_type", "uri", "state", "size_bytes", "sha256")
    return {
        **{name: getattr(row, name) for name in (*names, "file_name", "media_type")},
        "created_ms": row.created_at,
        "entered_ms": row.entered_at,
    }


# The control API's page of checkpoints with data.
#
#     GET /v1/sessions/{session_id}/checkpoints[?operation=…]                 those outside of runs
#     GET /v1/sessions/{session_id}/runs/{run_id}/checkpoints[?operation=…]   a run's
#
# With an operation the answer has the data of its checkpoints. The last 16 of each operation are
# kept, as long as their run, or their session.


class CheckpointPages:
    """Answers the requests for checkpoints of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def checkpoints(self, request: Request) -> Response:
        """Answer `GET …/checkpoints` with a `checkpoint_document` for each, the oldest first.

        Those of one operation have their data. Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        parent, operation = require_parent(asked, request.match_info.get("run_id")), request.query.get("operation")
        state, log = asked.owner.state, log_document(asked)  # rows may be newer than the position, never older
        if operation is None:
            rows = await read_children(state, parent, checkpoint_key, CheckpointState)
        else:
            row = state.rows.get(checkpoint_key(parent, operation))
            rows = [row] if isinstance(row, CheckpointState) else []
        saved = [(row.operation, each) for row in rows for each in row.saved]
        saved.sort(key=lambda pair: pair[1].at)
        found = [checkpoint_document(name, each, with_data=operation is not None) for name, each in saved]
        return json_response({"checkpoints": found, **log})


def checkpoint_document(operation: str, saved: SavedCheckpoint, *, with_data: bool) -> dict[str, Any]:
    """Return the JSON document of a checkpoint. Times are ms of log time."""
    fields = saved._asdict()
    data_json = fields.pop("data_json")
    return {"operation": operation, "at_ms": fields.pop("at"), **fields, "data_json": data_json if with_data else None}


# The control API's pages of reserved tool calls: the last try of each call.
#
#     GET /v1/sessions/{session_id}/runs/{run_id}/tool-calls              a run's, without results
#     GET /v1/sessions/{session_id}/runs/{run_id}/tool-calls/{idem_key}   one, with its result
#     GET /v1/sessions/{session_id}/tool-calls[/{idem_key}]               those outside of runs
#
# They are kept as long as their run, or their session.


# The fields of running calls only, and those of ended calls only.
_OF_RUNNING = ("limit_ms", "reservation")
_OF_ENDED = ("resolved_by", "artifact_id")


class CallPages:
    """Answers the requests for reserved tool calls of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def calls(self, request: Request) -> Response:
        """Answer `GET …/tool-calls` with a `call_head` for each call of the run, or of the session.

        They are in the order in which their last tries were granted. Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        parent, state = require_parent(asked, request.match_info.get("run_id")), asked.owner.state
        log = log_document(asked)  # rows may be newer than the position, never older
        rows: list[CallRow] = await read_children(state, parent, call_key, ToolCallState, EndedToolCall)
        rows.sort(key=lambda row: (row.started_at, row.idem_key))
        return json_response({"tool_calls": [call_head(row, state) for row in rows], **log})

    async def call(self, request: Request) -> Response:
        """Answer `GET …/tool-calls/{idem_key}` with `call_document`. Raises `Problem`."""
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        idem_key, state = request.match_info["idem_key"], asked.owner.state
        row = state.rows.get(call_key(require_parent(asked, request.match_info.get("run_id")), idem_key))
        if not isinstance(row, CallRow):
            run_id = request.match_info.get("run_id")
            parent = f"session {asked.question.key.session_id}" if run_id is None else f"run {run_id}"
            raise Problem(404, "unknown_call", "Unknown call", f"{parent} has no reserved tool call {idem_key}")
        return json_response({**call_document(row, state), **log_document(asked)})


def call_head(row: CallRow, state: PartitionState) -> dict[str, Any]:
    """Return the JSON document of a call without its result. Times are ms of log time.

    Fields that a call does not have in its state are null.
    """
    names = ("run_id", "session_id", "step_id", "tool_name", "idem_key", "try_number", "side_effect", "queryable")
    document: dict[str, Any] = {
        **{name: getattr(row, name) for name in names},
        "started_ms": row.started_at,
        **dict.fromkeys((*_OF_RUNNING, *_OF_ENDED, "deadline_ms", "error")),
    }
    if isinstance(row, ToolCallState):
        running = {name: getattr(row, name) for name in _OF_RUNNING}
        return {
            **document,
            **running,
            "state": "running",
            "entered_ms": row.started_at,
            "deadline_ms": state.deadline_ms(row),
        }
    ended = {name: getattr(row, name) for name in _OF_ENDED}
    error = None if row.error is None else row.error._asdict()
    return {**document, **ended, "state": row.state, "entered_ms": row.entered_at, "error": error}


def call_document(row: CallRow, state: PartitionState) -> dict[str, Any]:
    """Return the JSON document of a call, as `/openapi.json` describes it."""
    return {**call_head(row, state), "result_json": row.result_json if isinstance(row, EndedToolCall) else None}


# The control API's pages of steps: the last attempt of each step of a run.
#
#     GET /v1/sessions/{session_id}/runs/{run_id}/steps          all, without their content
#     GET /v1/sessions/{session_id}/runs/{run_id}/steps/{name}   one, with its input and output
#
# Both are kept as long as their run.


class StepPages:
    """Answers the requests for steps of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def steps(self, request: Request) -> Response:
        """Answer `GET …/runs/{run_id}/steps` with a `step_head` for each step of the run.

        They are in the order in which their last attempts began. Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        run = require_run(asked, request.match_info["run_id"])
        log = log_document(asked)  # rows may be newer than the position, never older
        rows: list[StepRow] = await read_children(asked.owner.state, run, step_key, StepState, TimedStep)
        rows.sort(key=lambda row: (row.started_at, row.name))
        return json_response({"steps": [step_head(row) for row in rows], **log})

    async def step(self, request: Request) -> Response:
        """Answer `GET …/runs/{run_id}/steps/{name}` with `step_document`. Raises `Problem`."""
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        run_id, name = request.match_info["run_id"], request.match_info["name"]
        row = asked.owner.state.rows.get(step_key(require_run(asked, run_id), name))
        if not isinstance(row, StepState | TimedStep):
            raise Problem(404, "unknown_step", "Unknown step", f"run {run_id} has no step {name}")
        return json_response({**step_document(row), **log_document(asked)})


def step_head(row: StepRow) -> dict[str, Any]:
    """Return the JSON document of a step without its content. Times are ms of log time."""
    head = {
        **{name: getattr(row, name) for name in ("run_id", "session_id", "name", "step_id", "attempt")},
        "state": state_of(row),
        "started_ms": row.started_at,
    }
    if isinstance(row, TimedStep):
        limit = {"deadline_ms": row.due_at, "limit_ms": row.limit_ms}
        return {**head, "entered_ms": row.started_at, "error": None, **limit}
    error = None if row.error is None else row.error._asdict()
    return {**head, "entered_ms": row.entered_at, "error": error, "deadline_ms": None, "limit_ms": None}


def step_document(row: StepRow) -> dict[str, Any]:
    """Return the JSON document of a step, as `/openapi.json` describes it."""
    return {**step_head(row), "input_json": row.input_json, "output_json": row.output_json}


# The control API's page of a session's execution, without content and turns.
#
#     GET /v1/sessions/{session_id}/execution     open runs, their steps and tool calls, in short


class ExecutionPage:
    """Answers the requests for the execution of sessions of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def execution(self, request: Request) -> Response:
        """Answer `GET …/execution` with the session's open runs and its calls outside of runs.

        All are in the order in which they began, and without contents. Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        run_ids = [run.run_id for run in require_session(asked).open_runs]
        log = log_document(asked)  # rows may be newer than the position, never older
        runs = [found for run_id in run_ids if (found := await _read_run(asked, run_id)) is not None]
        calls = await _read_calls(asked.owner.state, asked.question.key.encoded())
        return json_response({"runs": runs, "tool_calls": calls, **log})


async def _read_run(asked: AskedOwner, run_id: str) -> dict[str, Any] | None:
    """Return an open run with its steps and calls; None if it has ended, or is another user's."""
    state, key = asked.owner.state, run_key(*asked.question.key, run_id)
    row = state.rows.get(key)
    if not isinstance(row, RunState) or not asked.question.caller.may_see(row.user_id):
        return None
    head = {name: value for name, value in run_document(row, state).items() if name not in RUN_CONTENTS}
    steps: list[StepRow] = await read_children(state, key, step_key, StepState, TimedStep)
    steps.sort(key=lambda step: (step.started_at, step.name))
    return {**head, "steps": [step_head(step) for step in steps], "tool_calls": await _read_calls(state, key)}


async def _read_calls(state: PartitionState, parent: bytes) -> list[dict[str, Any]]:
    rows: list[CallRow] = await read_children(state, parent, call_key, ToolCallState, EndedToolCall)
    rows.sort(key=lambda row: (row.started_at, row.idem_key))
    return [call_head(row, state) for row in rows]


# The control API's page of a task: a run that a request names by its id alone.
#
#     GET /v1/tasks/{task_id}?seen=<version>&wait_ms=<ms>
#
# The id contains the partition, whose owner knows the session. With `seen` the answer waits until
# the task has changed since the caller saw it.


class TaskPages:
    """Answers the requests for tasks of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def task(self, request: Request) -> Response:
        """Answer `GET /v1/tasks/{task_id}` with `run_document`, and the task's `version`.

        A finished task is kept for 30 days. With `seen`, waits up to `wait_ms` while `seen` is the
        current version. Raises `Problem`: 404 if the tenant has no such task, 410 if it vanished.
        """
        task_id, seen = request.match_info["task_id"].lower(), request.query.get("seen")
        deadline_s: float | None = None
        while True:
            asked = await self._questions.ask_task(request, task_id)
            if isinstance(asked, Response):
                return asked
            deadline_s = deadline_s or time.monotonic() + asked.question.wait_s
            row = asked.owner.state.rows[run_key(*asked.question.key, task_id)]
            version, left_s = task_version(row), deadline_s - time.monotonic()
            if version != seen or left_s <= 0 or not await _has_moved_on(asked, left_s):
                document = {**run_document(row, asked.owner.state), "version": version}
                return json_response({**document, **log_document(asked)})


async def _has_moved_on(asked: AskedOwner, timeout_s: float) -> bool:
    """Wait for a further record of the task's partition; return False after `timeout_s`."""
    return await asked.owner.wait_until_committed(asked.owner.state.position.next_offset, timeout_s)


def task_version(row: RunState | FinishedRun) -> str:
    """Return a version that differs whenever an event or a clock has changed a task."""
    return f"{row.run_seq}.{row.state}"
