"""The control API's page of a conversation: the last turns of a session, with their contents.

    GET /v1/sessions/{session_id}/conversation?last=<turns>

The page takes `after` and `wait_ms`, and is passed on to the session's owner, as the session's page
is. Only the rows of the turns that are asked for are read.
"""

import asyncio
from typing import Any, Final

from aiohttp.web import Request, Response

from sessionary.schemas.ids import message_key
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import MessageState
from sessionary.stream_processors.api.problems import Problem, json_response, parse_number
from sessionary.stream_processors.api.session_questions import SessionQuestions, log_document, require_session
from sessionary.stream_processors.core.partition import PartitionState

LAST_DEFAULT: Final = 20
_SLICE = 20  # turns that are read before other requests have their turn: contents are large


class MessagePages:
    """Answers the requests for conversations of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def conversation(self, request: Request) -> Response:
        """Answer `GET …/conversation` with a `message_document` for each of the `last` turns.

        They are in the order of the log, which numbers them. Raises `Problem`.
        """
        last = _parse_last(request.query.get("last"))
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        session = require_session(asked)
        log = log_document(asked)  # rows may be newer than the position, never older
        rows = await _read_turns(asked.owner.state, asked.question.key.encoded(), session.turns, last)
        return json_response({"turns": session.turns, "messages": [message_document(row) for row in rows], **log})


def _parse_last(text: str | None) -> int:
    if text is None:
        return LAST_DEFAULT
    last = parse_number("last", text)
    if last > CONVERSATION_TURNS_MAX:
        raise Problem(400, "invalid_value", "Bad last", f"last must not exceed {CONVERSATION_TURNS_MAX}")
    return last


async def _read_turns(state: PartitionState, session: bytes, turns: int, last: int) -> list[MessageState]:
    """Return the rows of the `last` turns up to `turns`; without one that a later turn took."""
    found: list[MessageState] = []
    for n, turn in enumerate(range(max(turns - last, 0) + 1, turns + 1)):
        if n and n % _SLICE == 0:
            await asyncio.sleep(0)
        row = state.rows.get(message_key(session, turn))
        if isinstance(row, MessageState) and row.turn == turn:
            found.append(row)
    return found


def message_document(row: MessageState) -> dict[str, Any]:
    """Return the JSON document of a turn, as `/openapi.json` describes it."""
    names = ("turn", "role", "name", "content", "artifact_id", "run_id", "agent_id", "service_id")
    return {**{name: getattr(row, name) for name in names}, "at_ms": row.at}
