"""A session's rows as a story: one moment for each event or deadline; pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sessionary.infra.story.event_text import Payload, event_name, event_text, one_line

Row = Mapping[str, Any]  # of ClickHouse, as decoded from JSON
_NO_STATE: Final = "UNKNOWN"  # before the session was created
_PROCESSOR_LANE: Final = "processor"
_UNKNOWN_LANE: Final = "unknown sender"  # of a record that cannot be read
_PHASE: Final = "session_phase_changed"
_WAITING: Final = "waiting"  # a turn has ended, and the session waits for its user
_CALL_STARTS: Final = frozenset({"tool_call_started", "step_started"})
_CALL_ENDS: Final = frozenset({"tool_call_succeeded", "tool_call_failed", "step_succeeded", "step_failed"})


class Usage(NamedTuple):
    """Tokens and cost of one call that was not rejected."""

    model: str
    tokens_in: int
    tokens_out: int
    cost_usd_nanos: int


class Moment(NamedTuple):
    """One event or deadline of a session.

    Attributes:
        at_us: Log time, µs since the epoch.
        place: Partition and offset of its record.
        event_type: The event's type; for a deadline, the type of the event that it represents.
        name: Short name: the kind of an activity, else the event's type.
        text: The event's content for people; for a deadline, the processor's description.
        lane: Agent and process, such as `agent-1` or `agent-1 #2`; `processor` for a deadline,
            `unknown sender` for a record that is no event.
        producer_id: The process; empty if there is none.
        took_s: Duration of an activity, until the same process's next event; of a tool call or a
            step, until its end. None without an end.
        states: The session's state before and after, if it changed.
        rejection: The reason for which the processor rejected the event; empty if it did not.
        notes: Further remarks of the audit trail, such as a gap.
        phases: The phases that the process went through before the event.
        usage: Tokens and cost, if any.
        payload: The event's payload; None if retention removed it, or if there is no event.
    """

    at_us: int
    place: tuple[int, int]
    event_type: str
    name: str
    text: str
    lane: str
    producer_id: str = ""
    took_s: float | None = None
    states: tuple[str, str] | None = None
    rejection: str = ""
    notes: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    usage: Usage | None = None
    payload: Payload | None = None


class Totals(NamedTuple):
    """The totals of a story; tokens and cost without rejected events."""

    tokens_in: int
    tokens_out: int
    cost_usd_nanos: int
    rejections: int
    lanes: tuple[str, ...]


def make_story(events: Iterable[Row], outcomes: Iterable[Row]) -> list[Moment]:
    """Return the moments of a session in the order of its log.

    Args:
        events: Rows of `history`, in the log's order, without heartbeats.
        outcomes: Rows of `audit`, in the log's order.

    Returns:
        One moment for each event, and one for each deadline that fired. But phases without a remark
        of the audit trail belong to the process's next event, except the end of a turn, and the end
        of a tool call or a step belongs to its start.
    """
    rows = list(events)
    by_place: dict[tuple[int, int], list[Row]] = {}
    for outcome in outcomes:
        by_place.setdefault(_place(outcome), []).append(outcome)
    lanes, busy_until, calls = _Lanes(), _next_times(rows), dict[str, int]()
    moments: list[Moment] = []
    phases: dict[str, list[Row]] = {}
    for number, row in enumerate(rows):
        judged = by_place.pop(_place(row), [])
        if row["event_type"] == _PHASE and not judged and _payload(row, {}).get("phase") != _WAITING:
            phases.setdefault(row["producer_id"], []).append(row)
            continue
        call = _call_id(row)
        if row["event_type"] in _CALL_ENDS and not judged and call in calls:
            start = calls.pop(call)
            moments[start] = _ended_call(moments[start], row)
            continue
        if row["event_type"] in _CALL_STARTS and not _rejection(judged):
            calls[call] = len(moments)
        before = tuple(f"{_payload(one, {}).get('phase')}" for one in phases.pop(row["producer_id"], []))
        moments.append(_event_moment(row, judged, lanes.lane_of(row), before, busy_until.get(number)))
    for left in phases.values():  # no event of the process followed
        moments += [_event_moment(row, [], lanes.lane_of(row), (), None) for row in left]
    moments += [_lone_moment(row) for judged in by_place.values() for row in judged]
    return sorted(moments, key=lambda moment: (moment.at_us, moment.place))


def add_totals(moments: Sequence[Moment]) -> Totals:
    """Return the totals of the moments."""
    usages = [moment.usage for moment in moments if moment.usage is not None]
    return Totals(
        sum(usage.tokens_in for usage in usages),
        sum(usage.tokens_out for usage in usages),
        sum(usage.cost_usd_nanos for usage in usages),
        sum(1 for moment in moments if moment.rejection),
        tuple(dict.fromkeys(moment.lane for moment in moments if moment.producer_id)),
    )


def describe_moment(moment: Moment) -> str:
    """Return a moment on one line: state change, text, rejection and notes."""
    parts = [f"rejected: {moment.rejection}"] if moment.rejection else []
    if moment.states:
        before = "" if moment.states[0] == _NO_STATE else f"{moment.states[0]} "
        parts.append(f"{before}→ {moment.states[1]}")
    parts += [moment.text] if moment.text else []
    parts += [f"after {', '.join(moment.phases)}"] if moment.phases else []
    return "; ".join([*parts, *moment.notes])


def time_us(text: str) -> int:
    """Return an ISO time of ClickHouse as µs since the epoch."""
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND


class _Lanes:
    """Names of processes: the agent's, with a number from the agent's second process on."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._processes: dict[str, int] = {}

    def lane_of(self, row: Row) -> str:
        agent, producer = f"{row['agent_id'] or row['service_id']}", f"{row['producer_id']}"
        if producer not in self._names:
            number = self._processes[agent] = self._processes.get(agent, 0) + 1
            self._names[producer] = agent if number == 1 else f"{agent} #{number}"
        return self._names[producer]


def _place(row: Row) -> tuple[int, int]:
    return row["source_partition"], row["source_offset"]


def _payload(row: Row, missing: Payload | None) -> Any:
    text = row["payload_json"]
    return json.loads(text) if text else missing


def _next_times(rows: Sequence[Row]) -> dict[int, int]:
    """Return when the process of each row sent its next event, by the row's number."""
    last: dict[str, int] = {}
    found: dict[int, int] = {}
    for number, row in enumerate(rows):
        if (former := last.get(row["producer_id"])) is not None:
            found[former] = time_us(row["occurred_at"])
        last[row["producer_id"]] = number
    return found


def _rejection(judged: Iterable[Row]) -> str:
    return next((f"{row['reason_code']}" for row in judged if row["kind"] == "rejection"), "")


def _event_moment(row: Row, judged: list[Row], lane: str, phases: tuple[str, ...], next_us: int | None) -> Moment:
    payload: Payload | None = _payload(row, None)
    event_type, rejection = f"{row['event_type']}", _rejection(judged)
    is_busy = event_type == "session_activity" and next_us is not None
    return Moment(
        at_us=time_us(row["appended_at"]),
        place=_place(row),
        event_type=event_type,
        name=event_name(event_type, payload or {}),
        text=event_text(event_type, payload),
        lane=lane,
        producer_id=row["producer_id"],
        took_s=max(next_us - time_us(row["occurred_at"]), 0) / 1e6 if is_busy and next_us is not None else None,
        states=_states(judged),
        rejection=rejection,
        notes=tuple(one_line(f"{one['kind']}: {one['reason']}") for one in judged if one["kind"] not in _REPORTED),
        phases=phases,
        usage=_usage(payload) if event_type == "usage_recorded" and payload and not rejection else None,
        payload=payload,
    )


def _call_id(row: Row) -> str:
    """Return the id that start and end of a tool call or a step have in common."""
    payload = _payload(row, {}) if row["event_type"].startswith("tool_call_") else {}
    return f"{payload.get('tool_call_id') or row['step_id'] or ''}/{row['producer_id']}"


def _ended_call(start: Moment, end: Row) -> Moment:
    """Return the start of a call, completed by its end."""
    payload = _payload(end, {})
    took_ms = payload.get("execution_time_ms")
    took_s = (time_us(end["appended_at"]) - start.at_us) / 1e6 if took_ms is None else took_ms / 1e3
    notes = (event_text(end["event_type"], payload),) if payload.get("error") else ()
    return start._replace(took_s=max(took_s, 0.0), notes=(*start.notes, *notes))


def _lone_moment(row: Row) -> Moment:
    """Return the moment of an outcome without an event: of a deadline, or of other bytes."""
    states, is_rejection = _states([row]), row["kind"] == "rejection"
    return Moment(
        at_us=time_us(row["fired_at"] or row["appended_at"]),
        place=_place(row),
        event_type=row["event_type"],
        name=event_name(row["event_type"], {}) if states else f"{row['kind']}",
        text=one_line(f"{row['reason'] or row['reason_code']}"),
        lane=_UNKNOWN_LANE if is_rejection else _PROCESSOR_LANE,
        states=states,
        rejection=_rejection([row]),
    )


def _states(judged: Iterable[Row]) -> tuple[str, str] | None:
    changed = [row for row in judged if row["kind"] == "transition"]
    return (f"{changed[0]['from_state']}", f"{changed[-1]['to_state']}") if changed else None


def _usage(payload: Payload) -> Usage:
    cost = payload["model_cost_usd_nanos"] + payload["tool_cost_usd_nanos"]
    return Usage(payload["model"] or "", payload["tokens_in"], payload["tokens_out"], cost)


_MICROSECOND: Final = datetime.resolution
_REPORTED: Final = frozenset({"transition", "rejection", "release"})  # by the moment's own fields
