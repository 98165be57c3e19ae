"""The control API's pages of artifacts: what a run, or a session, has stored elsewhere.

    GET /v1/sessions/{session_id}/artifacts                   those outside of runs
    GET /v1/sessions/{session_id}/runs/{run_id}/artifacts     a run's

They say what is known of an artifact, and where its body is. They are there as long as their run,
or as their session.
"""

from typing import Any

from aiohttp.web import Request, Response

from sessionary.schemas.ids import artifact_key
from sessionary.schemas.records import ArtifactState
from sessionary.stream_processors.api.problems import json_response
from sessionary.stream_processors.api.runs.run_pages import read_children, require_parent
from sessionary.stream_processors.api.session_questions import SessionQuestions, log_document


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
        **{name: getattr(row, name) for name in names},
        "created_ms": row.created_at,
        "entered_ms": row.entered_at,
    }
