"""Folds a session's log twice, once with another result in one event, and compares the states.

Both folds are the processor's own rules over records in memory. Neither changes the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import to_json_text
from sessionary.producers.replay.errors import PointNotFound
from sessionary.producers.replay.record import fold_entry, unknown_session
from sessionary.producers.run_ports import LogEntry, RecordReads
from sessionary.producers.testing.memory import InMemoryTransport
from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.ids import SessionKey

# The field that is an event's result; of a message the text, of all others JSON.
_RESULTS: Final[Mapping[str, str]] = {
    "tool_call_succeeded": "result_json",
    "step_succeeded": "output_json",
    "run_completed": "result_json",
    "agent_task_updated": "result_json",
    "state_updated": "state_json",
    "txn_committed": "state_json",
    "message_appended": "content",
}


class Difference(NamedTuple):
    """What differs first after an event, between the log and the log with the other result.

    Attributes:
        offset: The event's.
        event_type: The event's.
        what: The row and its field, or the verdict, for people.
        recorded: The value by the log.
        simulated: The value with the other result.
    """

    offset: int
    event_type: str
    what: str
    recorded: str
    simulated: str

    def __str__(self) -> str:
        where = f"offset {self.offset}, {self.event_type}: {self.what}"
        return f"{where} is {self.simulated}, and was {self.recorded}"


class Simulation(NamedTuple):
    """The outcome of a simulation: the first difference, and how much differs at the end."""

    events: int
    first: Difference | None
    rows_differing: int


def simulate(reads: RecordReads, key: SessionKey, replaced: str, result: Json, timeout_s: float) -> Simulation:
    """Fold a session's log with another result in the event of an id or offset.

    Raises:
        SessionLost: There is no such session of this tenant.
        PointNotFound: The session has no such event.
        Invalid: The event has no result, or the value is none for it.
        NotReplayable: A record is of a newer version.
    """
    entries = [each for batch in reads.read_log(key, timeout_s) for each in batch]
    first = next((each for each in entries if each.key is not None), None)
    if first is None:
        raise unknown_session(key.session_id)
    place, other = _replace(entries, key.session_id, replaced, result)
    folds = [InMemoryTransport(1, now_ms=first.at_ms, outages=reads.has_times) for _ in range(2)]
    touched = set[bytes]()  # by the events that are not compared yet: comparing all rows each time takes too long
    found: Difference | None = None
    count = 0
    for entry in entries[entries.index(first) :]:
        if entry is place:
            for memory in folds:
                memory.core.judge.touched = touched
        verdicts = []
        for memory, its in zip(folds, (entry, other if entry is place else entry), strict=True):
            judged = fold_entry(memory, its, session_id=key.session_id, has_times=reads.has_times)
            verdicts.append(None if judged is None else (judged.outcome, judged.reason, judged.event_type))
        if verdicts[0] is not None:
            count += 1
            if found is None and entry.offset >= place.offset:
                found = _compare(entry.offset, verdicts, folds, touched)
                touched.clear()
    rows = [_by_name(memory.core.judge.list_rows(0)) for memory in folds]
    differing = sum(rows[0].get(name) != rows[1].get(name) for name in {*rows[0], *rows[1]})
    return Simulation(count, found, differing)


def _replace(entries: Sequence[LogEntry], session_id: str, replaced: str, result: Json) -> tuple[LogEntry, LogEntry]:
    """Return the entry of an event, and the same one with another result."""
    decoder = Decoder()
    for entry in entries:
        if entry.key is None:
            continue
        try:
            event = decoder.decode_event(entry.value)
        except DecodeError:
            continue  # of a newer version, or of none: the fold says it
        if isinstance(event, Event) and replaced in (event.envelope.event_id, f"{entry.offset}"):
            return entry, entry._replace(value=encode_event(_with_result(event, result)))
    raise PointNotFound(int(replaced) if replaced.isdecimal() else replaced, session_id)


def _with_result(event: Event, result: Json) -> Event:
    event_type = event.envelope.event_type
    field = _RESULTS.get(event_type)
    if field is None:
        raise Invalid(
            "invalid_value", f"a {event_type} has no result to replace: name one of {', '.join(sorted(_RESULTS))}"
        )
    text = result if field == "content" and isinstance(result, str) else to_json_text(result, "the result")
    payload: Any = event.payload
    return event._replace(payload=payload._replace(**{field: text}))


def _compare(
    offset: int, verdicts: Sequence[Any], folds: Sequence[InMemoryTransport], touched: Iterable[bytes]
) -> Difference | None:
    """Return what differs after an event that touched some rows; None if nothing does."""
    recorded, simulated = verdicts
    event_type = recorded[2]
    if recorded != simulated:
        return Difference(offset, event_type, "the verdict", *(_verdict_text(each) for each in verdicts))
    rows = []
    for memory in folds:
        its = ((key, memory.core.judge.find_child(0, key)) for key in touched)
        rows.append(_by_name((key, row) for key, row in its if row is not None))
    for name in sorted({*rows[0], *rows[1]}):
        one, other = rows[0].get(name), rows[1].get(name)
        if one == other:
            continue
        if one is None or other is None:
            texts = ("there is none" if each is None else "there" for each in (one, other))
            return Difference(offset, event_type, f"the row {name}", *texts)
        fields = zip(_fields_of(one), _fields_of(other), strict=False)
        field, was, now = next((pair[0][0], pair[0][1], pair[1][1]) for pair in fields if pair[0] != pair[1])
        return Difference(offset, event_type, f"{field} of the row {name}", f"{was!r:.300}", f"{now!r:.300}")
    return None


def _verdict_text(verdict: Any) -> str:
    outcome, reason, _ = verdict
    return f"{outcome}" if reason is None else f"{outcome} ({reason})"


def _fields_of(row: Any) -> Iterable[tuple[str, Any]]:
    pairs: Iterable[tuple[str, Any]] = row._asdict().items()
    return pairs


def _by_name(rows: Iterable[tuple[bytes, Any]]) -> dict[str, Any]:
    """Return rows by their kind and key, as text."""
    return {f"{type(row).__name__} {key.decode(errors='replace')!r}": row for key, row in rows}
