"""The oracle's model of sessions that move to another service."""

import hashlib
from typing import Any

from tests.auditor.decoding import NAME, Rejection, Row, cleanup_id_of, producer_hash
from tests.auditor.people_model import head_for_operator
from tests.auditor.turn_model import continue_duration, end_other_turn, stop_duration

MIGRATION_TYPES = frozenset(
    f"session_migration_{what}" for what in ("offered", "loaded", "accepted", "completed", "aborted")
)
RELEASE_ACTIONS = ("memory_cleanup", "close_connection", "release_context")
_STATES = ("Active", "Paused", "Timeout")


def open_migration(row: Row) -> Row | None:
    """Return a session's migration unless it is over."""
    migration: Row | None = row["migration"]
    return migration if migration is not None and migration["step"] in ("offered", "prepared") else None


def is_prepared(row: Row) -> bool:
    """Return whether a target proves that it has the session's state."""
    return (open_migration(row) or {}).get("step") == "prepared"


def is_held_for_migration(row: Row) -> bool:
    """Return whether a session was Active, and is Paused while a target takes it."""
    return is_prepared(row) and bool(row["migration"]["from"] == "Active")


def _digest(row: Row) -> str:
    return hashlib.sha256(row["state_json"].encode("utf-8")).hexdigest()


def is_fenced_again(row: Row, producer: str) -> bool:
    """Take a heartbeat of a past epoch; return whether one of the producer is rejected already.

    The row has sixteen producers of its epoch; what others send is always rejected.
    """
    epoch, fenced = row["fenced"] or (0, ())
    fenced = fenced if epoch == row["epoch"] else ()
    own = producer_hash(producer)
    if own not in fenced and len(fenced) < 16:
        row["fenced"] = (row["epoch"], (*fenced, own))
    return own in fenced


class MigrationModel:
    """What becomes of the last migration of a session: `row["migration"]`. Times are ms."""

    now: int
    cleanups: list[Row]

    def __init__(self) -> None:
        super().__init__()
        self.migrations: list[Row] = []  # the requests to targets

    def add_audit(self, row: Row | None, **details: Any) -> None:
        raise NotImplementedError

    def enter_state(self, key: bytes, row: Row, state: str, phase: str | None, number: str, **details: Any) -> None:
        raise NotImplementedError

    def check_migration_sender(self, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Raise `Rejection` unless the sender may send this step."""
        if kind == "session_migration_completed":
            raise Rejection("processor_only")
        if fields.get("as_operator"):
            return
        service, target = envelope["service_id"], (open_migration(row) or {}).get("target")
        allowed = {
            "session_migration_offered": {row["owner"]},
            "session_migration_aborted": {row["owner"], target},
        }.get(kind, {service if target is None else target})
        if service not in allowed:
            raise Rejection("not_owner")

    def judge_migration(self, key: bytes, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Apply a step, or raise `Rejection`."""
        step = kind.removeprefix("session_migration_")
        if step == "offered":
            self._offer(key, row, envelope, fields)
            return
        migration = open_migration(row)
        if migration is None or fields.get("migration_id") != migration["id"]:
            raise Rejection("unknown_migration")
        if step == "aborted":
            is_target = envelope["service_id"] == migration["target"] and not fields.get("as_operator")
            self.end_migration(key, row, "declined" if is_target else "called_off")
        elif step == "loaded":
            self._prepare(key, row, migration)
        else:
            self._accept(key, row, migration, envelope, fields)

    def _offer(self, key: bytes, row: Row, envelope: Row, fields: Row) -> None:
        if row["state"] not in _STATES:
            raise Rejection("illegal_transition")
        if row["state"] == "Timeout" and self.now >= row["max_due_at"]:
            raise Rejection("max_duration_exceeded")
        if open_migration(row) is not None:
            raise Rejection("migration_open")
        target, ttl = fields["target_service"], fields["ttl_ms"]
        if not NAME.fullmatch(target) or target == row["owner"] or not fields["migration_id"]:
            raise Rejection("invalid_value")
        if not 1_000 <= ttl <= 86_400_000 or (row["migration"] or {}).get("id") == fields["migration_id"]:
            raise Rejection("invalid_value")
        offer = {"id": fields["migration_id"], "target": target, "step": "offered", "ttl": ttl, "misses": 0, "why": ""}
        row["migration"] = {**offer, "at": self.now, "from": row["state"]}
        self._report(key, row, "offered")

    def _prepare(self, key: bytes, row: Row, migration: Row) -> None:
        if migration["step"] != "offered" or row["state"] not in _STATES:
            raise Rejection("illegal_transition")
        migration["from"] = row["state"]
        if row["state"] == "Active":
            head_for_operator(row)
            stop_duration(row, self.now)
            self.enter_state(
                key,
                row,
                "Paused",
                None,
                "T04",
                event_type="session_migration_loaded",
                reason_code="migration",
                snapshot_id=row["head"],
            )
        migration["step"] = "prepared"
        self._report(key, row, "prepared")

    def _accept(self, key: bytes, row: Row, migration: Row, envelope: Row, fields: Row) -> None:
        if migration["step"] != "prepared" or envelope["service_id"] != fields["target_service"]:
            raise Rejection("illegal_transition")
        if migration["from"] == "Timeout" and self.now >= row["max_due_at"]:
            raise Rejection("max_duration_exceeded")
        if (fields.get("version"), fields.get("content_hash")) != (row["version"], _digest(row)):
            migration["misses"] += 1
            if migration["misses"] == 3:
                self.end_migration(key, row, "state_differs")
            raise Rejection("migration_moved")
        former, row["owner"], row["agent"] = row["owner"], migration["target"], envelope["agent_id"]
        row["holder"], row["owner_heard"], migration["step"] = envelope["producer_id"], self.now, "completed"
        end_other_turn(row, row["holder"])
        row["epoch"] += 1
        row["holder_epoch"] = row["epoch"]
        row["audit_seq"] += 1
        cleanup = cleanup_id_of(row)
        row["cleanups"] = dict([*row["cleanups"].items(), (cleanup, False)][-8:])
        row["asked"][cleanup] = list(RELEASE_ACTIONS), former, 0  # an epoch that is over
        self.cleanups.append({"key": key, "cleanup_id": cleanup, "actions": list(RELEASE_ACTIONS)})
        self._audit(row, migration, "completed", from_service=former, cleanup_id=cleanup, reason_code="migrated")
        if migration["from"] == "Active":
            continue_duration(row, self.now)
            number = "T05"
        elif migration["from"] == "Timeout":
            row["released_at"] = None
            number = "T07"
        else:
            return
        self.enter_state(key, row, "Active", "processing", number, event_type="session_migration_accepted")

    def end_migration(self, key: bytes, row: Row, why: str, **times: int) -> None:
        """Forget the open migration; a session that it holds is let go."""
        migration = row["migration"]
        step, migration["step"], migration["why"] = migration["step"], "aborted", why
        row["audit_seq"] += 1
        self._audit(row, migration, "aborted", reason_code=why, **times)
        if step == "prepared" and migration["from"] == "Active" and why not in ("session_ended", "session_resumed"):
            continue_duration(row, self.now)
            self.enter_state(
                key,
                row,
                "Active",
                "processing",
                "T05",
                event_type="session_migration_aborted",
                reason_code="migration_aborted",
            )

    def fire_migration(self, key: bytes, row: Row, instant: int) -> None:
        """End a migration whose time is over."""
        why = "target_silent" if row["migration"]["step"] == "offered" else "expired"
        due, fired = instant * 1000, self.now * 1000
        self.end_migration(key, row, why, occurred_at=due, due_at=due, fired_at=fired)

    def _report(self, key: bytes, row: Row, step: str) -> None:
        migration = row["migration"]
        row["audit_seq"] += 1
        self._audit(row, migration, step, reason_code=step)
        self.ask_target(key, row)

    def ask_target(self, key: bytes, row: Row) -> None:
        """Ask the target of an open migration for its next step."""
        migration = row["migration"]
        step = migration["step"]
        asked = {"key": key, "migration_id": migration["id"], "service_id": migration["target"], "step": step}
        self.migrations.append({**asked, "epoch": row["epoch"], "version": row["version"]})

    def _audit(self, row: Row, migration: Row, step: str, **details: Any) -> None:
        details = {"from_service": row["owner"], **details}
        names = {"migration_id": migration["id"], "to_service": migration["target"], "migration_step": step}
        states = {"from_state": row["state"], "to_state": row["state"]}
        event_type = f"session_migration_{step}"
        self.add_audit(row, kind="migration", event_type=event_type, **names, **states, **details)
