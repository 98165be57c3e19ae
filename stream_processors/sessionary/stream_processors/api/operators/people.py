"""The pages by which people step in: pause, resume and cancel a session, answer its question.

    POST /v1/sessions/{session_id}/pause|resume|cancel     {"reason": text}
    POST /v1/sessions/{session_id}/approve|refuse          {"reason": text, "question_id": id}

Both fields of an answer may be missing. All need the role operator. A token of no tenant names the
session's, as `?tenant=…`.
"""

from collections.abc import Callable

from aiohttp.web import Request, Response

from sessionary.schemas.events import Payload, SessionPaused, SessionResumed, SessionTerminated
from sessionary.schemas.limits import NAME_CHARACTERS_MAX, TEXT_CHARACTERS_MAX
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.api.operators.session_events import PersonsEvent, SessionEvents, judged_document
from sessionary.stream_processors.api.problems import Problem, json_response, parse_object


class PeoplePages:
    """Answers the requests of operators for one session."""

    def __init__(self, events: SessionEvents) -> None:
        self._events = events

    async def pause(self, request: Request) -> Response:
        """Answer `POST …/pause` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(
            request, "pause", lambda reason, _: SessionPaused("manual", reason, as_operator=True), needs_reason=True
        )

    async def resume(self, request: Request) -> Response:
        """Answer `POST …/resume` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(
            request, "resume", lambda reason, _: SessionResumed(message=reason, as_operator=True), needs_reason=True
        )

    async def cancel(self, request: Request) -> Response:
        """Answer `POST …/cancel` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(
            request,
            "cancel",
            lambda reason, _: SessionTerminated("cancelled", reason, as_operator=True),
            needs_reason=True,
        )

    async def approve(self, request: Request) -> Response:
        """Answer `POST …/approve` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(request, "approve", lambda reason, asked: _answer(reason, asked, approved=True))

    async def refuse(self, request: Request) -> Response:
        """Answer `POST …/refuse` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(request, "refuse", lambda reason, asked: _answer(reason, asked, approved=False))

    async def _act(
        self,
        request: Request,
        action: str,
        make_payload: Callable[[str | None, str | None], Payload],
        *,
        needs_reason: bool = False,
    ) -> Response:
        """Send what `make_payload` returns for a reason and a question's id, and answer."""
        caller = self._events.require_operator(request)
        body = await parse_object(request)
        reason = _text("reason", body.get("reason"), TEXT_CHARACTERS_MAX)
        question_id = _text("question_id", body.get("question_id"), NAME_CHARACTERS_MAX)
        if needs_reason:
            require_text("reason", reason)

        def payload_of(row: SessionState) -> Payload:
            return make_payload(reason, question_id)

        event = PersonsEvent(action, caller.principal, payload_of)
        judged = await self._events.judge_event(request, caller, event)
        return judged if isinstance(judged, Response) else json_response(judged_document(judged))


def _answer(reason: str | None, question_id: str | None, *, approved: bool) -> SessionResumed:
    return SessionResumed(approved=approved, question_id=question_id, message=reason, as_operator=True)


def require_text(name: str, value: object) -> str:
    """Return a text of a request's body, which must have one. Raises `Problem` 400."""
    text = _text(name, value, TEXT_CHARACTERS_MAX)
    if text is None:
        raise Problem(400, "invalid_value", f"Bad {name}", f"say why, in the field `{name}`")
    return text


def _text(name: str, value: object, characters_max: int) -> str | None:
    """Return a text of a request's body without spaces around it, or None. Raises `Problem` 400."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.strip()) <= characters_max:
        detail = f"{name} must be a text of 1 to {characters_max} characters"
        raise Problem(400, "invalid_value", f"Bad {name}", detail)
    return value.strip()
