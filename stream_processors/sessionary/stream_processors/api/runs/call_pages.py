"""The control API's pages of reserved tool calls: the last try of each call.

    GET /v1/sessions/{session_id}/runs/{run_id}/tool-calls              a run's, without results
    GET /v1/sessions/{session_id}/runs/{run_id}/tool-calls/{idem_key}   one, with its result
    GET /v1/sessions/{session_id}/tool-calls[/{idem_key}]               those outside of runs

They are there as long as their run, or as their session.
"""

from typing import Any

from aiohttp.web import Request, Response

from sessionary.schemas.ids import call_key
from sessionary.schemas.records import EndedToolCall, ToolCallState
from sessionary.stream_processors.api.problems import Problem, json_response
from sessionary.stream_processors.api.runs.run_pages import read_children, require_parent
from sessionary.stream_processors.api.session_questions import SessionQuestions, log_document
from sessionary.stream_processors.core.call.transitions import CallRow
from sessionary.stream_processors.core.partition import PartitionState

# What only a call that runs has, and what only one that ended has.
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

    What a call in its state does not have is null.
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
