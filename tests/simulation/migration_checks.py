"""The rules of migrations by an account of its own: the log, the audit trail, and what was
reported.

An epoch has one owner, and only a migration or a take-over changes it. Nothing of a former epoch is
accepted. A session is held from its target's word that it has loaded it until it is accepted or the
migration ends, and each migration ends once. The oracle is not asked.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sessionary.schemas.ids import content_hash
from sessionary.schemas.records import AuditRecord, SessionState
from tests.auditor.decoding import ACTIVATION, VERDICT, Rejection, read_event
from tests.simulation.adapter import LogRecord
from tests.simulation.outputs import Life, Written, lives_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.world import World

# Heartbeats do not change a session, and not each rejection of one is reported.
WITHOUT_EPOCH = {"session_created", "resources_released", "heartbeat"}
POSSIBLE_WHILE_HELD = {
    *("tool_call_succeeded", "tool_call_failed", "tool_call_resolved", "usage_recorded"),
    *("resources_released", "heartbeat", "session_taken_over"),
    *("session_migration_accepted", "session_migration_aborted", "session_terminated"),
}
ENDS = ("completed", "aborted")
Event = tuple[str, dict[str, Any]]


class SessionAccount:
    """What is known of one life of a session, line by line and event by event."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.epoch, self.owner = 0, ""
        self.version, self.content = 1, ""
        self.move: tuple[str, str] | None = None  # id and step of the open migration
        self.held = False
        self.goes_on_at: int | None = None  # the offset at which a held session must be let go

    def take_line(self, line: AuditRecord) -> Iterator[str]:
        """Take the next line of the session's trail; yield what is wrong with it."""
        if self.goes_on_at is not None and (line.transition, line.source_offset) != ("T05", self.goes_on_at):
            yield f"its migration ended at {self.goes_on_at}, but {line.kind} {line.transition} came next"
        if line.transition in ("T05", "T09"):
            if self.held and line.transition == "T05" and self.goes_on_at is None:
                yield f"it was let go at {line.source_offset}, though its migration {self.move} goes on"
            self.held, self.goes_on_at = False, None
        if line.owner_service is not None:
            yield from self._take_owner(line, line.owner_service)
        if line.kind == "migration":
            yield from self._take_step(line)
        elif line.transition == "T04" and line.reason_code == "migration":
            self.held = True
        self.epoch = line.epoch

    def _take_owner(self, line: AuditRecord, owner: str) -> Iterator[str]:
        if self.owners.setdefault(line.epoch, owner) != owner:
            yield f"epoch {line.epoch} is {owner}'s, after {self.owners[line.epoch]}"
        is_given = line.migration_step == "completed" or line.kind == "take_over"
        if self.owner not in ("", owner) and not is_given:
            yield f"{line.kind} {line.transition} makes it {owner}'s, after {self.owner}"
        self.owner = owner

    def _take_step(self, line: AuditRecord) -> Iterator[str]:
        step, name = line.migration_step, line.migration_id or ""
        possible: dict[str | None, tuple[tuple[str, str] | None, ...]] = {
            "offered": (None,),
            "prepared": ((name, "offered"),),
            "completed": ((name, "prepared"),),
            "aborted": ((name, "offered"), (name, "prepared")),
        }
        if self.move not in possible[step]:
            yield f"{name} is {step} after {self.move}"
        if line.epoch != self.epoch + (step == "completed"):
            yield f"{name} is {step} at epoch {line.epoch}, after {self.epoch}"
        if step == "completed" and line.owner_service != line.to_service:
            yield f"{name} gives it to {line.to_service}, but it is {line.owner_service}'s"
        if step in ENDS:
            self.move = None
            self.goes_on_at = line.source_offset if self.held else None
        else:
            self.move = name, f"{step}"

    def take_event(self, event: Event) -> Iterator[str]:
        """Take an event that was accepted; yield why it should not have been."""
        event_type, fields = event
        envelope = fields["envelope"]
        if envelope["run_id"]:
            return  # detached runs go on at a former epoch, and while their session is held
        if envelope["epoch"] < self.epoch and event_type not in WITHOUT_EPOCH:
            yield f"{event_type} of epoch {envelope['epoch']} is accepted at {self.epoch}"
        if self.held and event_type not in POSSIBLE_WHILE_HELD:
            yield f"{event_type} is accepted while it is held for {self.move}"
        if event_type == "session_created":
            self.content = fields["snapshot"]["state_json"]
        elif event_type == "state_updated":
            self.version, self.content = fields["new_version"], fields["state_json"]
        elif event_type == "session_migration_accepted":
            has = fields["version"], fields["content_hash"]
            if has != (self.version, content_hash(self.content)):
                yield f"a target has {has}, but the session has version {self.version}, {self.content}"


def check_migrations(log: list[LogRecord], outputs: Written, rows: "Mapping[bytes, Any]") -> Iterator[str]:
    """Each rule above holds, and topic and clean-ups agree with the audit; `rows` are the last."""
    steps = [(key, line) for key, line in outputs.audits if line.kind == "migration"]
    if not steps and not outputs.migrations:
        return
    yield from _check_lives(log, outputs, rows)
    asked = [(key, line) for key, line in steps if line.migration_step not in ENDS]
    wanted = [
        (key, line.migration_id, line.migration_step, line.from_service, line.to_service, line.epoch, line.version)
        for key, line in asked
    ]
    reported = [
        (key, one.migration_id, one.step, one.from_service, one.service_id, one.epoch, one.version)
        for key, one in outputs.migrations
    ]
    if reported != wanted:
        yield f"the targets were notified of {reported}, the audit says {wanted}"
    requests = Counter((request.cleanup_id, request.service_id) for _, request in outputs.cleanups)
    for _, line in steps:
        if line.migration_step == "completed" and requests[f"{line.cleanup_id}", f"{line.from_service}"] != 1:
            yield f"{line.from_service} was not asked once to release {line.migration_id}"


def _check_lives(log: list[LogRecord], outputs: Written, rows: "Mapping[bytes, Any]") -> Iterator[str]:
    moved = {key for key, line in outputs.audits if line.kind in ("migration", "take_over")}
    lines: dict[bytes, list[tuple[Life, AuditRecord]]] = {key: [] for key in moved}
    for life, line in lives_of(outputs):
        if life[0] in moved:
            lines[life[0]].append((life, line))
    events = _accepted(log, outputs, moved)
    for key in sorted(moved):
        account, accepted = SessionAccount(), events.get(key, {})
        for life, line in lines[key]:
            if line.transition == "T01":
                account = SessionAccount()
            offset, is_clock = line.source_offset, line.event_id is None
            for past in [one for one in accepted if one < offset or (one == offset and not is_clock)]:
                yield from (f"{life}: {fault}" for fault in account.take_event(accepted.pop(past)))
            yield from (f"{life}: {fault}" for fault in account.take_line(line))
        yield from (f"{key!r}: {fault}" for event in accepted.values() for fault in account.take_event(event))
        row = rows.get(key)
        standing = row.migration if isinstance(row, SessionState) else None
        if account.move != ((standing and standing.is_open and (standing.migration_id, standing.step)) or None):
            yield f"{key!r}: its migration is {account.move} by the audit, {standing} in its row"
        if account.goes_on_at is not None:
            yield f"{key!r}: it is held, though its migration ended at {account.goes_on_at}"


def _accepted(log: list[LogRecord], outputs: Written, keys: set[bytes]) -> dict[bytes, dict[int, Event]]:
    """Return the events that were neither rejected nor repetitions, by session and offset."""
    rejected = {letter.source_offset for _, letter in outputs.rejected}
    births = {line.source_offset for _, line in outputs.audits if line.transition == "T01"}
    known: dict[bytes, set[tuple[str, int]]] = {}
    found: dict[bytes, dict[int, Event]] = {}
    for record in log:
        if record.key not in keys:
            continue
        try:
            event_type, fields = read_event(record.value)
        except Rejection:
            continue
        if event_type in ("tick", VERDICT, ACTIVATION):
            continue
        marks = known.setdefault(record.key, set())
        if record.offset in births:
            marks.clear()
        mark = fields["envelope"]["producer_id"], fields["envelope"]["producer_seq"]
        if record.offset not in rejected and (event_type == "heartbeat" or mark not in marks):
            found.setdefault(record.key, {})[record.offset] = event_type, fields
        if event_type != "heartbeat":
            marks.add(mark)
    return found


def count_migrations(world: "World", outputs: Written) -> None:
    """Count the steps and ends of migrations, and what came of a former owner."""
    seen = world.seen
    owners: dict[bytes, str] = {}
    held: set[bytes] = set()  # whose last line was the hold for a migration
    for key, line in outputs.audits:
        if line.kind == "migration":
            seen[f"migration: {line.migration_step}"] += 1
            if line.migration_step == "prepared":
                seen[f"migration: prepared in {'Active' if key in held else line.from_state}"] += 1
            elif line.migration_step == "aborted":
                seen[f"migration: aborted, {line.reason_code}"] += 1
        elif line.kind == "take_over" and owners.get(key) != line.owner_service:
            seen["migration: claimed by another service"] += 1
        if line.kind == "rejection" and line.reason_code == "stale_epoch" and line.service_id != line.owner_service:
            seen["migration: a former owner is rejected"] += 1
        if line.owner_service is not None:
            owners[key] = line.owner_service
        held = held | {key} if line.transition == "T04" and line.reason_code == "migration" else held - {key}
