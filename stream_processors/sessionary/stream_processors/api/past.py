"""The control API's page of a session's state at a point of its history.

    GET /v1/sessions/{session_id}/at?offset=… | time_ms=… | event=… | snapshot=…

Sources, in this order; the answer names the one that served:

    row      the owner's committed rows, if the point is the last record that it has folded
    memory   the last states that this worker told, for an hour
    log      the session's events are folded again from Kafka, by the judge

The state is the same, whichever served. It is compared with the hashes that the judge left.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from aiohttp.web import Request, Response

from sessionary.schemas.errors import Invalid, Unavailable
from sessionary.schemas.ids import SessionKey, is_run_key, run_key, split_child_key
from sessionary.schemas.records import Position, SessionState
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.api.problems import Problem, json_response, not_ready, parse_number
from sessionary.stream_processors.api.session_poll import user_of
from sessionary.stream_processors.api.session_questions import AskedOwner, SessionQuestions, unknown_session
from sessionary.stream_processors.core.past import HashCheck, PastState, Point, past_document
from sessionary.stream_processors.errors import Lost, PointUnknown, StateExpired
from sessionary.stream_processors.metrics import Metrics

Source = Literal["row", "memory", "log"]
# Session, partition, point, up to where the partition is folded, and when the session began (ms of
# log time), if known. Blocks; see `PastReader`.
ReadPast = Callable[[SessionKey, int, Point, Position, int | None], PastState]
_KEYS_SLICE: Final = 10_000  # of a partition's keys that are looked through at once
FOLD_S_MAX: Final = 600.0  # that a worker waits for another one's answer
_log = role_logger(__name__)


class PastStates:
    """The last states that were told, by session and point. The oldest one makes room."""

    def __init__(self, states_max: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic, in seconds. States are kept for `ttl_s`, `states_max` at most."""
        self._states_max, self._ttl_s, self._clock = states_max, ttl_s, clock
        self._states: OrderedDict[tuple[SessionKey, Point], tuple[float, PastState]] = OrderedDict()

    def find(self, session: SessionKey, point: Point) -> PastState | None:
        """Return a state that is kept; None if it is not, or is too old."""
        told_s, state = self._states.get((session, point), (0.0, None))
        if state is not None and self._clock() - told_s > self._ttl_s:
            del self._states[session, point]
            return None
        return state

    def keep(self, session: SessionKey, point: Point, state: PastState) -> None:
        """Keep a state."""
        self._states[session, point] = (self._clock(), state)
        self._states.move_to_end((session, point))
        while len(self._states) > self._states_max:
            self._states.popitem(last=False)


class Told(NamedTuple):
    """A state, and where it came from."""

    state: PastState
    source: Source


class PastPage:
    """Answers the requests for states at a point of one worker; one fold at a time."""

    def __init__(
        self,
        questions: SessionQuestions,
        metrics: Metrics,
        states: PastStates,
        read: ReadPast,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s`: the time in seconds since the epoch, by which personal data expires."""
        self._questions, self._metrics, self._states = questions, metrics, states
        self._read, self._now_s = read, now_s
        self._turn = asyncio.Semaphore(1)

    async def at(self, request: Request) -> Response:
        """Answer `GET …/at` with a `past_document`. Raises `Problem`."""
        asked = await self._questions.ask_owner(request, FOLD_S_MAX)
        if isinstance(asked, Response):
            return asked
        _require_known(asked)
        point = _parse_point(request.query)  # not before: a stranger learns nothing of the query
        told = await self._tell(asked, point, folds=request.query.get("fold") != "false")
        self._require_kept(told.state, point)
        return json_response(_document(asked, told, point))

    async def _tell(self, asked: AskedOwner, point: Point, *, folds: bool) -> Told:
        session, position = asked.question.key, asked.owner.state.position
        row = asked.owner.state.rows.get(session.encoded())
        is_last = isinstance(row, SessionState) and point == Point("offset", position.next_offset - 1)
        if is_last and (present := await _find_present(asked, position)) is not None:
            return Told(present, "row")
        if (kept := self._states.find(session, point)) is not None:
            return Told(kept, "memory")
        if not folds:
            detail = f"this worker does not hold the state at {point}; without fold=false it is folded from the log"
            raise Problem(404, "not_held", "Not held", detail)
        async with self._turn:
            if (kept := self._states.find(session, point)) is not None:  # folded for another request meanwhile
                return Told(kept, "memory")
            state = await self._fold(asked, point, position)
            if _is_settled(point, position):
                self._states.keep(session, point, state)
        return Told(state, "log")

    async def _fold(self, asked: AskedOwner, point: Point, position: Position) -> PastState:
        session, partition = asked.question.key, asked.question.partition
        row = asked.owner.state.rows.get(session.encoded())
        begun_ms = row.created_at if isinstance(row, SessionState) else None
        try:
            state = await asyncio.to_thread(self._read, session, partition, point, position, begun_ms)
        except PointUnknown as unknown:
            raise Problem(404, "no_such_point", "No such point", str(unknown)) from None
        except StateExpired as expired:
            raise Problem(410, "expired", "Expired", f"expired: {expired}") from None
        except (Lost, Unavailable) as trouble:
            raise not_ready(str(trouble)) from None
        except Invalid as broken:
            raise self._differing(f"session {session.session_id}: {broken.detail}") from None
        if state.check.verdict == "differs":
            raise self._differing(
                f"session {session.session_id}: its events, folded again up to {point}, do not lead to the state that "
                f"the judge held at offset {state.check.offset} of partition {partition}"
            )
        return state

    def _differing(self, detail: str) -> Problem:
        """Return the answer about a state that cannot be right; it pages."""
        self._metrics.state_hash_mismatches.labels("log").inc()
        _log.error("%(detail)s", detail=detail)
        return Problem(500, "state_differs", "State differs", f"{detail}; see the runbook, SessionaryStateCorrupt")

    def _require_kept(self, state: PastState, point: Point) -> None:
        """Raise `Problem` once the personal data expired of which the state was made."""
        until = state.personal_until
        if until is not None and until <= self._now_s() * 1_000_000:
            day = datetime.fromtimestamp(until / 1_000_000, UTC).date().isoformat()
            detail = f"expired on {day}: the state at {point} is made of personal data, which is kept for 30 days"
            raise Problem(410, "expired", "Expired", detail)


def _parse_point(query: Mapping[str, str]) -> Point:
    """Return the point that a request names. Raises `Problem` unless it names exactly one."""
    given = [name for name in ("offset", "time_ms", "event", "snapshot") if name in query]
    if len(given) != 1:
        detail = f"name one point by offset, time_ms, event or snapshot, not {len(given)}"
        raise Problem(400, "invalid_value", "Bad point", detail)
    (name,) = given
    text = query[name]
    if name in ("event", "snapshot"):
        return Point("event" if name == "event" else "snapshot", text)
    return Point("offset" if name == "offset" else "time", parse_number(name, text))


def _is_settled(point: Point, position: Position) -> bool:
    """Return whether no later record can belong to a point up to which a partition is folded.

    Others may have the very time that the clock shows, or an earlier one after a repair.
    """
    return point.kind != "time" or (int(point.value) < position.clock_ms and not position.clock_repairs)


def _require_known(asked: AskedOwner) -> None:
    """Raise `Problem` for a session that the caller's tenant, or user, does not have, or had."""
    key, state = asked.question.key, asked.owner.state
    row = state.rows.get(key.encoded())
    if not asked.question.caller.may_see(user_of(row)) or (row is None and not state.is_packed(key.encoded())):
        raise unknown_session(key)


def _document(asked: AskedOwner, told: Told, point: Point) -> dict[str, Any]:
    """Return the `past_document`, without the runs of other users than the caller's."""
    (key, partition, _, _, caller, _), (state, source) = asked.question, told
    hidden = {name for name, row in state.rows.items() if is_run_key(name) and not caller.may_see(user_of(row))}
    rows = {name: row for name, row in state.rows.items() if hidden.isdisjoint((name, _parent_of(name)))}
    document = past_document(state._replace(rows=rows), source, key, partition, point)
    if hidden and isinstance(state.row, SessionState):  # its hash stays that of the whole row
        runs = document["row"]["open_runs"]
        document["row"]["open_runs"] = [run for run in runs if run_key(*key, run["run_id"]) not in hidden]
    return document


def _parent_of(key: bytes) -> bytes | None:
    split = split_child_key(key)
    return None if split is None else split[0]


async def _find_present(asked: AskedOwner, position: Position) -> PastState | None:
    """Return the state that the owner holds now; None if it has folded on meanwhile.

    Nothing is checked: it is what the judge holds.
    """
    state, key = asked.owner.state, asked.question.key.encoded()
    listed, prefix, runs = state.keys_to_list(), key + b":", set[bytes]()
    for first in range(0, len(listed), _KEYS_SLICE):
        if first:
            await asyncio.sleep(0)
        runs.update(name for name in listed[first : first + _KEYS_SLICE] if name.startswith(prefix))
    if asked.owner.state is not state or state.position != position:
        return None
    names = [key, *state.children(key), *runs, *(name for run in runs for name in state.children(run))]
    found = {name: state.rows.get(name) for name in names}
    rows = {name: state.repair_times(each, position.clock_repairs) for name, each in found.items() if each is not None}
    check = HashCheck("equal", 0, position.next_offset - 1)
    offset, clock_ms = position.next_offset - 1, position.clock_ms
    chain = [rows[key].snapshot.snapshot_id]  # the row knows the last one
    return PastState(rows[key], rows, offset, clock_ms, rows[key].created_at, check, (), None, chain)
