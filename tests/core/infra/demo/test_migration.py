"""The trail of a session that moved: repeats count, rejections show, and stale events are found."""

import json
from typing import Any

from sessionary.infra.demo.migration import (
    EXAMPLE,
    MigrationReport,
    count_stale_events,
    describe_line,
    owners_in_turn,
    tell_trail,
)

GOOD: dict[str, Any] = {
    "owned_by": ["research", "payments", "shipping"],
    "epochs_with_two_owners": 0,
    "stale_events_accepted": 0,
    "approvals": 1,
    "migrations_completed": 1,
    "take_overs": 1,
    "tasks_done": 3,
    "tasks_done_twice": 0,
    "handovers_made": 2,
    "integrity_findings": 0,
}


def row(event_type: str, service: str = "research", **more: Any) -> dict[str, Any]:
    """Return a row as `queries.TRAIL` gives it."""
    found: dict[str, Any] = {
        "time": "2026-11-26T12:00:00.000Z",
        "service": service,
        "agent": "a",
        "event_type": event_type,
        "payload": {},
        "actor": "",
        "epoch": 1,
        "rejection": "",
        "owner": "research",
        "owner_epoch": 1,
        "epoch_before": 1,
    } | more
    return {**found, "payload": json.dumps(found["payload"])}


def work(**more: Any) -> dict[str, Any]:
    return row("session_activity", payload={"kind": "work", "text": None}, **more)


def test_what_a_service_repeats_is_one_line_also_between_lines_of_another_one() -> None:
    lines = tell_trail(
        [work(), row("session_migration_loaded", "payments"), work(), work(rejection="stale_epoch"), work()]
    )
    assert [(line["service"], describe_line(line), line["times"]) for line in lines] == [
        ("research", "session_activity: work", 2),
        ("payments", "session_migration_loaded", 1),
        ("research", "session_activity: work; rejected: stale_epoch", 1),
        ("research", "session_activity: work", 1),
    ]


def test_a_line_says_what_its_event_is_about() -> None:
    agent = {"agent_id": "a1", "service_id": "payments", "role": "analyzer"}
    answer = {"approved": True, "message": "fine"}
    lines = tell_trail(
        [
            row("agent_registered", payload=agent),
            row("agent_task_updated", payload={"task": "t", "completed": False}),
            row("agent_task_updated", payload={"task": "t", "completed": True}),
            row("context_synced", payload={"from_agent_id": "a", "to_agent_id": "b"}),
            row("state_updated", payload={"new_version": 2}),
            row("session_paused", payload={"question": "Buy?", "reason": "Buy?"}),
            row("session_resumed", "control-api", payload=answer, actor="ann"),
            row("session_resumed", payload={"approved": None, "message": None}),
            row("session_migration_offered", payload={"target_service": "payments", "reason": None}),
            row("session_terminated", payload={"reason": "completed", "message": "delivered"}),
        ]
    )
    assert [describe_line(line) for line in lines] == [
        "agent_registered: analyzer a1 of payments",
        "agent_task_updated: t begun",
        "agent_task_updated: t finished",
        "context_synced: a to b",
        "state_updated: version 2",
        "session_paused: Buy?",
        "session_resumed: approved: fine, by ann",
        "session_resumed: resumed",
        "session_migration_offered: to payments",
        "session_terminated: completed: delivered",
    ]


def test_an_event_of_an_epoch_that_is_over_is_stale_unless_it_confirms_a_clean_up() -> None:
    rows = [
        work(epoch=2, epoch_before=2, owner_epoch=2),
        row("session_taken_over", "payments", epoch=2, epoch_before=2, owner_epoch=3),  # it makes the next one
        work(epoch=2, epoch_before=3, rejection="stale_epoch"),
        row("resources_released", epoch=2, epoch_before=3),
    ]
    assert (count_stale_events(rows, accepted=True), count_stale_events(rows, accepted=False)) == (0, 1)
    rows.append(work(epoch=2, epoch_before=3))
    assert (count_stale_events(rows, accepted=True), count_stale_events(rows, accepted=False)) == (1, 1)


def test_owners_are_named_in_turn() -> None:
    owners = [{"service_id": name} for name in ("a", "a", "b", "a")]
    assert owners_in_turn(owners) == ["a", "b", "a"]
    assert owners_in_turn([]) == []


def test_each_figure_that_is_not_as_it_must_be_is_a_fault() -> None:
    def report(figures: dict[str, Any]) -> MigrationReport:
        return MigrationReport([], [], [], [], [], [], [], figures)

    assert report(dict(GOOD)).faults == {}
    for name in GOOD:
        assert report({**GOOD, name: 7}).faults == {name: 7}


def test_no_figure_has_the_name_of_a_table() -> None:
    assert set(GOOD).isdisjoint(MigrationReport._fields)


def test_the_services_of_the_example_are_those_of_the_report() -> None:
    text = (EXAMPLE / "services.py").read_text("utf-8")
    assert all(f'"{service}"' in text for service in GOOD["owned_by"])
