"""What became of a session that moved between services, from the rows in ClickHouse."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.migration_demo import queries
from sessionary.infra.migration_demo.trail import count_stale_events, owners_in_turn, tell_trail

RIGHT: Final[Mapping[str, Json]] = {
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


class MigrationReport(NamedTuple):
    """What happened in the session.

    `trail`: events of all services and decisions, in order. `owners`: the owner of each epoch.
    `migrations`, `waits`, `tasks` and `handovers`: as the views have them. `integrity`: what
    `v_integrity` says. `figures`: what must be right, see `faults`.
    """

    trail: list[Row]
    owners: list[Row]
    migrations: list[Row]
    waits: list[Row]
    tasks: list[Row]
    handovers: list[Row]
    integrity: list[Row]
    figures: dict[str, Json]

    @property
    def faults(self) -> dict[str, Json]:
        """The figures that are not as they must be."""
        return {name: self.figures[name] for name, value in RIGHT.items() if self.figures[name] != value}


def make_report(clickhouse: ClickHouseClient, tenant_id: str, session_id: str) -> MigrationReport:
    """Read what happened in the session. Blocks. Raises what `ClickHouseClient` raises."""
    moments, owners, migrations, waits, tasks, handovers, shared = (
        clickhouse.fetch_rows(statement, tenant=tenant_id, session=session_id)
        for statement in (
            queries.TRAIL,
            queries.OWNERS,
            queries.MIGRATIONS,
            queries.WAITS,
            queries.TASKS,
            queries.HANDOVERS,
            queries.SHARED_EPOCHS,
        )
    )
    integrity = clickhouse.fetch_rows(queries.INTEGRITY)
    freezes = [row["freeze_ms"] for row in migrations if row["step"] == "completed"]
    figures: dict[str, Json] = {
        "session_id": session_id,
        "owned_by": owners_in_turn(owners),
        "epochs": len(owners),
        "epochs_with_two_owners": shared[0]["epochs"],
        "stale_events_refused": count_stale_events(moments, accepted=False),
        "stale_events_accepted": count_stale_events(moments, accepted=True),
        "approvals": sum(row["answer"] == "approved" for row in waits),
        "migrations_completed": len(freezes),
        "freeze_ms": freezes[0] if freezes else None,
        "take_overs": sum(row["how"] == "taken_over" for row in owners),
        "claims_refused": sum(row["refusal"] == "owner_alive" for row in moments),
        "tasks_done": sum(row["times_done"] > 0 for row in tasks),
        "tasks_done_twice": sum(row["times_done"] > 1 for row in tasks),
        "handovers_made": len(handovers),
        "integrity_findings": len(integrity),
    }
    return MigrationReport(tell_trail(moments), owners, migrations, waits, tasks, handovers, integrity, figures)
