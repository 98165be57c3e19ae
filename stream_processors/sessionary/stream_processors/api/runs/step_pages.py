"""The control API's pages of steps: the last attempt of each step of a run.

    GET /v1/sessions/{session_id}/runs/{run_id}/steps          all, without their content
    GET /v1/sessions/{session_id}/runs/{run_id}/steps/{name}   one, with its input and output

Both are there as long as their run.
"""

from typing import Any

from aiohttp.web import Request, Response

from sessionary.schemas.ids import step_key
from sessionary.schemas.records import StepState, TimedStep
from sessionary.stream_processors.api.problems import Problem, json_response
from sessionary.stream_processors.api.runs.run_pages import read_children, require_run
from sessionary.stream_processors.api.session_questions import SessionQuestions, log_document
from sessionary.stream_processors.core.step.transitions import StepRow, state_of


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
