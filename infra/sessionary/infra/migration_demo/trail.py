"""What happened in a session, in order, and what must never happen in it; pure."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from sessionary.infra.clickhouse_client import Json, Row

# The former owner of a session confirms its clean-up in the epoch that it had.
_OF_ANY_EPOCH: Final = ("resources_released",)


_ANSWERS: Final = {True: "approved", False: "refused", None: "resumed"}


def _joined(what: str, why: str | None) -> str:
    return f"{what}: {why}" if why else what


def _task(payload: Mapping[str, Json]) -> str:
    return f"{payload['task']} {'finished' if payload['completed'] else 'begun'}"


_TEXTS: Final[Mapping[str, Callable[[Mapping[str, Json]], str]]] = {
    "agent_registered": lambda payload: f"{payload['role']} {payload['agent_id']} of {payload['service_id']}",
    "agent_task_updated": _task,
    "context_synced": lambda payload: f"{payload['from_agent_id']} to {payload['to_agent_id']}",
    "session_activity": lambda payload: f"{payload['kind']}",
    "session_migration_completed": lambda payload: f"{payload['reason']}",
    "session_migration_offered": lambda payload: _joined(f"to {payload['target_service']}", payload["reason"]),
    "session_migration_prepared": lambda payload: f"{payload['reason']}",
    "session_paused": lambda payload: f"{payload['question'] or payload['reason']}",
    "session_resumed": lambda payload: _joined(_ANSWERS[payload["approved"]], payload["message"]),
    "session_terminated": lambda payload: _joined(payload["reason"], payload["message"]),
    "state_updated": lambda payload: f"version {payload['new_version']}",
}


def tell_trail(rows: Iterable[Row]) -> list[Row]:
    """Return a line for each event and decision, in order; `rows` are those of `queries.TRAIL`.

    What repeats the last line of its service counts there, in `times`.
    """
    lines: list[Row] = []
    last: dict[str, Row] = {}
    for row in rows:
        describe = _TEXTS.get(row["event_type"])
        line: Row = {
            "service": row["service"],
            "agent": row["agent"],
            "actor": row["actor"],
            "event": row["event_type"],
            "what": describe(json.loads(row["payload"])) if describe else "",
            "refusal": row["refusal"],
            "owner": row["owner"],
            "owner_epoch": row["owner_epoch"],
        }
        before = last.get(row["service"])
        if before is not None and line == {name: before[name] for name in line}:
            before["times"] += 1
            continue
        last[row["service"]] = {"time": row["time"], **line, "times": 1}
        lines.append(last[row["service"]])
    return lines


def describe_line(line: Row) -> str:
    """Return what a line of the trail says, for people: the event, and what became of it."""
    text = ": ".join(filter(None, (line["event"], line["what"])))
    by = f", by {line['actor']}" if line["actor"] else ""
    return f"{text}{by}" + (f"; refused: {line['refusal']}" if line["refusal"] else "")


def count_stale_events(rows: Iterable[Row], *, accepted: bool) -> int:
    """Return how many events spoke for an epoch that was over, and were accepted, or were refused.

    `rows` are those of `queries.TRAIL`.
    """
    return sum(
        row["epoch"] < row["epoch_before"] and accepted == (not row["refusal"])
        for row in rows
        if row["event_type"] not in _OF_ANY_EPOCH
    )


def owners_in_turn(owners: Sequence[Row]) -> list[str]:
    """Return the services that owned a session, in order; one of several epochs in a row once."""
    services = [row["service_id"] for row in owners]
    return [name for number, name in enumerate(services) if number == 0 or services[number - 1] != name]
