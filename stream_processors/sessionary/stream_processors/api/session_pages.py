"""Pages of a session's agents, and of the last turns of its conversation."""

import asyncio
from typing import Any, Final

from aiohttp.web import Request, Response

from sessionary.schemas.ids import agent_key, message_key
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import AgentState, MessageState, SessionState
from sessionary.schemas.types import SharedResult
from sessionary.stream_processors.api.problems import Problem, json_response, parse_number
from sessionary.stream_processors.api.session_questions import (
    AskedOwner,
    SessionQuestions,
    log_document,
    require_session,
)
from sessionary.stream_processors.core.children.agent import view_of
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
    """Return the rows of the `last` turns up to `turns`, without those that a later turn took."""
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


# The control API's pages of agents: those of a session, and what one of them sees.
#
#     GET /v1/sessions/{session_id}/agents
#     GET /v1/sessions/{session_id}/agents/{agent_id}
#
# The pages take `after` and `wait_ms`, and are passed on to the session's owner, as the session's
# page is. Only the rows of the session's agents are read.


class AgentPages:
    """Answers the requests for agents of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def agents(self, request: Request) -> Response:
        """Answer `GET …/agents` with an `agent_document` for each, in the order of registration.

        Raises `Problem`.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        session, log = require_session(asked), log_document(asked)
        rows = await _read_agents(asked, session)
        return json_response({"agents": [agent_document(row) for row in rows], **log})

    async def agent(self, request: Request) -> Response:
        """Answer `GET …/agents/{agent_id}` with the agent, what it sees and whom it depends on.

        Raises `Problem`, also if there is no such agent.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        session, log = require_session(asked), log_document(asked)
        agent_id = request.match_info["agent_id"]
        seen = view_of(agent_id, session.agents, await _read_agents(asked, session))
        if seen is None:
            detail = f"session {session.session_id} has no agent {agent_id}"
            raise Problem(404, "unknown_agent", "Unknown agent", detail)
        context = {key: result.result_json for key, result in seen.shared_context.items()}
        return json_response(
            {
                "agent_state": {**agent_document(seen.row), "shared_context": context},
                "visible_context": {result.key: result.result_json for _, result in seen.results},
                "results": [_result_document(author, result) for author, result in seen.results],
                "dependencies": list(seen.dependencies),
                **log,
            }
        )


async def _read_agents(asked: AskedOwner, session: SessionState) -> list[AgentState]:
    """Return the rows of a session's agents in the order in which they were registered."""
    found: list[AgentState] = []
    for agent in session.agents:
        if found:
            await asyncio.sleep(0)  # an agent's results may be large
        row = asked.owner.state.rows.get(agent_key(asked.question.key.encoded(), agent.agent_id))
        if isinstance(row, AgentState):
            found.append(row)
    return found


def agent_document(row: AgentState) -> dict[str, Any]:
    """Return the JSON document of an agent, as `/openapi.json` describes it."""
    handover = row.handover
    return {
        "agent_id": row.agent_id,
        "role": row.role,
        "service_id": row.service_id,
        "current_task": row.current_task,
        "completed_tasks": list(row.completed_tasks),
        "shared_keys": [result.key for result in row.shared],
        "snapshot_id": row.snapshot_id,
        "timestamp_ms": row.updated_at,
        "registered_at_ms": row.registered_at,
        "handover": handover
        and {
            "from_agent_id": handover.from_agent_id,
            "from_snapshot_id": handover.from_snapshot_id,
            "sync_type": handover.sync_type,
            "at_ms": handover.at,
        },
    }


def _result_document(author: AgentState, result: SharedResult) -> dict[str, Any]:
    return {
        "key": result.key,
        "agent_id": author.agent_id,
        "role": author.role,
        "task": result.task,
        "number": result.number,
        "at_ms": result.at,
        "result_json": result.result_json,
        "artifact_id": result.artifact_id,
    }
