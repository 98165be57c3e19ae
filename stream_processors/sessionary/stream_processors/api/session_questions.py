"""Requests about one session: who may ask, which partition answers, and from which record on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from aiohttp.web import Request, Response, StreamResponse

from sessionary.schemas.ids import SessionKey, partition_of, partition_of_task, run_key, task_key
from sessionary.schemas.records import Position, RunTombstone, SessionState, Tombstone
from sessionary.schemas.snapshots import snapshot_document
from sessionary.schemas.types import OpenTransaction
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.problems import Problem, not_ready, parse_number
from sessionary.stream_processors.api.routing import WAIT_MS_MAX, OtherWorkers
from sessionary.stream_processors.api.session_poll import (
    parse_after,
    parse_session_id,
    require_reader,
    user_of,
    verdict_document,
)
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.session.clocks import waits_for_quota
from sessionary.stream_processors.core.session.people import hold_end_ms, is_answer_new
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

WAIT_MS_DEFAULT = 5_000
_END = "end"  # in `after`
# Passes a request on to the owner of a partition, and its answer back.
AskEnd = Callable[[int], Awaitable[int]]
"""Returns the high watermark of a partition of the events. Raises `Lost`."""
PassOn = Callable[[Request, int], Awaitable[StreamResponse]]
IsKnown = Callable[[PartitionOwner], bool]


class Question(NamedTuple):
    """A request for a session, validated."""

    key: SessionKey
    partition: int  # the session's
    after: int | None  # offset in that partition that must have been folded
    wait_s: float  # how long to wait for that
    caller: Caller  # who asks: parts of other users than its own are unknown
    to_end: bool = False  # all that the partition has when its owner is asked must have been folded


class AskedOwner(NamedTuple):
    """A request for a session, and the owner of its partition, which has folded `after`."""

    question: Question
    owner: PartitionOwner


class SessionQuestions:
    """Reads the requests about single sessions that one worker gets."""

    def __init__(
        self,
        settings: ProcessorSettings,
        tokens: TokenStore,
        assignment: Assignment,
        others: OtherWorkers,
        ask_end: AskEnd,
    ) -> None:
        self._ask_end = ask_end
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._others = others

    async def ask_owner(self, request: Request, answer_s: float | None = None) -> AskedOwner | Response:
        """Return the question and the owner, or the answer of another worker that is the owner.

        Waits up to `wait_ms` until the record at `after` is folded; `end`: all that the partition
        has now. `answer_s`: how long another worker may take, 10 s by default. Raises `Problem`.
        """
        question = self._parse_question(request)
        return await self._ask(request, question, _knows_rows(request, question), answer_s)

    async def ask_to_follow(self, request: Request, pass_on: PassOn) -> AskedOwner | StreamResponse:
        """Return what `ask_owner` returns, without a record for a verdict.

        A header `Last-Event-ID` overrides `after`. `pass_on` answers for another worker's
        partition.
        """
        question = self._parse_question(request, request.headers.get("Last-Event-ID"))
        owner = self._assignment.owners.get(question.partition)
        if owner is None:
            return await pass_on(request, question.partition)
        await self._require_known(owner, question, _knows_rows(request, question))
        return AskedOwner(question._replace(after=None), owner)

    async def ask_task(self, request: Request, task_id: str) -> AskedOwner | Response:
        """Return what `ask_owner` returns, for the session of a task named by its id alone.

        Raises `Problem`: 404 if the partition has no such task of the caller's tenant, 410 if the
        task has vanished.
        """
        caller, tenant_id = require_reader(self._tokens, request, request.query.get("tenant"))
        unknown = Problem(404, "unknown_task", "Unknown task", f"tenant {tenant_id} has no task {task_id}")
        partition = partition_of_task(task_id, self._settings.partitions)
        if partition is None:
            raise unknown
        asked = await self._ask(
            request,
            self._question_at(request, caller, SessionKey(tenant_id, ""), partition),
            lambda owner: _knows_task(owner, tenant_id, task_id, caller),
        )
        if isinstance(asked, Response):
            return asked
        session = asked.owner.state.tasks.find_session(tenant_id, task_id)
        if session is None:
            is_gone = asked.owner.state.is_packed(task_key(tenant_id, task_id)) and caller.may_see(None)
            raise gone_problem("task", task_id) if is_gone else unknown
        row = asked.owner.state.rows.get(run_key(*session, task_id))
        if not caller.may_see(user_of(row)):
            raise unknown
        if isinstance(row, RunTombstone):
            raise gone_problem("task", task_id)
        return AskedOwner(asked.question._replace(key=session), asked.owner)

    async def _ask(
        self, request: Request, question: Question, is_known: IsKnown, answer_s: float | None = None
    ) -> AskedOwner | Response:
        owner = self._assignment.owners.get(question.partition)
        if owner is None:
            return await self._others.pass_on(request, question.partition, answer_s)
        await self._require_known(owner, question, is_known)
        return AskedOwner(question, owner)

    def _parse_question(self, request: Request, after: str | None = None) -> Question:
        caller, tenant_id = require_reader(self._tokens, request, request.query.get("tenant"))
        key = SessionKey(tenant_id, parse_session_id(tenant_id, request.match_info["session_id"]).session_id)
        partition = partition_of(key.encoded(), self._settings.partitions)
        return self._question_at(request, caller, key, partition, after)

    def _question_at(
        self, request: Request, caller: Caller, key: SessionKey, partition: int, said_after: str | None = None
    ) -> Question:
        said = request.query.get("after") if said_after is None else said_after
        after = None if said == _END else parse_after(said, partition)
        wait_ms = parse_number("wait_ms", request.query.get("wait_ms", str(WAIT_MS_DEFAULT)))
        if wait_ms > WAIT_MS_MAX:
            raise Problem(400, "invalid_value", "Bad wait_ms", f"wait_ms must not exceed {WAIT_MS_MAX}")
        return Question(key, partition, after, wait_ms / 1_000, caller, said == _END)

    async def _require_known(self, owner: PartitionOwner, question: Question, is_known: IsKnown) -> None:
        if question.to_end:
            end = await self._find_end(question)
            if not await owner.wait_until_folded(end, question.wait_s):
                raise _behind(owner, owner.position, question, f"not yet at its end, {end}")
        await self._require_folded(owner, question)
        if not is_known(owner):
            # The caller may have read of it on a topic, in a transaction that is not merged yet.
            if not await owner.wait_until_merged(question.wait_s):
                raise not_ready(f"partition {question.partition} waits for the end of a transaction")
            await self._require_folded(owner, question)

    async def _find_end(self, question: Question) -> int:
        try:
            async with asyncio.timeout(question.wait_s):
                return await self._ask_end(question.partition)
        except (TimeoutError, Lost):
            raise not_ready(f"Kafka does not answer where partition {question.partition} ends") from None

    async def _require_folded(self, owner: PartitionOwner, question: Question) -> None:
        after = -1 if question.after is None else question.after
        if not await owner.wait_until_committed(after, question.wait_s):
            raise _behind(owner, owner.state.position, question, f"not yet after {after}")
        if not self._others.has_heard(owner.committed_s):
            # Another worker may own the partition by now and have a newer state.
            raise not_ready("this worker has had no answer of its group for a session time-out")


def _behind(owner: PartitionOwner, position: Position, question: Question, what: str) -> Problem:
    """Return the answer of an owner that has not folded what is asked for."""
    if not owner.is_readable:
        return not_ready(f"partition {question.partition} is not open yet")
    return not_ready(f"partition {question.partition} is at offset {position.next_offset}, {what}")


def _knows_rows(request: Request, question: Question) -> IsKnown:
    """Return whether an owner has, or had, the session, and the run if the path names one.

    What the caller may not see is not known either: else the time of the answer would tell.
    """
    keys, run_id = [question.key.encoded()], request.match_info.get("run_id")
    if run_id is not None:
        keys.append(run_key(*question.key, run_id))
    caller = question.caller
    return lambda owner: (
        all(_knows_row(owner, key) for key in keys)
        and (caller.user is None or caller.may_see(user_of(owner.state.rows.get(keys[-1]))))
    )


def _knows_row(owner: PartitionOwner, key: bytes) -> bool:
    return key in owner.state.rows or owner.state.is_packed(key)


def _knows_task(owner: PartitionOwner, tenant_id: str, task_id: str, caller: Caller) -> bool:
    session = owner.state.tasks.find_session(tenant_id, task_id)
    if session is None:
        return owner.state.is_packed(task_key(tenant_id, task_id)) and caller.may_see(None)
    return caller.may_see(user_of(owner.state.rows.get(run_key(*session, task_id))))


def gone_problem(what: Literal["run", "task"], name: str) -> Problem:
    """Return the answer about a finished run or task that is no longer kept."""
    return Problem(410, "run_gone", "Run gone", f"{what} {name} finished and is no longer kept")


def require_session(asked: AskedOwner) -> SessionState:
    """Return the session. Raises `Problem`: 404 if there is none, 410 if it was archived.

    A session of another user than the caller's is none, and to a user an archived one too: its
    user is not known any more.
    """
    key, state = asked.question.key, asked.owner.state
    row = state.rows.get(key.encoded())
    if not asked.question.caller.may_see(user_of(row)):
        raise unknown_session(key)
    if row is None and state.is_packed(key.encoded()):
        raise Problem(410, "session_archived", "Session archived", f"session {key.session_id} was archived")
    if isinstance(row, Tombstone):
        detail = f"session {row.session_id} was archived ({row.reason_code})"
        raise Problem(410, "session_archived", "Session archived", detail)
    if row is None:
        raise unknown_session(key)
    assert isinstance(row, SessionState)
    return row


def unknown_session(key: SessionKey) -> Problem:
    """Return the answer about a session that the tenant, or the caller's user, does not have."""
    detail = f"tenant {key.tenant_id} has no session {key.session_id}"
    return Problem(404, "unknown_session", "Unknown session", detail)


def log_document(asked: AskedOwner) -> dict[str, Any]:
    """Return the part about the log of every answer about a session.

    The verdict on the record at `after`, None if the request had none; the position that the state
    includes; the version of the rules in force there, and whether they have quotas.
    """
    question, owner = asked
    verdict, key = None, question.key.encoded()
    if question.after is not None:
        row = owner.state.rows.get(key)
        session = row if isinstance(row, SessionState) else None
        verdict = verdict_document(owner.recent_verdicts, session, key, question.partition, question.after)
    position = owner.state.position
    return {
        "verdict": verdict,
        "position": {"partition": question.partition, "next_offset": position.next_offset},
        "rules": position.rules.version,
        "quotas": position.rules.quotas,
    }


# The JSON document of a session, for its page and its followers.


def session_document(row: SessionState, asked: AskedOwner) -> dict[str, Any]:
    """Return the JSON document of a session, as `/openapi.json` describes it.

    It holds the committed state, its epoch and version, owner, content, limits, data classes and
    next deadline (ms of log time since the epoch), the last rejected events, the last migration,
    whether it waits for its tenant's quota, and `log_document`.
    """
    return {
        "session_id": row.session_id,
        "tenant_id": row.tenant_id,
        "external_id": row.external_id,
        "user_id": row.user_id,
        "state": row.state,
        "phase": row.phase,
        "reason_code": row.reason_code,
        "epoch": row.epoch,
        "version": row.version,
        "owner_service": row.owner_service,
        "agent_id": row.agent_id,
        "holder": row.holder or None,
        "holder_epoch": row.holder_epoch,
        "question": None if row.question is None else row.question._asdict(),
        "answers": [answer._asdict() for answer in row.answers],
        "is_answer_new": is_answer_new(row),
        "hold": hold_document(row),
        "state_json": row.state_json,
        "state_schema_version": row.state_schema_version,
        "snapshot": snapshot_document(row.snapshot),
        "limits": row.limits._asdict(),
        "data_classes": list(row.data_classes),
        "deadline_ms": asked.owner.state.deadline_ms(row),
        "agents": [agent._asdict() for agent in row.agents],
        "rejections": [rejection._asdict() for rejection in row.rejections],
        "migration": _migration_document(row),
        "awaits_quota": waits_for_quota(row),
        "exchanges": row.exchanges,
        "transactions": [_transaction_document(each) for each in row.transactions],
        "last_tool": row.last_tool,
        "last_result": row.last_result,
        **log_document(asked),
    }


def _transaction_document(transaction: OpenTransaction) -> dict[str, Any]:
    transaction_id, started_at, agent_id = transaction
    return {"transaction_id": transaction_id, "started_ms": started_at, "agent_id": agent_id}


def hold_document(row: SessionState) -> dict[str, Any] | None:
    """Return the JSON document of an operator's hold; None without one."""
    hold = row.hold
    return None if hold is None else {"by": hold.by, "until_ms": hold_end_ms(row, hold)}


def _migration_document(row: SessionState) -> dict[str, Any] | None:
    migration = row.migration
    if migration is None:
        return None
    document = migration._asdict()
    document["offered_at_ms"] = document.pop("offered_at")
    return {**document, "reason_code": migration.reason_code or None}
