"""Pages that list sessions, runs and questions over all partitions, a part at a time."""

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, get_args

from aiohttp.web import Request, Response

from sessionary.schemas.ids import SessionKey, is_run_key, run_key
from sessionary.schemas.records import (
    CleanupRequest,
    FinishedRun,
    MigrationRequest,
    QuotaNotice,
    RunState,
    SessionState,
    TaskRequest,
)
from sessionary.schemas.signatures import SigningKeys
from sessionary.schemas.types import RunMode, RunStateName, SessionStateName
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.problems import Problem, json_response, parse_number
from sessionary.stream_processors.api.routing import NoAnswer, OtherWorkers, was_passed_on
from sessionary.stream_processors.api.runs import RUN_CONTENTS, run_document
from sessionary.stream_processors.api.session_poll import parse_session_id, require_reader, tenant_of_operator, user_of
from sessionary.stream_processors.api.session_questions import hold_document
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.open_requests import OpenRequest, open_requests
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

CURSOR_CHARACTERS_MAX: Final = 2_000


class ListPart(NamedTuple):
    """A part of a list: documents by their keys, in the order of these.

    `end`: the key up to which no row is missing; None: there are no more rows. `positions`: the
    next offset of each partition that answered.
    """

    rows: Sequence[tuple[bytes, dict[str, Any]]]
    end: bytes | None
    positions: Mapping[str, int]


def merge_parts(parts: Iterable[ListPart], limit: int) -> ListPart:
    """Return the first `limit` rows of all parts, as far as all of them are complete."""
    parts = tuple(parts)
    ends = [part.end for part in parts if part.end is not None]
    end = min(ends, default=None)
    # While a partition changes hands, two workers may answer for it.
    by_key = {key: document for part in parts for key, document in part.rows}
    rows = sorted(by_key.items(), key=lambda row: row[0])
    if end is not None:
        rows = [row for row in rows if row[0] <= end]
    if len(rows) > limit:
        rows = rows[:limit]
        end = rows[-1][0]
    positions = {partition: at for part in parts for partition, at in part.positions.items()}
    return ListPart(rows, end, positions)


def cursor_of(key: bytes, keys: SigningKeys) -> str:
    """Return the cursor with which a list continues after a row; `key` lacks the tenant.

    It is sealed: a list may have ended at a row that its caller must not know.
    """
    return _text_of(keys.seal(key))


def _text_of(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def parse_cursor(text: str, keys: SigningKeys) -> bytes:
    """Return the key of a cursor. Raises `ValueError` for any other text."""
    if not text or len(text) > CURSOR_CHARACTERS_MAX:
        raise ValueError(f"a cursor has 1 to {CURSOR_CHARACTERS_MAX} characters")
    try:
        sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _text_of(sealed) != text:  # the decoder skips what it does not know
        raise ValueError("it has characters that no cursor has")
    return keys.unseal(sealed)


# One partition's part of a list, read in slices of a few milliseconds.
#
# No index by tenant is kept: the keys of the rows are in memory anyway, for the timers, and begin
# with the tenant. Only rows of the tenant are read, and not more than `ROWS_MAX` for one answer.


ROWS_MAX: Final = 1_000  # that are read for one answer of a partition
_KEYS_SLICE = 5_000  # keys that are looked at before other requests have their turn
_SLICE_S = 0.005  # how long rows are read before that; one row may take longer

Describe = Callable[[Any, PartitionState], dict[str, Any] | None]


class Wanted(NamedTuple):
    """The rows and documents of a list."""

    prefix: bytes  # with which the keys of the rows begin: the tenant's
    fits_key: Callable[[bytes], bool]  # whether a key may be of a row of the list
    describe: Describe  # a row's document; None if it is not of the list
    after: bytes  # the key after which the list begins, without the prefix
    limit: int


async def scan_partition(owner: PartitionOwner, wanted: Wanted) -> ListPart | None:
    """Return a partition's part of a list; None if the partition is not open, or lost meanwhile.

    Rows may be newer than the position, never older.
    """
    if not owner.is_readable:
        return None
    state = owner.state
    position = state.position.next_offset
    keys = await _next_keys(state, wanted)
    rows: list[tuple[bytes, dict[str, Any]]] = []
    begun_s = time.monotonic()
    for n, key in enumerate(keys):
        if n >= ROWS_MAX or len(rows) >= wanted.limit:
            return ListPart(rows, keys[n - 1][len(wanted.prefix) :], {f"{owner.partition}": position})
        if time.monotonic() - begun_s > _SLICE_S:
            await asyncio.sleep(0)
            begun_s = time.monotonic()
        if owner.state is not state or not owner.is_readable:
            return None
        row = state.rows.get(key)
        document = None if row is None else wanted.describe(row, state)
        if document is not None:
            rows.append((key[len(wanted.prefix) :], document))
    return ListPart(rows, None, {f"{owner.partition}": position})


async def _next_keys(state: PartitionState, wanted: Wanted) -> list[bytes]:
    """Return the first keys of the list, one more than are read, in order."""
    prefix, fits_key, after = wanted.prefix, wanted.fits_key, wanted.prefix + wanted.after
    listed = state.keys_to_list()
    found: set[bytes] = set()
    for first in range(0, len(listed), _KEYS_SLICE):
        if first:
            await asyncio.sleep(0)
        part = listed[first : first + _KEYS_SLICE]
        found.update(key for key in part if key.startswith(prefix) and key > after and fits_key(key))
        if len(found) > _KEYS_SLICE:
            found = set(sorted(found)[: ROWS_MAX + 1])
    return sorted(found)[: ROWS_MAX + 1]


# The control API's lists over all partitions, for the tenant, and the user, of the token.
#
#     GET /v1/runs?user_id=…&state=…&mode=…&limit=…&cursor=…        open and finished runs
#     GET /v1/sessions?user_id=…&state=…&limit=…&cursor=…           sessions that are not archived
#     GET /v1/waiting?tenant=…&limit=…&cursor=…     open questions; without a tenant: all of them
#     GET /v1/open-requests?tenant=…&session_id=…&limit=…&cursor=…  sessions with open requests
#
# A worker answers for its own partitions, and asks the owners of the others at once. Partitions
# that do not answer are named, and the others' rows are in the answer.


LIMIT_MAX = 1_000
LIMIT_DEFAULT = 100
RUN_STATES, RUN_MODES, SESSION_STATES = (
    tuple(name for name in get_args(names) if name not in ("UNKNOWN", "Archived"))
    for names in (RunStateName, RunMode, SessionStateName)
)

KeyOf = Callable[[dict[str, Any]], bytes]


class ListPages:
    """Answers the requests for lists of one worker, one after the other."""

    def __init__(
        self, settings: ProcessorSettings, tokens: TokenStore, assignment: Assignment, others: OtherWorkers
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._others = others
        self._turn = asyncio.Semaphore()

    async def runs(self, request: Request) -> Response:
        """Answer `GET /v1/runs` with a `run_head` for each run. Raises `Problem`."""
        caller, tenant_id = require_reader(self._tokens, request, request.query.get("tenant"))
        user_id = request.query.get("user_id")
        state, mode = _choice(request, "state", RUN_STATES), _choice(request, "mode", RUN_MODES)

        def describe(row: Any, committed: PartitionState) -> dict[str, Any] | None:
            if not isinstance(row, RunState | FinishedRun) or not _fits(row, caller, user_id, state):
                return None
            return run_head(row, committed) if mode in (None, row.mode) else None

        wanted = _wanted(request, tenant_id, is_run_key, describe, self._settings.keys)
        return await self._answer(request, "runs", wanted, _run_key)

    async def sessions(self, request: Request) -> Response:
        """Answer `GET /v1/sessions` with a `session_head` for each session. Raises `Problem`."""
        caller, tenant_id = require_reader(self._tokens, request, request.query.get("tenant"))
        user_id, state = request.query.get("user_id"), _choice(request, "state", SESSION_STATES)
        text = request.query.get("external_id")
        external_id = None if text is None else parse_session_id(tenant_id, text).external_id or ""

        def describe(row: Any, committed: PartitionState) -> dict[str, Any] | None:
            is_listed = isinstance(row, SessionState) and _fits(row, caller, user_id, state)
            is_listed = is_listed and external_id in (None, row.external_id)
            return session_head(row, committed) if is_listed else None

        wanted = _wanted(request, tenant_id, _is_session_key, describe, self._settings.keys)
        return await self._answer(request, "sessions", wanted, _session_key)

    async def waiting(self, request: Request) -> Response:
        """Answer `GET /v1/waiting` with a `waiting_head` for each question. Raises `Problem`."""

        def describe(row: SessionState, committed: PartitionState, _caller: Caller) -> dict[str, Any] | None:
            return waiting_head(row, committed) if row.question is not None else None

        return await self._answer_operator(request, "waiting", _is_session_key, describe)

    async def open_requests(self, request: Request) -> Response:
        """Answer `GET /v1/open-requests` with an `open_head` for each session that has some.

        Raises `Problem`.
        """
        given = request.query.get("session_id")
        is_named = None if given is None else _session_named(given)

        def fits_key(key: bytes) -> bool:
            return _is_session_key(key) and (is_named is None or is_named(key))

        return await self._answer_operator(request, "open_requests", fits_key, open_head)

    async def _answer_operator(
        self,
        request: Request,
        name: str,
        fits_key: Callable[[bytes], bool],
        describe: Callable[[SessionState, PartitionState, Caller], dict[str, Any] | None],
    ) -> Response:
        """Return a list of sessions of the caller's tenant; of all for an operator without one.

        `describe` gets rows of sessions only, which the caller may see.
        """
        caller, said = self._tokens.find_caller(request.headers.get("Authorization")), request.query.get("tenant")
        tenant_id: str | None
        if caller is None or "operator" not in caller.roles:
            caller, tenant_id = require_reader(self._tokens, request, said)
        else:
            tenant_id = tenant_of_operator(caller, said)

        def describe_visible(row: Any, committed: PartitionState) -> dict[str, Any] | None:
            is_visible = isinstance(row, SessionState) and caller.may_see(row.user_id)
            return describe(row, committed, caller) if is_visible else None

        wanted = _wanted(request, tenant_id or "", fits_key, describe_visible, self._settings.keys)
        if tenant_id is None:
            return await self._answer(request, name, wanted._replace(prefix=b""), _tenants_session_key)
        return await self._answer(request, name, wanted, _session_key)

    async def _answer(self, request: Request, name: str, wanted: Wanted, key_of: KeyOf) -> Response:
        """Return the list `name`; waits at most 3 s for other workers."""
        own, others = await asyncio.gather(self._own_parts(wanted), self._others_parts(request, name, key_of))
        merged = merge_parts([*own, *others], wanted.limit)
        answered = merged.positions.keys()
        missing = [n for n in range(self._settings.partitions) if f"{n}" not in answered]
        document = {
            name: [document for _, document in merged.rows],
            "next_cursor": None if merged.end is None else cursor_of(merged.end, self._settings.keys),
            "missing_partitions": missing,
            "positions": dict(merged.positions),
        }
        return json_response(document)

    async def _own_parts(self, wanted: Wanted) -> Sequence[ListPart]:
        found: list[ListPart] = []
        async with self._turn:
            for owner in [*self._assignment.owners.values()]:
                part = await scan_partition(owner, wanted)
                # Else another worker may own the partition by now and have newer rows.
                if part is not None and self._others.has_heard(owner.committed_s):
                    found.append(part)
        return found

    async def _others_parts(self, request: Request, name: str, key_of: KeyOf) -> Sequence[ListPart]:
        if was_passed_on(request):
            return ()
        elsewhere = set(range(self._settings.partitions)) - self._assignment.owners.keys()
        urls = {self._others.owner_url(partition) for partition in elsewhere} - {None}
        answers = await self._others.ask_all(request, [url for url in urls if url is not None])
        parts = (_part_of(answer, name, key_of, self._settings.keys) for answer in answers.values())
        return [part for part in parts if part is not None]


def _part_of(answer: Any, name: str, key_of: KeyOf, keys: SigningKeys) -> ListPart | None:
    """Return another worker's answer; None if it is no list."""
    if isinstance(answer, NoAnswer):
        return None
    try:
        cursor = answer["next_cursor"]
        rows = [(key_of(document), document) for document in answer[name]]
        return ListPart(rows, None if cursor is None else parse_cursor(cursor, keys), {**answer["positions"]})
    except (KeyError, TypeError, ValueError):
        return None  # a worker of another release


def _wanted(
    request: Request, tenant_id: str, fits_key: Callable[[bytes], bool], describe: Describe, keys: SigningKeys
) -> Wanted:
    """Read `limit` and `cursor`. Raises `Problem`."""
    limit = parse_number("limit", request.query.get("limit", f"{LIMIT_DEFAULT}"))
    if not 1 <= limit <= LIMIT_MAX:
        raise Problem(400, "invalid_value", "Bad limit", f"limit={limit}: use a number from 1 to {LIMIT_MAX}")
    cursor = request.query.get("cursor")
    try:
        after = b"" if cursor is None else parse_cursor(cursor, keys)
    except ValueError:
        detail = "cursor: use `next_cursor` of an answer, unchanged"
        raise Problem(400, "invalid_value", "Bad cursor", detail) from None
    return Wanted(f"{tenant_id}:".encode(), fits_key, describe, after, limit)


def _choice(request: Request, name: str, choices: Sequence[str]) -> str | None:
    """Return a parameter that is one of the choices, or absent. Raises `Problem`."""
    said = request.query.get(name)
    if said is not None and said not in choices:
        detail = f"{name}={said[:128]!r}: use one of {', '.join(choices)}"
        raise Problem(400, "invalid_value", f"Bad {name}", detail)
    return said


def _fits(row: SessionState | RunState | FinishedRun, caller: Caller, user_id: str | None, state: str | None) -> bool:
    return caller.may_see(row.user_id) and user_id in (None, row.user_id) and state in (None, row.state)


def _session_named(given: str) -> Callable[[bytes], bool]:
    """Return whether a session's key is that of an id which a caller gave; it raises `Problem`.

    A text names another session in each tenant. It is read once for each, not for each key.
    """

    @cache
    def key_of(tenant: bytes) -> bytes:
        tenant_id = tenant.decode()
        return SessionKey(tenant_id, parse_session_id(tenant_id, given).session_id).encoded()

    return lambda key: key == key_of(key.partition(b":")[0])


def _is_session_key(key: bytes) -> bool:
    return not is_run_key(key) and b"\0" not in key  # as the keys of children and contents have


def _run_key(document: dict[str, Any]) -> bytes:
    return f"{document['session_id']}:{document['run_id']}:".encode()


def _session_key(document: dict[str, Any]) -> bytes:
    return f"{document['session_id']}".encode()


def _tenants_session_key(document: dict[str, Any]) -> bytes:
    return f"{document['tenant_id']}:{document['session_id']}".encode()


def run_head(row: RunState | FinishedRun, state: PartitionState) -> dict[str, Any]:
    """Return the JSON document of a run in a list: as a `run_document`, without content."""
    document = {name: value for name, value in run_document(row, state).items() if name not in RUN_CONTENTS}
    return {"user_id": row.user_id, **document}


def session_head(row: SessionState, state: PartitionState) -> dict[str, Any]:
    """Return the JSON document of a session in a list. Times are ms of log time."""
    names = ("session_id", "external_id", "user_id", "state", "phase", "reason_code", "epoch", "version", "agent_id")
    return {
        **{name: getattr(row, name) for name in names},
        "owner_service": row.owner_service,
        "open_runs": len(row.open_runs),
        "created_ms": row.created_at,
        "entered_ms": row.entered_at,
        "last_event_ms": row.last_event_at,
        "deadline_ms": state.deadline_ms(row),
    }


def waiting_head(row: SessionState, state: PartitionState) -> dict[str, Any]:
    """Return the JSON document of a question that waits for a person. Times are ms of log time."""
    question = row.question
    assert question is not None
    names = ("tenant_id", "session_id", "user_id", "agent_id", "owner_service")
    return {
        **{name: getattr(row, name) for name in names},
        "question_id": question.question_id,
        "question": question.text,
        "asked_ms": row.entered_at,
        "deadline_ms": state.deadline_ms(row),
        "hold": hold_document(row),
    }


def open_head(row: SessionState, state: PartitionState, caller: Caller) -> dict[str, Any] | None:
    """Return the JSON document of a session with open requests; None if it has none."""
    requests = describe_open(row, state, caller)
    if not requests:
        return None
    names = ("tenant_id", "session_id", "owner_service", "state")
    return {**{name: getattr(row, name) for name in names}, "requests": requests}


def describe_open(row: SessionState, state: PartitionState, caller: Caller) -> list[dict[str, Any]]:
    """Return topic, id, service and a word for people of each open request of a session.

    Those for runs of other users than the caller's are left out.
    """
    found = open_requests(row, state.rows.get, state.position.clock_ms)
    return [_request_document(request) for request in found if caller.may_see(_user_of_request(row, request, state))]


def _user_of_request(row: SessionState, request: OpenRequest, state: PartitionState) -> str | None:
    """Return the user of the run that a request is for, or else of the session."""
    run_id = request.run_id if isinstance(request, TaskRequest | QuotaNotice) else ""
    return user_of(state.rows.get(run_key(row.tenant_id, row.session_id, run_id))) if run_id else row.user_id


def _request_document(request: OpenRequest) -> dict[str, Any]:
    match request:
        case CleanupRequest(cleanup_id=name, service_id=service_id, reason_code=what):
            return {"topic": "cleanup", "id": name, "service_id": service_id, "what": what}
        case TaskRequest(run_id=name, service_id=service_id, task_type=what):
            return {"topic": "tasks", "id": name, "service_id": service_id, "what": what}
        case MigrationRequest(migration_id=name, service_id=service_id, step=step):
            return {"topic": "migrations", "id": name, "service_id": service_id, "what": step}
        case QuotaNotice(run_id=run_id, session_id=session_id, quota=quota):
            return {"topic": "quotas", "id": run_id or session_id, "service_id": None, "what": quota}
