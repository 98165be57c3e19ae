"""One cheap question about many sessions: which of them differ from a client's knowledge?

    POST /v1/sessions/poll     bearer token → tenant

A client asks every few seconds for all its sessions. Only sessions that differ, or that rejected an
event, are in the answer. A worker answers for its own partitions, and asks the owners of the others
at once; the sessions of a partition without an answer are left out, and so is its position.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiohttp.web import Request, Response

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import GivenId, SessionKey, given_session_id, partition_of
from sessionary.schemas.records import FinishedRun, RunState, SessionState, Tombstone
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.problems import Problem, json_response, parse_number, parse_object
from sessionary.stream_processors.api.routing import OtherWorkers, was_passed_on
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.model import RecentVerdicts, RecordVerdict
from sessionary.stream_processors.core.sequencing import last_offsets
from sessionary.stream_processors.core.session.effects import REJECTIONS_KEPT
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

# The verdict on the record for which a request waits, as far as it is still known; pure.
#
# The session's row has its last rejections and each producer's last events. So every worker gives
# these answers, whichever worker judged the record. The worker that judged a record remembers, for
# a while, verdicts that no row has: on a repetition, a heartbeat, older events, or a rejection
# without a session.


_Judgement = tuple[str, str | None]  # outcome, and the reason of a rejection
_APPLIED: _Judgement = ("applied", None)
_NOT_KEPT: _Judgement = ("not_kept", None)


def verdict_document(
    recent: RecentVerdicts, row: SessionState | None, key: bytes, partition: int, offset: int
) -> dict[str, Any]:
    """Return the verdict on the session's record at `offset`, as `/openapi.json` describes it.

    Without a row there is no such session, or it is archived. `applied` is said only of an event
    that was applied, or of a repetition of one. `not_kept`: neither the row nor this worker knows
    the verdict.
    """
    found = None if row is None else _row_judgement(row, offset)
    outcome, reason = found or _recent_judgement(recent.find(offset, key), row)
    return {"partition": partition, "offset": offset, "outcome": outcome, "reason": reason}


def _row_judgement(row: SessionState, offset: int) -> _Judgement | None:
    rejections = row.rejections
    for rejection in rejections:
        if rejection.offset == offset:
            return "rejected", rejection.reason
    # An event judged by its number is applied, or in `rejections` until others push it out.
    is_rejection_kept = len(rejections) < REJECTIONS_KEPT or rejections[0].offset < offset
    if is_rejection_kept and any(offset in last_offsets(ledger) for ledger in row.producers):
        return _APPLIED
    return None


def _recent_judgement(found: RecordVerdict | None, row: SessionState | None) -> _Judgement:
    if found is None:
        return _NOT_KEPT
    if found.rejection is not None:
        return "rejected", found.rejection
    if found.duplicate_of is None:
        return _APPLIED
    if not found.duplicate_of or row is None:
        return _NOT_KEPT
    # A repetition has the verdict on the original. Every rejection that leaves a repetition is in
    # the row, until others push it out.
    reason = next((rejection.reason for rejection in row.rejections if rejection.event_id == found.duplicate_of), None)
    if reason is not None:
        return "rejected", reason
    return _APPLIED if len(row.rejections) < REJECTIONS_KEPT else _NOT_KEPT


SESSIONS_MAX = 1_000
_SLICE = 50  # rows that are read before other requests have their turn
_OTHERS_S = 3.0
_SAID_MAX = 128


class SessionQuestion(NamedTuple):
    """A client's knowledge of one session, validated."""

    key: SessionKey
    partition: int  # the session's
    state: str
    epoch: int
    holder: str | None  # the client's producer id, if it holds the session
    rejected_after: int  # offset up to which rejections are known; -1: none is
    after: int | None  # offset of an event whose verdict is wanted if there is no such session
    document: Mapping[str, Any]  # as it was asked
    producer_id: str | None = None  # the client's, in this session
    last_seq: int = 0  # the last number that it has given out
    agents: int | None = None  # how many the session has, as far as the client knows; None: it does not say


class SessionPolls:
    """Answers the polls of one worker."""

    def __init__(
        self,
        settings: ProcessorSettings,
        tokens: TokenStore,
        assignment: Assignment,
        others: OtherWorkers,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._others = others

    async def answer(self, request: Request) -> Response:
        """Answer `POST /v1/sessions/poll`, as `/openapi.json` describes it. Raises `Problem`.

        Waits at most 3 s for other workers.
        """
        body = await parse_object(request)
        caller, tenant_id = require_reader(self._tokens, request, body.get("tenant"))
        questions = self._parse_questions(tenant_id, body.get("sessions"))
        positions: dict[str, int] = {}
        found: list[dict[str, Any]] = []
        elsewhere: dict[str, list[Mapping[str, Any]]] = {}
        for partition, asked in _by_partition(questions).items():
            owner = self._assignment.owners.get(partition)
            if owner is not None:
                if self._may_answer(owner):
                    # Rows may be newer than the position, never older.
                    positions[f"{partition}"] = owner.state.position.next_offset
                    found += await _find_differences(owner, asked, caller)
            elif not was_passed_on(request) and (url := self._others.owner_url(partition)) is not None:
                elsewhere.setdefault(url, []).extend(question.document for question in asked)
        bodies = {url: json.dumps({**body, "sessions": asked}).encode() for url, asked in elsewhere.items()}
        for answer in (await self._others.ask_each(request, bodies, method="POST", timeout_s=_OTHERS_S)).values():
            if isinstance(answer, dict) and answer.keys() >= {"positions", "sessions"}:
                positions |= answer["positions"]
                found += answer["sessions"]
        return json_response({"tenant": tenant_id, "positions": positions, "sessions": found})

    def _may_answer(self, owner: PartitionOwner) -> bool:
        """Return whether a partition is open, and surely this worker's."""
        return owner.is_readable and self._others.has_heard(owner.committed_s)

    def _parse_questions(self, tenant_id: str, asked: Any) -> list[SessionQuestion]:
        if not isinstance(asked, list) or len(asked) > SESSIONS_MAX:
            detail = f"`sessions` must be a list of at most {SESSIONS_MAX}"
            raise Problem(400, "invalid_value", "Bad sessions", detail)
        return [self._parse_question(tenant_id, n, document) for n, document in enumerate(asked)]

    def _parse_question(self, tenant_id: str, n: int, document: Any) -> SessionQuestion:
        values = document if isinstance(document, dict) else {}
        session_id, state, epoch = values.get("session_id"), values.get("state"), values.get("epoch", 1)
        producer_id, last_seq = values.get("producer_id"), values.get("last_seq", 0)
        rejected_after, holder, after = values.get("rejected_after", -1), values.get("holder"), values.get("after")
        agents = values.get("agents")
        numbers = (epoch, rejected_after, last_seq, 0 if agents is None else agents)
        is_malformed = any(type(number) is not int for number in numbers)
        if is_malformed or not isinstance(session_id, str) or not isinstance(state, str):
            detail = (
                f"sessions[{n}]: session_id and state must be texts, "
                "epoch, rejected_after, last_seq and agents whole numbers"
            )
            raise Problem(400, "invalid_value", "Bad sessions", detail)
        if not all(isinstance(text, str | None) for text in (holder, after, producer_id)):
            detail = f"sessions[{n}]: holder, producer_id and after must be texts or null"
            raise Problem(400, "invalid_value", "Bad sessions", detail)
        key = SessionKey(tenant_id, parse_session_id(tenant_id, session_id, f"sessions[{n}]: ").session_id)
        partition = partition_of(key.encoded(), self._settings.partitions)
        place = parse_after(after, partition)
        return SessionQuestion(
            key, partition, state, epoch, holder, rejected_after, place, values, producer_id, last_seq, agents
        )


class Reader(NamedTuple):
    """The caller of a request, with the role reader, and its tenant."""

    caller: Caller
    tenant_id: str


def require_reader(tokens: TokenStore, request: Request, said: Any) -> Reader:
    """Return the caller of a request, by its token.

    Raises `Problem`: 401 without a known token; 403 if its caller is no reader, or is of another
    tenant than the client's, in `said`, which may be None.
    """
    caller = tokens.require_role(request.headers.get("Authorization"), "reader")
    assert caller.tenant is not None  # a reader has one
    if said is not None and said != caller.tenant:
        detail = f"the token is for {caller.tenant}, the client says {f'{said}'[:_SAID_MAX]}"
        raise Problem(403, "wrong_tenant", "Wrong tenant", detail)
    return Reader(caller, caller.tenant)


def tenant_of_operator(caller: Caller, said: str | None) -> str | None:
    """Return the tenant of an operator's request; None if neither token nor request names one.

    Raises `Problem` 403 if the request names another tenant than the operator's.
    """
    if caller.tenant is not None and said not in (None, caller.tenant):
        detail = f"the token is for {caller.tenant}, the client says {f'{said}'[:_SAID_MAX]}"
        raise Problem(403, "wrong_tenant", "Wrong tenant", detail)
    return caller.tenant or said


def parse_session_id(tenant_id: str, text: str, place: str = "") -> GivenId:
    """Return the session that a request names.

    Raises `Problem` 400, whose detail begins with `place`.
    """
    try:
        return given_session_id(tenant_id, text)
    except Invalid as error:
        raise Problem(400, "invalid_value", "Bad session id", f"{place}{error.detail}") from None


def parse_after(text: str | None, partition: int) -> int | None:
    """Return the offset in `<partition>:<offset>`.

    Raises `Problem` 400, also for another partition than the session's.
    """
    if text is None:
        return None
    first, colon, second = text.partition(":")
    if not colon:
        raise Problem(400, "invalid_value", "Bad after", f"after={text!r}: use <partition>:<offset>")
    if parse_number("after", first) != partition:
        detail = f"after={text!r}: this session is in partition {partition}"
        raise Problem(400, "invalid_value", "Bad after", detail)
    return parse_number("after", second)


def _by_partition(questions: Sequence[SessionQuestion]) -> dict[int, list[SessionQuestion]]:
    found: dict[int, list[SessionQuestion]] = {}
    for question in questions:
        found.setdefault(question.partition, []).append(question)
    return found


async def _find_differences(
    owner: PartitionOwner, asked: Sequence[SessionQuestion], caller: Caller
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for first in range(0, len(asked), _SLICE):
        if first:
            await asyncio.sleep(0)
        documents = (find_difference(owner, question, caller) for question in asked[first : first + _SLICE])
        found += [document for document in documents if document is not None]
    return found


def find_difference(owner: PartitionOwner, question: SessionQuestion, caller: Caller) -> dict[str, Any] | None:
    """Return the news of a session for its client, as `/openapi.json` describes them, or None.

    `state` is null if the tenant, or the caller's user, has no such session. The verdict on the
    event at `after` is given only if the session does not exist, or is archived; it is null if that
    event is not judged yet.
    `producer_seq` is above the number that the client has given out if another process uses its id.
    """
    key, state = question.key.encoded(), owner.state
    row = state.rows.get(key)
    is_archived = isinstance(row, Tombstone) or state.is_packed(key)
    if (row is not None or is_archived) and not caller.may_see(user_of(row)):
        row, is_archived, key = None, False, b""  # as a session that there never was: no verdict is of this key
    if isinstance(row, SessionState):
        rejections = [each._asdict() for each in row.rejections if each.offset > question.rejected_after]
        is_other = question.holder is not None and row.holder not in ("", question.holder)
        seq = _last_number(row, question.producer_id)
        is_same = (row.state, row.epoch) == (question.state, question.epoch) and seq <= question.last_seq
        is_same = is_same and question.agents in (None, len(row.agents))
        if not rejections and not is_other and is_same:
            return None
        return {
            "session_id": question.key.session_id,
            "state": row.state,
            "epoch": row.epoch,
            "holder": row.holder or None,
            "holder_epoch": row.holder_epoch,
            "snapshot_id": row.snapshot.snapshot_id,
            "reason_code": row.reason_code,
            "rejections": rejections,
            "verdict": None,
            "producer_seq": seq,
            "agents": len(row.agents),
            "owner_service": row.owner_service,
        }
    verdict = None
    if question.after is not None and question.after < state.position.next_offset:
        verdict = verdict_document(owner.recent_verdicts, None, key, question.partition, question.after)
    if is_archived and question.state == "Terminated" and (verdict is None or verdict["outcome"] != "rejected"):
        return None
    return {
        "session_id": question.key.session_id,
        "state": "Archived" if is_archived else None,
        "epoch": row.epoch if isinstance(row, Tombstone) else None,
        "holder": None,
        "holder_epoch": None,
        "snapshot_id": None,
        "reason_code": row.reason_code if isinstance(row, Tombstone) else None,
        "rejections": [],
        "verdict": verdict,
        "producer_seq": 0,
        "agents": 0,
        "owner_service": None,
    }


def user_of(row: object) -> str | None:
    """Return the user of a session's row, or of a run's; None without one, as once it is gone."""
    return row.user_id if isinstance(row, SessionState | RunState | FinishedRun) else None


def _last_number(row: SessionState, producer_id: str | None) -> int:
    """Return the last number of a producer that a session has seen; 0 if it has seen none."""
    if producer_id is None:
        return 0
    return next((ledger.last_seq for ledger in row.producers if ledger.producer_id == producer_id), 0)
