"""The control API: one session's committed state, read-your-writes, and the worker's health.

    GET /v1/sessions/{session_id}?after=<partition>:<offset>&wait_ms=<ms>     bearer token → tenant
    GET /healthz   GET /readyz   GET /metrics   GET /openapi.json

The API only reads. A request for another worker's partition is passed on to that worker; the
group's assignment holds its URL. Errors are problem documents (RFC 9457).
"""

import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from aiohttp import ClientError, ClientSession, ClientTimeout
from aiohttp.web import Request, Response

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import SessionKey, checked_session_id, partition_of
from sessionary.schemas.log_progress import StalledPartition
from sessionary.schemas.records import Gravestone, SessionState
from sessionary.stream_processors.api.openapi import DOCUMENT, PROBLEM_TYPE_PREFIX
from sessionary.stream_processors.core.session.machine import SessionMachine
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

WAIT_MS_DEFAULT = 5_000
WAIT_MS_MAX = 10_000
_MACHINE = SessionMachine()
_ROUTED = "Sessionary-Routed"  # set on a request that a worker passed on; it is not passed on again
_RETRY_AFTER_S = "1"
_SEVERAL_S = 2.0
_PASSED_HEADERS = ("Content-Type", "Retry-After", "WWW-Authenticate")


class Problem(Exception):
    """An answer other than 200: a problem document of type `urn:sessionary:problems/<reason>`."""

    def __init__(self, status: int, reason: str, title: str, detail: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(detail)
        self.status, self.reason, self.title, self.detail, self.headers = status, reason, title, detail, headers

    def to_response(self) -> Response:
        """Return the problem document as a response."""
        document = {
            "type": PROBLEM_TYPE_PREFIX + self.reason,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        return Response(
            status=self.status,
            body=json.dumps(document).encode(),
            content_type="application/problem+json",
            headers=dict(self.headers),
        )


class Question(NamedTuple):
    """A request for a session, validated."""

    key: SessionKey
    partition: int  # the session's
    after: int | None  # offset in that partition that must have been folded
    wait_s: float  # how long to wait for that


class Group(Protocol):
    """What the API needs to know of the consumer group."""

    def owner_urls(self) -> Mapping[int, str]:
        """Return the URL of each partition's owner, from the last assignment."""
        ...

    def heartbeat_s(self) -> float:
        """Return when the group last acknowledged a heartbeat, on the monotonic clock."""
        ...

    def http_client(self) -> ClientSession:
        """Return the client for requests to other workers."""
        ...


def not_ready(detail: str) -> Problem:
    """Return a 503 with Retry-After: the same request may succeed in a moment."""
    return Problem(503, "not_ready", "Not ready", detail, {"Retry-After": _RETRY_AFTER_S})


class ControlApi:
    """Answers the requests of one worker.

    `alive` returns False once the worker is ending. `stalled` returns the open partitions that have
    stood still for long although their log goes on.
    """

    def __init__(
        self,
        settings: ProcessorSettings,
        assignment: Assignment,
        metrics: Metrics,
        group: Group,
        alive: Callable[[], bool],
        stalled: Callable[[], Mapping[int, StalledPartition]],
    ) -> None:
        self._settings = settings
        self._assignment = assignment
        self._metrics = metrics
        self._group = group
        self._alive = alive
        self._stalled = stalled
        self._tokens = [(token.encode(), tenant) for token, tenant in settings.api_tokens.items()]

    async def session(self, request: Request, session_id: str) -> Response:
        """Answer `GET /v1/sessions/{session_id}`: 200 with `session_document`, else a problem.

        Waits up to `wait_ms` until the record at `after` is folded.
        """
        try:
            question = self._parse_question(request, session_id)
            owner = self._assignment.owners.get(question.partition)
            if owner is None:
                return await self._pass_on(request, question.partition)
            document = await self._read_session(owner, question)
        except Problem as problem:
            return problem.to_response()
        return _json_response(document)

    async def healthz(self, request: Request) -> Response:
        """Answer 200 until the worker is told to end, then 503."""
        return _json_response({"status": "alive"}) if self._alive() else not_ready("the worker is ending").to_response()

    async def readyz(self, request: Request) -> Response:
        """Answer 200 if every owned partition is open and keeps up with its log, else 503.

        The body names their states.
        """
        stalled = self._stalled()
        partitions = {
            str(partition): _partition_state(owner, stalled.get(partition))
            for partition, owner in sorted(self._assignment.owners.items())
        }
        keeps_up = all(state == "open" for state in partitions.values())
        ready = keeps_up and self._assignment.is_ready and self._alive()
        return _json_response({"ready": ready, "partitions": partitions}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics in Prometheus' text format."""
        return Response(
            body=self._metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def openapi(self, request: Request) -> Response:
        """Answer with this API's OpenAPI document."""
        return _json_response(DOCUMENT)

    def _tenant_of(self, request: Request) -> str:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode()
        tenants = [tenant for known, tenant in self._tokens if hmac.compare_digest(known, given)]
        if scheme.lower() != "bearer" or not tenants:
            detail = "send a known token as Authorization: Bearer …"
            raise Problem(401, "unauthorized", "Unauthorized", detail, {"WWW-Authenticate": "Bearer"})
        return tenants[0]

    def _parse_question(self, request: Request, session_id: str) -> Question:
        tenant_id = self._tenant_of(request)
        try:
            key = SessionKey(tenant_id, checked_session_id(session_id))
        except Invalid as error:
            raise Problem(400, "invalid_value", "Bad session id", error.detail) from None
        partition = partition_of(key.encoded(), self._settings.partitions)
        after = _parse_after(request.query.get("after"), partition)
        wait_ms = _parse_number("wait_ms", request.query.get("wait_ms", str(WAIT_MS_DEFAULT)))
        if wait_ms > WAIT_MS_MAX:
            raise Problem(400, "invalid_value", "Bad wait_ms", f"wait_ms must not exceed {WAIT_MS_MAX}")
        return Question(key, partition, after, wait_ms / 1_000)

    async def _read_session(self, owner: PartitionOwner, question: Question) -> dict[str, Any]:
        after = -1 if question.after is None else question.after
        if not await owner.wait_until_committed(after, question.wait_s):
            if not owner.is_open:
                raise not_ready(f"partition {question.partition} is not open yet")
            next_offset = owner.state.position.next_offset
            raise not_ready(f"partition {question.partition} is at offset {next_offset}, not yet after {after}")
        heard_s = max(owner.committed_s, self._group.heartbeat_s())
        if time.monotonic() - heard_s > self._settings.session_timeout_ms / 1_000:
            # Another worker may own the partition by now and have a newer state.
            raise not_ready("this worker has had no answer of its group for a session time-out")
        row = owner.state.rows.get(question.key.encoded())
        if row is None:
            detail = f"tenant {question.key.tenant_id} has no session {question.key.session_id}"
            raise Problem(404, "unknown_session", "Unknown session", detail)
        if isinstance(row, Gravestone):
            detail = f"session {row.session_id} was archived ({row.reason_code})"
            raise Problem(410, "session_archived", "Session archived", detail)
        return session_document(row, question, owner.state.position.next_offset)

    async def _pass_on(self, request: Request, partition: int) -> Response:
        url = self._group.owner_urls().get(partition)
        if url is None or url == self._settings.api_url or url.endswith(":0") or _ROUTED in request.headers:
            raise not_ready(f"the owner of partition {partition} is not known, or has no API")
        headers = {"Authorization": request.headers["Authorization"], _ROUTED: self._settings.worker_name}
        timeout = ClientTimeout(total=WAIT_MS_MAX / 1_000 + _SEVERAL_S, connect=_SEVERAL_S)
        try:
            async with self._group.http_client().get(
                url + request.path_qs, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                passed = {name: answer.headers[name] for name in _PASSED_HEADERS if name in answer.headers}
                return Response(status=answer.status, body=await answer.read(), headers=passed)
        except (ClientError, TimeoutError) as error:
            raise not_ready(f"the owner of partition {partition} does not answer: {type(error).__name__}") from error


def _partition_state(owner: PartitionOwner, stalled: StalledPartition | None) -> str:
    if owner.halted:
        return f"halted: {owner.halted}"
    if not owner.is_open:
        return "opening"
    return "open" if stalled is None else f"stands {stalled}"


def session_document(row: SessionState, question: Question, next_offset: int) -> dict[str, Any]:
    """Return the JSON document of a session, as `/openapi.json` describes it.

    It holds the committed state, its epoch and version, owner, content, limits and next deadline
    (ms of log time since the epoch), the last refused events, and the position that the state
    includes. `verdict` says what became of the record at `after`: "applied" or "refused" with the
    reason; None if the request had no `after`.
    """
    return {
        "session_id": row.session_id,
        "tenant_id": row.tenant_id,
        "state": row.state,
        "phase": row.phase,
        "epoch": row.epoch,
        "version": row.version,
        "owner_service": row.owner_service,
        "state_json": row.state_json,
        "state_schema_version": row.state_schema_version,
        "snapshot": row.snapshot._asdict(),
        "limits": row.limits._asdict(),
        "deadline_ms": _MACHINE.due_ms(row),
        "refusals": [refusal._asdict() for refusal in row.refusals],
        "verdict": None if question.after is None else _verdict_document(row, question.partition, question.after),
        "position": {"partition": question.partition, "next_offset": next_offset},
    }


def _verdict_document(row: SessionState, partition: int, offset: int) -> dict[str, Any]:
    reason = next((refusal.reason for refusal in row.refusals if refusal.offset == offset), None)
    outcome = "applied" if reason is None else "refused"
    return {"partition": partition, "offset": offset, "outcome": outcome, "reason": reason}


def _parse_after(text: str | None, partition: int) -> int | None:
    if text is None:
        return None
    first, colon, second = text.partition(":")
    if not colon:
        raise Problem(400, "invalid_value", "Bad after", f"after={text!r}: use <partition>:<offset>")
    if _parse_number("after", first) != partition:
        detail = f"after={text!r}: this session is in partition {partition}"
        raise Problem(400, "invalid_value", "Bad after", detail)
    return _parse_number("after", second)


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Problem(400, "invalid_value", f"Bad {name}", f"{name}={text!r}: use a whole number of 0 or more")
    return int(text)


def _json_response(document: object, status: int = 200) -> Response:
    return Response(status=status, body=json.dumps(document).encode(), content_type="application/json")


__all__ = ["WAIT_MS_DEFAULT", "WAIT_MS_MAX", "ControlApi", "Group", "Problem", "Question", "session_document"]
