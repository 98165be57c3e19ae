"""The control API's page of a session's execution: what it is at, apart from content and turns.

GET /v1/sessions/{session_id}/execution     open runs, their steps and tool calls, in short
"""

from typing import Any

from aiohttp.web import Request, Response

from sessionary.schemas.ids import call_key, run_key, step_key
from sessionary.schemas.records import EndedToolCall, RunState, StepState, TimedStep, ToolCallState
from sessionary.stream_processors.api.problems import json_response
from sessionary.stream_processors.api.runs.call_pages import call_head
from sessionary.stream_processors.api.runs.run_pages import RUN_CONTENTS, read_children, run_document
from sessionary.stream_processors.api.runs.step_pages import step_head
from sessionary.stream_processors.api.session_questions import (
    AskedOwner,
    SessionQuestions,
    log_document,
    require_session,
)
from sessionary.stream_processors.core.call.transitions import CallRow
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.step.transitions import StepRow


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
    """Return an open run with its steps and calls; None if it has finished meanwhile."""
    state, key = asked.owner.state, run_key(*asked.question.key, run_id)
    row = state.rows.get(key)
    if not isinstance(row, RunState):
        return None
    head = {name: value for name, value in run_document(row, state).items() if name not in RUN_CONTENTS}
    steps: list[StepRow] = await read_children(state, key, step_key, StepState, TimedStep)
    steps.sort(key=lambda step: (step.started_at, step.name))
    return {**head, "steps": [step_head(step) for step in steps], "tool_calls": await _read_calls(state, key)}


async def _read_calls(state: PartitionState, parent: bytes) -> list[dict[str, Any]]:
    rows: list[CallRow] = await read_children(state, parent, call_key, ToolCallState, EndedToolCall)
    rows.sort(key=lambda row: (row.started_at, row.idem_key))
    return [call_head(row, state) for row in rows]
