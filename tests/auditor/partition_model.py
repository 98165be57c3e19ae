"""The oracle's model of one partition: its sessions, their deadlines, and the expected outputs."""

from typing import Any

from tests.auditor.child_model import ChildModel
from tests.auditor.decoding import (
    NAME,
    SKIPS,
    Decision,
    LogEntry,
    Rejection,
    Row,
    begun_rules,
    cleanup_id_of,
    key_parts,
    producer_hash,
)
from tests.auditor.migration_model import MigrationModel, is_held_for_migration, open_migration
from tests.auditor.people_model import drop_question, take_answer
from tests.auditor.rules import DAY_MS, DROP_ACTIONS, END_ACTIONS, ERROR_ACTIONS, RULES, TOMBSTONE_MS, grave_end
from tests.auditor.run_model import NEVER
from tests.auditor.skip_model import Decided, SkipModel
from tests.auditor.turn_model import continue_duration, end_other_turn, is_waiting


class PartitionModel(SkipModel, MigrationModel, ChildModel):
    """Sessions by key, and the audit lines, rejections and clean-ups so far. Times are in ms."""

    def __init__(self, number: int, partitions: int, outage_ms: int = 5_000, outage_grace_ms: int = 25_000) -> None:
        super().__init__()
        self.number, self.partitions, self.outage_ms, self.outage_grace_ms = (
            number,
            partitions,
            outage_ms,
            outage_grace_ms,
        )
        self.now = 0
        self.outage_grace_until = 0
        self.outage_end = 0
        self.believed_from = 0  # records below this offset do not move the clock
        self.rules = RULES  # the version of the rules in force
        self.announced: Decision | None = None
        self.begun: list[tuple[int, Decision]] = []  # from which offset on
        self.earliest = 0  # no deadline is before it: checking every row for every record would take minutes
        self.rows: dict[bytes, Row] = {}
        self.graves: dict[bytes, Row] = {}
        self.swept_day = -1  # when tombstones were dropped last
        self.audits: list[Row] = []
        self.rejected: list[Row] = []
        self.cleanups: list[Row] = []
        self.outcomes: dict[int, str] = {}
        self.decisions: list[Decision] = []  # that are still to come

    def next_due(self, row: Row) -> tuple[int, str]:
        """Return when the row's next deadline is, in ms, and its name."""
        instant, name = self.next_clock(row)
        migration = open_migration(row)
        if migration is not None and migration["at"] + migration["ttl"] <= instant:
            return migration["at"] + migration["ttl"], "migration"
        return instant, name

    def next_clock(self, row: Row) -> tuple[int, str]:
        """Return the same without the end of an open migration."""
        at, limits, state = row["entered_at"], row["limits"], row["state"]
        if state == "Idle" and self.is_queued(row):
            return self.queue_clock(row, self.outage_end)
        if state == "Idle":
            return at + limits["init_ms"], "init_timeout"
        if state == "Active" and is_waiting(row):
            return row["last_work_at"] + limits["user_idle_ms"], "user_idle"
        if state == "Active":
            budget = limits["model_ms"] + limits["tool_ms"] + limits["network_ms"]
            if row["answered"] and row["last_event_at"] <= at:  # perhaps no process runs that takes the answer
                budget = max(budget, limits["hold_ms"])
            idle = limits["idle_ms"] + (limits["hold_ms"] if row["answered"] and row["last_work_at"] <= at else 0)
            clocks = [(max(row["last_event_at"], self.outage_end) + budget, 0, "inactive")]
            clocks.append((max(row["last_work_at"], self.outage_end) + idle, 1, "idle"))
            clocks.append((row["max_due_at"], 2, "max_duration"))
            instant, _, name = min(clocks)
            return instant, name
        if state == "Terminated":
            if row["open_runs"]:
                return NEVER, "archived"  # it waits for them
            if row["released_at"] is not None:
                return max(row["released_at"], row["entered_at"]) + limits["archive_delay_ms"], "archived"
            return at + limits["release_limit_ms"], "archived"
        if row["hold"] is not None:
            return at + row["hold"][1], "timeout_cleanup"
        if row["question"] is not None:
            return at + row["question"][1], "expired"
        if is_held_for_migration(row):
            return NEVER, "timeout_cleanup"
        field = {"Paused": "hold_ms", "Timeout": "grace_ms", "Error": "recovery_ms"}[state]
        return at + limits[field], {"Error": "recovery_failed"}.get(state, "timeout_cleanup")

    def next_deadline(self) -> int | None:
        """Return the earliest time at which a deadline may fire."""
        return max(min(map(self.earliest_of, self.live_keys())), self.outage_grace_until) if self.live_keys() else None

    def live_keys(self) -> set[bytes]:
        """Return the keys of sessions with a deadline; of an archived one, a call may still run."""
        return self.rows.keys() | self.running.keys()

    def begin_announced_rules(self, entry: LogEntry) -> None:
        """Begin the announced rules if the record says so."""
        decision = self.announced
        if decision is None or entry.offset < decision.offset:
            return
        if begun_rules(entry) == decision.version and entry.is_signed:
            self.rules, self.announced = decision.version, None
            self.quotas, self.session_quotas = decision.quotas, decision.session_quotas
            self.resume_ms, self.token_quotas = decision.resume_ms, decision.token_quotas
            self.begun.append((entry.offset, decision))

    def take_decisions(self, offset: int) -> None:
        """Take the decisions that were made before the record at `offset`."""
        while self.decisions and self.decisions[0].offset <= offset:
            decision = self.decisions.pop(0)
            line: Row = {"source_partition": self.number, "source_offset": decision.offset, "kind": "decision"}
            if decision.event_type in SKIPS:
                line |= self.leave_offsets(decision)
                self.move_clock(decision.clock_ms)
            elif decision.version:
                self.announced = decision
                self.decided.append(Decided(decision.offset))
            else:
                self.set_clock(decision)
                self.decided.append(Decided(decision.offset))
            of_none = {"tenant_id": "", "session_id": "", "audit_seq": 0}
            self.audits.append({**line, **of_none, "event_type": decision.event_type})

    def move_clock(self, stamp: int) -> None:
        """Move the clock to a record's stamp, unless it is there; a long silence is an outage."""
        if stamp - self.now > self.outage_ms and self.live_keys():
            self.outage_end = stamp
            self.outage_grace_until = stamp + self.outage_grace_ms
        self.now = max(self.now, stamp)

    def set_clock(self, decision: Decision) -> None:
        """Set the clock; all sessions have as much time left as they had, or more."""
        passed, self.now = max(0, decision.clock_ms - self.now), decision.clock_ms
        self.outage_end, self.outage_grace_until = self.now, self.now + self.outage_grace_ms
        self.believed_from = decision.until_offset
        for row in self.rows.values():
            names = ["entered_at", "last_event_at", "last_work_at", "owner_heard", "released_at"]
            for name in [*names, "created_at"] if row["state"] == "Idle" else names:
                row[name] = row[name] and min(row[name] + passed, self.now)
            if row["migration"] is not None:
                row["migration"]["at"] = min(row["migration"]["at"] + passed, self.now)
            if row["state"] != "Paused" and not is_waiting(row) and row["max_due_at"] is not None:
                row["max_due_at"] = min(row["max_due_at"] + passed, self.now + row["limits"]["max_duration_ms"])
        self.repair_runs(passed)
        self.earliest = 0

    def drop_tombstones(self) -> None:
        """Drop what has expired; unlike deadlines that ignores the grace after an outage."""
        self.drop_finished_runs()
        if self.swept_day != self.now // DAY_MS:
            self.swept_day = self.now // DAY_MS
            self.graves = {key: grave for key, grave in self.graves.items() if grave_end(grave) > self.now}

    def fire_due(self) -> None:
        while ripe := [
            (due, name, key) for key in self.live_keys() for due, name in self.deadlines_of(key) if due <= self.now
        ]:
            instant, name, key = min(ripe)
            if name in self.children:
                self.fire_child(key, name, instant)
                continue
            if name != key:
                self.fire_run(key, name, instant, self.run_due(self.runs[name])[1])
                continue
            row = self.rows[key]
            self.fire_deadline(key, row, instant, self.next_due(row)[1])
            self.follow_session(key, row)
        self.earliest = min(map(self.earliest_of, self.live_keys()), default=1 << 62)

    def deadlines_of(self, key: bytes) -> list[tuple[int, bytes]]:
        """Return when a session, its open runs and running children are due, with their keys."""
        due = [(self.children[name]["due_at"], name) for name in self.running.get(key, ())]
        if key in self.rows:
            due += [(self.run_due(self.runs[name])[0], name) for name in self.rows[key]["open_runs"]]
            due.append((self.next_due(self.rows[key])[0], key))
        return due

    def earliest_of(self, key: bytes) -> int:
        return min(self.deadlines_of(key))[0]

    def fire_deadline(self, key: bytes, row: Row, instant: int, reason: str) -> None:
        if reason == "migration":
            self.fire_migration(key, row, instant)
            return
        before, due, fired = row["state"], instant * 1000, self.now * 1000
        details: Row = {"reason_code": reason, "occurred_at": due, "due_at": due, "fired_at": fired}
        if before == "Terminated":
            self.enter_state(key, row, "Archived", None, "T14", event_type="session_archived", **details)
            grave = {name: row[name] for name in ("tenant", "session", "producers", "audit_seq", "epoch")}
            for ledger in row["producers"].values():
                ledger["ids"] = {}
            grave["expires_at"] = self.now + TOMBSTONE_MS
            if grave_end(grave) > self.now:
                self.graves[key] = grave
            del self.rows[key]
            self.drop_children(key, key)
        elif reason == "user_idle":
            details |= {"event_type": "session_terminated"}
            self.enter_state(key, row, "Terminated", "releasing", "T13", DROP_ACTIONS, **details)
        elif before == "Active":
            self.enter_state(
                key, row, "Timeout", "cleaning", "T06", DROP_ACTIONS, event_type="session_timed_out", **details
            )
        elif row["question"] is not None and row["hold"] is None:
            take_answer(row, "expired")
            continue_duration(row, self.now)
            self.enter_state(key, row, "Active", "processing", "T05", event_type="session_resumed", **details)
        else:
            row["hold"] = None
            drop_question(row)
            number = {"Idle": "T03", "Timeout": "T08", "Paused": "T09", "Error": "T12"}[before]
            name = "session_start_failed" if before == "Idle" else "session_terminated"
            actions = {"Idle": END_ACTIONS, "Error": ERROR_ACTIONS}.get(before, DROP_ACTIONS)
            if before == "Timeout" and row["released_at"] is not None:
                actions = ()
            self.enter_state(key, row, "Terminated", "releasing", number, actions, event_type=name, **details)

    def enter_state(
        self,
        key: bytes,
        row: Row,
        state: str,
        phase: str | None,
        number: str,
        actions: tuple[str, ...] = (),
        **details: Any,
    ) -> None:
        """Move a session to a state: audit line, clean-up request, counters."""
        for one in [*row["transactions"]] if state == "Terminated" else ():
            self.end_transaction(row, one, "txn_rolled_back", "session_ended")
        before, row["state"], row["entered_at"] = row["state"], state, self.now
        is_kept = state == "Paused" or (before == "Paused" and state == "Active")
        if is_waiting(row) and state == "Error":
            row["max_due_at"] += self.now
        row["phase"] = "waiting" if is_waiting(row) and is_kept else phase
        if number in ("T05", "T07", "T11") and not details.get("event_type", "").startswith("session_migration_"):
            row["epoch"] += 1
        row["last_event_at"] = row["last_work_at"] = self.now
        row["answered"] = details.get("reason_code") in ("approved", "denied", "expired")
        row["audit_seq"] += 1
        wanted: Row = {"cleanup_id": None, "cleanup_actions": []}
        if actions:
            wanted = {"cleanup_id": cleanup_id_of(row), "cleanup_actions": list(actions)}
            row["cleanups"] = dict([*row["cleanups"].items(), (wanted["cleanup_id"], False)][-8:])
            row["asked"][wanted["cleanup_id"]] = list(actions), row["owner"], row["epoch"]
            self.cleanups.append({"key": key, "cleanup_id": wanted["cleanup_id"], "actions": list(actions)})
        self.add_audit(
            row, kind="transition", transition=number, from_state=before, to_state=state, **wanted, **details
        )
        is_migration = details.get("event_type", "").startswith("session_migration_")
        self.last_transition, self.last_reason = "" if is_migration else number, details.get("reason_code", "")
        open_one = open_migration(row)
        if state == "Terminated":
            self.free_slot(row)
        if state == "Terminated" and open_one is not None:
            self.end_migration(key, row, "session_ended")
        elif number == "T05" and open_one is not None and open_one["step"] == "prepared":
            self.end_migration(key, row, "session_resumed")

    def end_transaction(self, row: Row, one: tuple[str, int, str], event_type: str, code: str) -> None:
        """Take a transaction from the open ones, if it is one, with its audit line."""
        row["transactions"] = [each for each in row["transactions"] if each[0] != one[0]]
        row["audit_seq"] += 1
        states = {"from_state": row["state"], "to_state": row["state"]}
        self.add_audit(
            row, kind="transaction", event_type=event_type, reason_code=code, transaction_id=one[0], **states
        )

    def ask_again(self, key: bytes, row: Row) -> None:
        """Ask again for what is open; the line comes before the requests."""
        row["audit_seq"] += 1
        states = {"from_state": row["state"], "to_state": row["state"]}
        self.add_audit(row, kind="repeat", event_type="requests_repeated", reason_code="asked_again", **states)
        for cleanup_id, is_released in row["cleanups"].items():
            actions, service, epoch = row["asked"][cleanup_id]
            stopped = row["state"] in ("Timeout", "Terminated") or (row["state"] == "Error" and epoch == row["epoch"])
            if not is_released and (stopped or service != row["owner"]):
                self.cleanups.append({"key": key, "cleanup_id": cleanup_id, "actions": actions})
        if open_migration(row) is not None:
            self.ask_target(key, row)
        self.ask_claims_again(key, row)

    def take_over(self, key: bytes, row: Row, envelope: Row, fields: Row) -> None:
        """Let the sender hold the session, or raise `Rejection`."""
        limits, service = row["limits"], envelope["service_id"]
        if service != row["owner"] and not fields.get("as_operator"):
            heard = max(row["owner_heard"] or row["last_event_at"], self.outage_end)
            third = (limits["model_ms"] + limits["tool_ms"] + limits["network_ms"]) // 3
            if self.now < heard + third:
                raise Rejection("owner_alive")
        former = f"{row['agent']} of {row['owner']}" + (f" (process {row['holder']})" if row["holder"] else "")
        row["agent"], row["owner"], row["holder"] = envelope["agent_id"], service, envelope["producer_id"]
        reason = f"{row['agent']} of {service} (process {row['holder']}) took over from {former}"
        reason += f": {fields['reason']}" if fields.get("reason") else ""
        end_other_turn(row, row["holder"])
        row["epoch"] += 1
        row["holder_epoch"] = row["epoch"]
        row["audit_seq"] += 1
        states = {"from_state": row["state"], "to_state": row["state"]}
        self.add_audit(row, kind="take_over", event_type="session_taken_over", reason=reason, **states)
        if open_migration(row) is not None:
            self.end_migration(key, row, "taken_over")

    def make_room_for(self, row: Row, producer: str, seq: int) -> None:
        """Enter a producer that the ledger does not list; another one may go."""
        listed, forgotten, epoch, own = row["producers"], row["forgotten"], row["epoch"], producer_hash(producer)
        last = forgotten[own][0] if own in forgotten else 0
        if seq <= last:
            raise Rejection("late_filler")
        if len(listed) == 64:
            past = [name for name, ledger in listed.items() if ledger["epoch"] < epoch] or list(listed)
            gone = min(past, key=lambda name: listed[name]["at"])
            if len(forgotten) - (own in forgotten) == 1_024:
                others = {key: entry[1] for key, entry in forgotten.items() if key != own}
                oldest = min(others, key=lambda key: others[key])
                if others[oldest] == epoch:
                    raise Rejection("too_many_producers")
                del forgotten[oldest]
            ledger = listed.pop(gone)
            forgotten[producer_hash(gone)] = (ledger["last"], ledger["epoch"])
        forgotten.pop(own, None)
        missing = [(1, last)] if last else []
        listed[producer] = {"last": last, "missing": missing, "epoch": 0, "at": 0, "unsure": last, "ids": {}}

    def confirm_release(self, row: Row, fields: Row) -> None:
        cleanup_id, actions = fields["cleanup_id"], fields["actions"]
        if cleanup_id not in row["cleanups"]:
            raise Rejection("unknown_cleanup")
        if row["cleanups"][cleanup_id]:
            raise Rejection("already_released")
        row["cleanups"][cleanup_id] = True
        if row["state"] == "Timeout":
            row["phase"] = "released"
        if row["state"] in ("Timeout", "Terminated") and row["released_at"] is None:
            row["released_at"] = self.now
        row["audit_seq"] += 1
        self.add_audit(
            row,
            kind="release",
            cleanup_id=cleanup_id,
            actions_done=[action["action"] for action in actions if action["done"]],
            actions_failed=[action["action"] for action in actions if not action["done"]],
            bytes_released=fields["bytes_released"],
            host_lost=fields["host_lost"],
        )

    def has_invalid_value(self, kind: str, envelope: Row) -> bool:
        """Return True if the envelope's values are invalid for any session."""
        names = ("tenant_id", "service_id", "agent_id", "producer_id")
        if not all(NAME.fullmatch(envelope[name]) for name in names) or envelope["epoch"] < 0:
            return True
        if kind == "session_created" and not envelope["user_id"]:
            return True
        if envelope["producer_seq"] > 10**15:
            return True
        return kind != "heartbeat" and bool(envelope["producer_seq"] < 1)

    def add_audit(self, row: Row | None, **details: Any) -> None:
        """Add an audit line; the caller has already raised the row's audit_seq."""
        tenant, session = key_parts(self.entry.key)
        line: Row = {"source_partition": self.number, "source_offset": self.entry.offset}
        if row is None:
            line |= {"tenant_id": tenant, "session_id": session, "audit_seq": 0}
        else:
            line |= {"tenant_id": row["tenant"], "session_id": row["session"], "audit_seq": row["audit_seq"]}
            line |= {"epoch": row["epoch"]} | ({"version": row["version"]} if "version" in row else {})
        self.audits.append({**line, **details})
