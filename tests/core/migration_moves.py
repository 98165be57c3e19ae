"""Draws the steps of a migration that random agents send."""

from random import Random
from typing import Any

from sessionary.schemas.ids import content_hash
from sessionary.schemas.records import SessionState

SERVICES = ("billing", "other", "shipping")
Step = tuple[str, dict[str, Any], str]  # event type, fields, service that sends it


def draw_migration_step(rng: Random, row: SessionState) -> Step:
    """Return a step of the open migration of a session, or an offer; some are wrong."""
    migration = row.migration
    if migration is None or not migration.is_open or rng.random() < 0.1:
        target = rng.choice([name for name in SERVICES if name != row.owner_service])
        fields = {
            "migration_id": rng.choice(["m1", "m2"]),
            "target_service": rng.choice([target] * 6 + [row.owner_service, "no name"]),
            "ttl_ms": rng.choice([4_000, 20_000, 30_000, 60_000, 999, 86_400_001]),
            "as_operator": rng.random() < 0.3,
        }
        return "session_migration_offered", fields, rng.choice([row.owner_service] * 5 + ["stranger"])
    name = rng.choice([migration.migration_id] * 8 + ["m3", None])
    target = rng.choice([migration.target_service] * 8 + [row.owner_service, "stranger"])
    if rng.random() < 0.15:
        service = rng.choice([row.owner_service, target, "stranger"])
        return "session_migration_aborted", {"migration_id": name, "as_operator": rng.random() < 0.3}, service
    if rng.random() < 0.05:
        return "session_migration_completed", {}, target
    if migration.step == "offered" and rng.random() < 0.9:
        return "session_migration_loaded", {"migration_id": name or "m3"}, target
    is_wrong = rng.random() < (0.8 if migration.mismatches else 0.3)  # the third time ends it
    fields = {
        "migration_id": name,
        "target_service": target,
        "version": row.version + (is_wrong and rng.randint(0, 1)),
        "content_hash": "0" * 64 if is_wrong else content_hash(row.state_json),
    }
    return "session_migration_accepted", fields, target
