"""The control API's pages of runs: the committed state of one run, and the open runs of a session.

    GET /v1/sessions/{session_id}/runs               the session's open runs
    GET /v1/sessions/{session_id}/runs/{run_id}      one run, open or finished

Both take `after` and `wait_ms`, and are passed on to the session's owner, as the session's page is.
A run of another tenant, or of another session, is as unknown as one that does not exist.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp.web import Request, Response

from sessionary.schemas.ids import run_key
from sessionary.schemas.records import FinishedRun, RunGravestone, RunState
from sessionary.schemas.types import Checkpoint
from sessionary.stream_processors.api.problems import Problem, json_response
from sessionary.stream_processors.api.session_questions import (
    AskedOwner,
    SessionQuestions,
    gone_problem,
    log_document,
    require_session,
)
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
        rows = (state.rows[run_key(*key, run.run_id)] for run in require_session(asked).open_runs)
        return json_response({"runs": [run_document(row, state) for row in rows], **log_document(asked)})


def require_run(asked: AskedOwner, run_id: str) -> bytes:
    """Return the key of the session's run. Raises `Problem`: 404 if there is none, 410 if it went.

    A finished run is there for 30 days, also if its session was archived; it is gone for 14 more.
    """
    session = asked.question.key
    key = run_key(*session, run_id)
    state = asked.owner.state
    row = state.rows.get(key)
    if isinstance(row, RunGravestone) or (row is None and state.is_packed(key)):
        raise gone_problem("run", run_id)
    if not isinstance(row, RunState | FinishedRun):
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
    }


def _checkpoint_document(checkpoint: Checkpoint) -> dict[str, Any]:
    fields = checkpoint._asdict()
    return {"at_ms": fields.pop("at"), **fields}


# Rows that belong to a run or to a session: steps, reserved tool calls, artifacts.


RowT = TypeVar("RowT")
_SLICE = 50  # rows that are read before other requests have their turn
_KIND_BYTES = 2  # that follow the parent's key in the key of a child, and say what it is


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

    `key_of` makes their keys of the parent's and a name, as `step_key` does. No other row is read:
    the turns of a session may be large. Others have their turn meanwhile, so a row may be newer
    than one before it.
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
