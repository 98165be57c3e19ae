"""The pages by which people let sessions change their service.

    POST /v1/sessions/{session_id}/migrate          {"to": service, "ttl_ms": ms, "reason": text}
    POST /v1/sessions/{session_id}/abort-migration  {"reason": text}
    POST /v1/sessions/{session_id}/claim            {"for": service, "reason": text}

`ttl_ms` may be missing. All need the role operator; a token of no tenant names the session's, as
`?tenant=…`. A session that is offered moves once its target has loaded and accepted it. One that is
claimed is the service's at once, whatever its owner does.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from aiohttp.web import Request, Response

from sessionary.schemas.events import Payload, SessionMigrationAborted, SessionMigrationOffered, SessionTakenOver
from sessionary.schemas.ids import valid_name
from sessionary.schemas.limits import MIGRATION_TTL_MS_DEFAULT, MIGRATION_TTL_MS_MAX, MIGRATION_TTL_MS_MIN
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.operators.people import require_text
from sessionary.stream_processors.api.operators.session_events import PersonsEvent, SessionEvents, judged_document
from sessionary.stream_processors.api.problems import Problem, json_response, parse_object


class MigrationPages:
    """Answers the requests of operators for another owner of one session."""

    def __init__(self, events: SessionEvents) -> None:
        self._events = events

    async def migrate(self, request: Request) -> Response:
        """Answer `POST …/migrate` with a `JudgedMigration`. Raises `Problem`."""
        caller = self._events.require_operator(request)
        body = await parse_object(request)
        target, ttl_ms = _require_service("to", body), body.get("ttl_ms", MIGRATION_TTL_MS_DEFAULT)
        if type(ttl_ms) is not int or not MIGRATION_TTL_MS_MIN <= ttl_ms <= MIGRATION_TTL_MS_MAX:
            detail = f"ttl_ms must be a number from {MIGRATION_TTL_MS_MIN} to {MIGRATION_TTL_MS_MAX}"
            raise Problem(400, "invalid_value", "Bad ttl_ms", detail)
        reason, limit_ms = require_text("reason", body.get("reason")), ttl_ms

        def offer(row: SessionState) -> Payload:
            return SessionMigrationOffered(str(uuid.uuid4()), target, limit_ms, reason, as_operator=True)

        return await self._answer(request, caller, PersonsEvent("migrate", caller.principal, offer))

    async def abort(self, request: Request) -> Response:
        """Answer `POST …/abort-migration` with a `JudgedMigration`. Raises `Problem`."""
        caller = self._events.require_operator(request)
        reason = require_text("reason", (await parse_object(request)).get("reason"))

        def call_off(row: SessionState) -> Payload:
            if row.migration is None or not row.migration.is_open:
                raise Problem(409, "unknown_migration", "Refused", "the session has no open migration")
            return SessionMigrationAborted(reason, row.migration.migration_id, as_operator=True)

        return await self._answer(request, caller, PersonsEvent("abort-migration", caller.principal, call_off))

    async def claim(self, request: Request) -> Response:
        """Answer `POST …/claim` with a `JudgedClaim`. Raises `Problem`."""
        caller = self._events.require_operator(request)
        body = await parse_object(request)
        service_id, reason = _require_service("for", body), require_text("reason", body.get("reason"))

        def take_over(row: SessionState) -> Payload:
            return SessionTakenOver(reason, as_operator=True)

        event = PersonsEvent("claim", caller.principal, take_over, service_id)
        judged = await self._events.judge_event(request, caller, event)
        if isinstance(judged, Response):
            return judged
        return json_response({**judged_document(judged), "owner_service": judged.row.owner_service})

    async def _answer(self, request: Request, caller: Caller, event: PersonsEvent) -> Response:
        judged = await self._events.judge_event(request, caller, event)
        if isinstance(judged, Response):
            return judged
        migration = judged.row.migration
        assert migration is not None  # the event that was applied was about it
        names = {"migration_id": migration.migration_id, "to": migration.target_service, "step": migration.step}
        return json_response({**judged_document(judged), **names})


def _require_service(name: str, body: Mapping[str, Any]) -> str:
    """Return the service that a field of a body names. Raises `Problem` 400."""
    service_id = body.get(name)
    if not isinstance(service_id, str) or not valid_name(service_id):
        raise Problem(400, "invalid_value", f"Bad {name}", f"name the service, in the field `{name}`")
    return service_id
