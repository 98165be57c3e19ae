"""The control API's pages of runs: the committed state of one run, and the open runs of a session.

    GET /v1/sessions/{session_id}/runs               the session's open runs
    GET /v1/sessions/{session_id}/runs/{run_id}      one run, open or finished

Both take `after` and `wait_ms`, and are passed on to the session's owner, as the session's page is.
A run of another tenant, or of another session, is as unknown as one that does not exist.
"""

from typing import Any

from aiohttp.web import Request, Response

from sessionary.schemas.ids import run_key
from sessionary.schemas.records import FinishedRun, RunState, SessionState
from sessionary.stream_processors.api.problems import Problem, json_response
from sessionary.stream_processors.api.sessions import ControlApi, Question
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner


class RunPages:
    """Answers the requests for runs of one worker."""

    def __init__(self, api: ControlApi) -> None:
        """`api` answers for sessions."""
        self._api = api

    async def run(self, request: Request) -> Response:
        """Answer `GET /v1/sessions/{session_id}/runs/{run_id}` with `run_document`.

        A finished run is there for 30 days, also if its session was archived. Raises `Problem`.
        """
        question = self._api.parse_question(request)
        owner = self._api.owner_of(question)
        if owner is None:
            return await self._api.pass_on(request, question)
        await self._api.require_folded(owner, question)
        run_id = request.match_info["run_id"]
        row = owner.state.rows.get(run_key(*question.key, run_id))
        if not isinstance(row, RunState | FinishedRun):
            detail = f"session {question.key.session_id} of tenant {question.key.tenant_id} has no run {run_id}"
            raise Problem(404, "unknown_run", "Unknown run", detail)
        verdict = self._api.verdict_on(owner, question)
        return json_response({**run_document(row, owner.state), **self._api.place_of(owner, question, verdict)})

    async def open_runs(self, request: Request) -> Response:
        """Answer `GET /v1/sessions/{session_id}/runs` with a `run_document` for each open run.

        They are in the order in which they began. Raises `Problem`.
        """
        question = self._api.parse_question(request)
        owner = self._api.owner_of(question)
        if owner is None:
            return await self._api.pass_on(request, question)
        await self._api.require_folded(owner, question)
        session = self._api.require_session(owner, question)
        verdict = self._api.verdict_on(owner, question)
        return json_response(
            {"runs": _documents(owner, session), **self._api.place_of(owner, question, verdict)}
        )


def _documents(owner: PartitionOwner, session: SessionState) -> list[dict[str, Any]]:
    keys = (run_key(session.tenant_id, session.session_id, run.run_id) for run in session.open_runs)
    return [run_document(owner.state.rows[key], owner.state) for key in keys]


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
        "deadline_ms": state.deadline_ms(row) if isinstance(row, RunState) else None,
    }


__all__ = ["RunPages", "run_document"]
