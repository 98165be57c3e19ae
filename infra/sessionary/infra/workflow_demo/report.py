"""What became of a workflow that was killed, from the rows in ClickHouse."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row

RUN = "SELECT status FROM v_runs WHERE session_id = {session:String} AND run_id = {run:String}"

# Each event of the run and each decision of the processor. `process` counts the clients that sent
# events in the session, from 1; null for a decision.
TRAIL = """
SELECT
    c.time AS time, if(c.actor = 'processor', NULL, p.number_of) AS process,
    c.event_type AS event_type, c.name AS name, c.number AS number, c.state AS state, c.reason AS reason,
    c.source_offset AS place
FROM
(
    SELECT * FROM v_causes
    WHERE session_id = {session:String} AND run_id = {run:String} AND event_type != 'run_running'
) AS c
LEFT JOIN
(
    SELECT source_partition, source_offset, producer_id
    FROM history FINAL WHERE session_id = {session:String} AND event_type NOT IN ('tick', 'heartbeat')
) AS h ON h.source_partition = c.source_partition AND h.source_offset = c.source_offset
LEFT JOIN
(
    SELECT producer_id, row_number() OVER (ORDER BY min(source_offset)) AS number_of FROM history FINAL
    WHERE session_id = {session:String} AND event_type NOT IN ('tick', 'heartbeat') GROUP BY producer_id
) AS p ON p.producer_id = h.producer_id
ORDER BY place, process"""

CALLS = """
SELECT tool_name, side_effect, state, try, effects, resolved_by
FROM v_tool_calls WHERE session_id = {session:String} AND run_id = {run:String} ORDER BY created_at"""

_STEP_EVENTS = {"step_started": "killed in it", "step_succeeded": "done", "step_failed": "failed"}
_STEP_EVENTS["step_skipped"] = "skipped"


class WorkflowReport(NamedTuple):
    """What a workflow did in two processes.

    `steps`: what each process made of each step. `trail`: the events and decisions of the run, in
    order. `calls`: its tool calls. `figures`: what must be right, see `faults`.
    """

    steps: list[Row]
    trail: list[Row]
    calls: list[Row]
    figures: dict[str, Json]

    @property
    def faults(self) -> dict[str, Json]:
        """The figures that are not as they must be."""
        right: dict[str, Json] = {
            "run": "completed",
            "messages_sent": 1,
            "requests_to_send": 1,
            "steps_done_twice": 0,
            "steps_skipped_unasked": 0,
        }
        return {name: self.figures[name] for name, value in right.items() if self.figures[name] != value}


def make_report(
    clickhouse: ClickHouseClient, session_id: str, run_id: str, messages_sent: int, requests_to_send: int
) -> WorkflowReport:
    """Read what the run did. Blocks. Raises what `ClickHouseClient` raises."""
    of_run = {"session": session_id, "run": run_id}
    trail = clickhouse.fetch_rows(TRAIL, **of_run)
    steps = step_table(trail)
    figures: dict[str, Json] = {
        "session_id": session_id,
        "run_id": run_id,
        "run": clickhouse.fetch_one(RUN, **of_run)["status"],
        "messages_sent": messages_sent,
        "requests_to_send": requests_to_send,
        "steps_skipped": sum(step["second_process"] == "skipped" for step in steps),
        "steps_done_twice": sum(step["first_process"] == step["second_process"] == "done" for step in steps),
        "steps_skipped_unasked": sum(
            step["second_process"] == "skipped" and step["first_process"] != "done" for step in steps
        ),
    }
    return WorkflowReport(steps, trail, clickhouse.fetch_rows(CALLS, **of_run), figures)


def step_table(trail: Sequence[Row]) -> list[Row]:
    """Return a row for each step: what the first and the second process made of it, and why."""
    found: dict[str, dict[int, str]] = {}
    reasons: dict[str, str] = {}
    for row in trail:
        name, made = row["name"], _STEP_EVENTS.get(row["event_type"])
        if made is None:
            continue
        found.setdefault(name, {})[1 if row["process"] == 1 else 2] = made
        if row["event_type"] == "step_skipped":
            reasons[name] = row["reason"]
    return [
        {
            "step": name,
            "first_process": made.get(1, "not begun"),
            "second_process": made.get(2, ""),
            "why": reasons.get(name) or _why_again(made, trail),
        }
        for name, made in found.items()
    ]


def _why_again(made: dict[int, str], trail: Sequence[Row]) -> str:
    """Return why a step was done by the second process."""
    if 1 not in made:
        return "the first process did not come to it"
    states = [row["state"] for row in trail if row["event_type"].startswith("tool_call_") and row["state"] == "unknown"]
    resolved = any(row["event_type"] == "tool_call_resolved" for row in trail)
    if states and resolved:
        return "its call was unknown; the messenger was asked by its key, and had sent it"
    return "it had not ended; its call only reads, and was made again"
