"""The control API: one session's committed state, read-your-writes, and the worker's health.

    GET /v1/sessions/{session_id}?after=<partition>:<offset>&wait_ms=<ms>     bearer token → tenant
    POST /v1/sessions/poll     many sessions at once: see `session_poll`
    GET /healthz   GET /readyz   GET /metrics   GET /openapi.json

These pages only read. A request for another worker's partition is passed on to that worker; the
group's assignment holds its URL.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aiohttp.web import Request, Response

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import SessionKey, checked_session_id, partition_of
from sessionary.schemas.kafka.log_progress import StalledPartition
from sessionary.schemas.records import Gravestone, SessionState
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.api.problems import Problem, json_response, not_ready, parse_number
from sessionary.stream_processors.api.routing import WAIT_MS_MAX, OtherWorkers
from sessionary.stream_processors.api.session_poll import SessionPolls, parse_after, require_tenant
from sessionary.stream_processors.api.tokens.token_store import TokenStore
from sessionary.stream_processors.api.verdicts import verdict_document
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

WAIT_MS_DEFAULT = 5_000


class Question(NamedTuple):
    """A request for a session, validated."""

    key: SessionKey
    partition: int  # the session's
    after: int | None  # offset in that partition that must have been folded
    wait_s: float  # how long to wait for that


class ControlApi:
    """Answers the requests of one worker; `polls` answers those for many sessions.

    `alive` returns False once the worker is ending. `stalled` returns the open partitions that have
    stood still for long although their log goes on. `hung` returns which part of the worker hangs,
    so that only a new process helps; None: none does.
    """

    def __init__(
        self,
        settings: ProcessorSettings,
        tokens: TokenStore,
        assignment: Assignment,
        metrics: Metrics,
        others: OtherWorkers,
        alive: Callable[[], bool],
        stalled: Callable[[], Mapping[int, StalledPartition]],
        hung: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._metrics = metrics
        self._others = others
        self._alive = alive
        self._stalled = stalled
        self._hung = hung
        self._has_started = False
        self.polls = SessionPolls(settings, tokens, assignment, others)

    async def session(self, request: Request) -> Response:
        """Answer `GET /v1/sessions/{session_id}` with `session_document`. Raises `Problem`.

        Waits up to `wait_ms` until the record at `after` is folded.
        """
        question = self._parse_question(request)
        owner = self._assignment.owners.get(question.partition)
        if owner is None:
            return await self._others.pass_on(request, question.partition)
        return json_response(await self._read_session(owner, question))

    async def healthz(self, request: Request) -> Response:
        """Answer 200, or 503 once the worker is told to end, and while a part of it hangs.

        If its event loop hangs, there is no answer.
        """
        fault = self._hung() if self._alive() else "the worker is ending"
        return json_response({"status": "alive"}) if fault is None else not_ready(fault).to_response()

    async def readyz(self, request: Request) -> Response:
        """Answer 200 if the worker has started, is in its group, and its open partitions keep up.

        It has started once each partition that it owned was open or halted. A partition that is
        halted, or that opens later, says nothing of the others. The body names their states.
        """
        stalled, owners = self._stalled(), self._assignment.owners
        partitions = {
            str(partition): _partition_state(owner, stalled.get(partition))
            for partition, owner in sorted(owners.items())
        }
        keeps_up = not any(partition in stalled and owner.is_open for partition, owner in owners.items())
        ready = self._alive() and self._others.has_heard() and self._is_started() and keeps_up
        return json_response({"ready": ready, "partitions": partitions}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics in Prometheus' text format."""
        return Response(
            body=self._metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def openapi(self, request: Request) -> Response:
        """Answer with this API's OpenAPI document."""
        return json_response(DOCUMENT)

    def _is_started(self) -> bool:
        self._has_started = self._has_started or self._assignment.is_ready
        return self._has_started

    def _parse_question(self, request: Request) -> Question:
        tenant_id = require_tenant(self._tokens, request, request.query.get("tenant"))
        try:
            key = SessionKey(tenant_id, checked_session_id(request.match_info["session_id"]))
        except Invalid as error:
            raise Problem(400, "invalid_value", "Bad session id", error.detail) from None
        partition = partition_of(key.encoded(), self._settings.partitions)
        after = parse_after(request.query.get("after"), partition)
        wait_ms = parse_number("wait_ms", request.query.get("wait_ms", str(WAIT_MS_DEFAULT)))
        if wait_ms > WAIT_MS_MAX:
            raise Problem(400, "invalid_value", "Bad wait_ms", f"wait_ms must not exceed {WAIT_MS_MAX}")
        return Question(key, partition, after, wait_ms / 1_000)

    async def _read_session(self, owner: PartitionOwner, question: Question) -> dict[str, Any]:
        after = -1 if question.after is None else question.after
        if not await owner.wait_until_committed(after, question.wait_s):
            if not owner.is_readable:
                raise not_ready(f"partition {question.partition} is not open yet")
            next_offset = owner.state.position.next_offset
            raise not_ready(f"partition {question.partition} is at offset {next_offset}, not yet after {after}")
        if not self._others.has_heard(owner.committed_s):
            # Another worker may own the partition by now and have a newer state.
            raise not_ready("this worker has had no answer of its group for a session time-out")
        row = owner.state.rows.get(question.key.encoded())
        if row is None and owner.state.is_packed(question.key.encoded()):
            raise Problem(
                410, "session_archived", "Session archived", f"session {question.key.session_id} was archived"
            )
        if row is None:
            detail = f"tenant {question.key.tenant_id} has no session {question.key.session_id}"
            raise Problem(404, "unknown_session", "Unknown session", detail)
        if isinstance(row, Gravestone):
            detail = f"session {row.session_id} was archived ({row.reason_code})"
            raise Problem(410, "session_archived", "Session archived", detail)
        verdict = None
        if question.after is not None:
            key = question.key.encoded()
            verdict = verdict_document(owner.recent_outcomes, row, key, question.partition, question.after)
        return session_document(row, question, owner.state, verdict)


def _partition_state(owner: PartitionOwner, stalled: StalledPartition | None) -> str:
    if owner.halted:
        return f"halted: {owner.halted}"
    if not owner.is_readable:
        return "opening"
    return "open" if stalled is None else f"stands {stalled}"


def session_document(
    row: SessionState, question: Question, state: PartitionState, verdict: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the JSON document of a session, as `/openapi.json` describes it.

    It holds the committed state, its epoch and version, owner, content, limits, data classes and
    next deadline (ms of log time since the epoch), the last refused events, the position that the
    state includes, the version of the rules in force there, and the `verdict` on the record at
    `after`; None if the request had no `after`.
    """
    return {
        "session_id": row.session_id,
        "tenant_id": row.tenant_id,
        "state": row.state,
        "phase": row.phase,
        "reason_code": row.reason_code,
        "epoch": row.epoch,
        "version": row.version,
        "owner_service": row.owner_service,
        "agent_id": row.agent_id,
        "holder": row.holder or None,
        "state_json": row.state_json,
        "state_schema_version": row.state_schema_version,
        "snapshot": row.snapshot._asdict(),
        "limits": row.limits._asdict(),
        "data_classes": list(row.data_classes),
        "deadline_ms": state.deadline_ms(row),
        "refusals": [refusal._asdict() for refusal in row.refusals],
        "verdict": verdict,
        "position": {"partition": question.partition, "next_offset": state.position.next_offset},
        "rules": state.position.rules.version,
    }


__all__ = ["WAIT_MS_DEFAULT", "ControlApi", "Question", "session_document"]
