"""The oracle of one partition: what becomes of each record; see `oracle.py`."""

from tests.auditor.agent_model import OF_MEMBERS, is_stranger
from tests.auditor.call_model import note_tool
from tests.auditor.decoding import (
    ACTIVATION,
    VERDICT,
    LogEntry,
    Rejection,
    Row,
    begun_rules,
    check_external_id,
    child_key_of,
    key_parts,
    new_row,
    partition_of,
    read_event,
)
from tests.auditor.migration_model import MIGRATION_TYPES, is_fenced_again, is_prepared
from tests.auditor.pause_model import PauseModel
from tests.auditor.people_model import by_operator, is_unheard
from tests.auditor.point_model import check_content, check_transaction, overdue, restored
from tests.auditor.rules import (
    ACTIONS_OF_ERROR_CODES,
    DEFAULTS,
    END_ACTIONS,
    PROCESSOR_TYPES,
    RANGES,
    SECURITY,
    creation_fault,
    has_long_text,
    is_legal,
    is_out_of_bounds,
)
from tests.auditor.run_model import OWN_TYPES
from tests.auditor.snapshot_model import check_id, unfold
from tests.auditor.turn_model import is_waiting, move_phase


class PartitionOracle(PauseModel):
    """Judges the records of a partition in offset order."""

    def apply_record(self, entry: LogEntry) -> str:
        """Move the clock, fire due deadlines, judge the record; return its outcome as text."""
        self.take_decisions(entry.offset)
        if left_out := self.leave_out(entry):
            return left_out
        self.entry = entry
        self.begin_announced_rules(entry)
        self.move_clock(entry.timestamp_ms if entry.offset >= self.believed_from else self.now)
        self.drop_tombstones()
        if self.now >= max(self.outage_grace_until, self.earliest):
            self.fire_due()
        self.outcomes[entry.offset] = outcome = self.judge_record(entry)
        if entry.key in self.rows:
            self.earliest = min(self.earliest, self.earliest_of(entry.key))
        return outcome

    def judge_record(self, entry: LogEntry) -> str:
        key, event_type = entry.key, ""
        row: Row | None = None
        self.late_reported = self.of_session = self.is_unreported = False
        try:
            if begun := begun_rules(entry):
                if not entry.is_signed:
                    raise Rejection("bad_signature")
                if begun <= self.rules:
                    return "tick"
            try:
                event_type, fields = read_event(entry.value, self.rules)
            except Rejection:
                if not key_parts(key)[0]:
                    raise Rejection("bad_key") from None
                raise
            if event_type == "tick" and key is None:
                return "tick"
            if event_type in (ACTIVATION, VERDICT) and key_parts(key)[0] and not entry.is_signed:
                raise Rejection("bad_signature")
            if event_type == VERDICT and key is not None and key_parts(key)[0]:
                if partition_of(key, self.partitions) != self.number:
                    raise Rejection("wrong_partition")
                self.judge_verdict(key, fields)
                return "tick"
            if key is None or event_type in ("tick", ACTIVATION, VERDICT) or not key_parts(key)[0]:
                # The key is judged before the bytes: only heartbeats are known.
                is_beat = event_type == "heartbeat" and not has_long_text(fields["envelope"])
                event_type = event_type if is_beat else ""
                raise Rejection("bad_key")
            if has_long_text(fields["envelope"]):
                event_type = ""
                raise Rejection("invalid_value")
            row = self.rows.get(key) or self.graves.get(key)
            return self.judge_event(key, row, event_type, fields["envelope"], fields)
        except Rejection as rejection:
            if self.is_unreported:
                return "fenced beat"
            row = row or (self.rows.get(key) or self.graves.get(key) if key else None)
            self.add_rejection(key, row, event_type, str(rejection))
            return f"rejected {rejection}"

    def add_rejection(self, key: bytes | None, row: Row | None, event_type: str, reason: str) -> None:
        self.rejected.append({"source_partition": self.number, "source_offset": self.entry.offset, "reason": reason})
        if row is not None and "rejections" in row and event_type != "heartbeat":
            row["rejections"] = [*row["rejections"], (self.entry.offset, reason)][-16:]
        if event_type == "heartbeat" or self.late_reported:
            return
        state = "UNKNOWN" if row is None else row.get("state", "Archived")
        row = None if key in self.graves else row  # it has no numbers
        if row is not None:
            row["audit_seq"] += 1
        self.add_audit(
            row, kind="rejection", reason_code=reason, security=reason in SECURITY, from_state=state, to_state=state
        )

    def judge_event(self, key: bytes, row: Row | None, kind: str, envelope: Row, fields: Row) -> str:
        tenant, session = key_parts(key)
        if envelope["tenant_id"] != tenant:
            raise Rejection("foreign_tenant")
        if envelope["session_id"] != session:
            raise Rejection("key_mismatch")
        if by_operator(fields) and not self.entry.is_signed:
            raise Rejection("bad_signature")
        if row is None:
            if partition_of(key, self.partitions) != self.number:
                raise Rejection("wrong_partition")
            if kind != "session_created":
                raise Rejection("unknown_session")
        self.of_session = True
        if key in self.graves and row is not None:
            raise Rejection("session_archived")
        if self.has_invalid_value(kind, envelope):
            raise Rejection("invalid_value")
        if row is None and (fault := creation_fault(session, fields, self.now)):
            raise Rejection(fault)
        if row is None:
            return self.create_session(key, envelope, fields)
        if self.entry.is_replayed and self.fills_gap(key, row, kind, envelope, fields):
            self.notify_tokens(row, kind, fields)
            return "applied"
        if kind != "heartbeat" and self.is_duplicate(row, envelope):
            return "duplicate"
        if is_out_of_bounds(fields):
            raise Rejection("invalid_value")
        self.check_permitted(key, row, kind, envelope, fields)
        was_unheard = is_unheard(row)
        self.apply_event(key, row, kind, envelope, fields)
        if not self.goes_on_alone(key, row, kind, envelope):
            if envelope["service_id"] == row["owner"]:
                row["owner_heard"] = self.now
            is_work = kind not in (*MIGRATION_TYPES, "requests_repeated")
            if was_unheard and row["state"] == "Active" and is_work:
                self.begin_limits_again(key)
            if not is_work:
                pass  # it is no sign of work
            elif kind != "heartbeat":
                row["last_work_at"] = row["last_event_at"] = self.now
            elif row["state"] == "Active":
                row["last_event_at"] = self.now
        if kind != "heartbeat":  # it never makes an audit line
            self.check_context_size(row, envelope)
        self.follow_calls(key, row)
        self.follow_session(key, row)
        self.follow_quota(row)
        self.notify_tokens(row, kind, fields)
        if kind != "heartbeat" and envelope["producer_seq"] % 100 == 0:
            row["audit_seq"] += 1
            self.add_audit(row, kind="state_hash", event_type=kind)
        return "applied"

    def is_duplicate(self, row: Row, envelope: Row) -> bool:
        """Enter the event in its producer's ledger; return True if it was there already."""
        producer, seq = envelope["producer_id"], envelope["producer_seq"]
        if producer not in row["producers"]:
            self.make_room_for(row, producer, seq)
        ledger = row["producers"][producer]
        if any(first <= seq <= last for first, last in ledger["missing"]):
            raise Rejection("late_filler")
        if seq <= ledger["last"]:
            if ledger["ids"].get(seq, envelope["event_id"]) != envelope["event_id"]:
                raise Rejection("producer_conflict")
            return True
        if seq > ledger["last"] + 1:
            gap = (ledger["last"] + 1, seq - 1)
            unsure = ledger["unsure"]
            if len(ledger["missing"]) == 16:
                (first, _), (_, last), *rest = ledger["missing"]
                ledger["missing"], unsure = [(first, last), *rest], max(unsure, last)
            ledger["missing"].append(gap)
            ledger["unsure"] = unsure
            row["audit_seq"] += 1
            self.add_audit(row, kind="gap", gap_first=gap[0], gap_last=gap[1])
        ledger["last"] = seq
        ledger["epoch"], ledger["at"] = row["epoch"], self.now
        ids = {**ledger["ids"], seq: envelope["event_id"]}
        ledger["ids"] = {number: name for number, name in ids.items() if number > seq - 32}
        return False

    def fills_gap(self, key: bytes, row: Row, kind: str, envelope: Row, fields: Row) -> bool:
        """Take a replayed event of work out of its gap; return False if it may not fill one."""
        ledger = row["producers"].get(envelope["producer_id"])
        work = is_legal("Active", kind) and (not kind.startswith("session_") or kind == "session_activity")
        others = ("heartbeat", "resources_released", *OF_MEMBERS)
        if (
            ledger is None
            or not work
            or kind in others
            or kind in OWN_TYPES
            or self.needs_order(kind, envelope, fields)
            or envelope["epoch"] > row["epoch"]
            or is_out_of_bounds(fields)
        ):
            return False
        number, unsure = envelope["producer_seq"], ledger["unsure"]
        inside = [gap for gap in ledger["missing"] if gap[0] <= number <= gap[1]]
        if not inside or number <= unsure:
            return False
        parts = [(inside[0][0], number - 1), (number + 1, inside[0][1])]
        gaps = sorted([gap for gap in ledger["missing"] if gap != inside[0]] + [p for p in parts if p[0] <= p[1]])
        if len(gaps) == 17:
            gaps[:2] = [(gaps[0][0], gaps[1][1])]
            unsure = max(unsure, gaps[0][1])
        ledger["missing"], ledger["unsure"] = gaps, unsure
        row["audit_seq"] += 1
        self.add_audit(row, kind="gap_filled", gap_first=number, gap_last=number)
        if kind == "message_appended":
            self.keep_child(key, *self.turn_of(key, row, envelope, fields))
        return True

    def create_session(self, key: bytes, envelope: Row, fields: Row) -> str:
        check_external_id(envelope, fields)
        given = fields["limits"]
        limits = {name: DEFAULTS[name] if given[name] is None else given[name] for name in DEFAULTS}
        odd = any(not low <= limits[name] <= high for name, (low, high) in RANGES.items())
        if min(limits.values()) <= 0 or (odd and not given["override"]):
            raise Rejection("invalid_limits")
        first = fields["snapshot"]
        check_id(first["snapshot_id"])
        own_parent = first["parent_snapshot_id"] in (None, fields["restored_from_snapshot_id"])
        if not own_parent:
            raise Rejection("broken_chain")
        whole = unfold(first, None)
        row = self.rows[key] = new_row(envelope, whole, limits, self.now)
        row["holder"], row["owner_heard"] = envelope["producer_id"], self.now
        reason = self.ask_for_session(row)
        self.enter_state(key, row, "Idle", "creating", "T01", event_type="session_created", reason_code=reason)
        self.is_duplicate(row, envelope)
        if odd:
            row["audit_seq"] += 1
            self.add_audit(row, kind="limits_override")
        self.check_context_size(row, envelope)
        return "applied"

    def check_context_size(self, row: Row, envelope: Row) -> None:
        weight, limit = envelope["context_bytes"], row["limits"]["context_limit_bytes"]
        if weight is None:
            return
        if weight > limit and not row["context_exceeded"]:
            row["audit_seq"] += 1
            self.add_audit(row, kind="context_limit", context_bytes=weight)
        row["context_exceeded"] = weight > limit

    def check_permitted(self, key: bytes, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Raise `Rejection` for every reason that comes before the event's own guard."""
        reason = fields.get("reason")
        if kind in PROCESSOR_TYPES or (kind, reason) in (
            ("session_start_failed", "init_timeout"),
            ("session_terminated", "timeout_cleanup"),
        ):
            raise Rejection("processor_only")
        if kind not in ("session_created", "resources_released"):
            if envelope["epoch"] < row["epoch"] and not self.is_of_detached(key, kind, envelope):
                if kind == "heartbeat":
                    self.is_unreported = is_fenced_again(row, envelope["producer_id"])
                raise Rejection("stale_epoch")
            if envelope["epoch"] > row["epoch"]:
                raise Rejection("future_epoch")
        if kind == "session_created":
            raise Rejection("session_exists")
        if kind in MIGRATION_TYPES:
            self.check_migration_sender(row, kind, envelope, fields)
            return
        if kind == "requests_repeated" and not by_operator(fields):
            raise Rejection("operator_only")
        lifecycle = kind.startswith("session_") and kind not in ("session_activity", "session_taken_over")
        if lifecycle and envelope["service_id"] != row["owner"] and not by_operator(fields):
            raise Rejection("not_owner")
        of_detached = self.is_of_detached(key, kind, envelope)
        if is_stranger(row, kind, envelope, fields) and not of_detached:
            raise Rejection("not_member")
        is_content = kind in ("snapshot_created", "checkpoint_saved")
        if is_content and is_prepared(row) and not self.goes_on_alone(key, row, kind, envelope):
            raise Rejection("illegal_transition")
        if not is_legal(row["state"], kind) and not self.goes_on_alone(key, row, kind, envelope):
            if row["state"] == "Timeout" and is_legal("Active", kind):
                self.late_reported = row["late_epoch"] == row["epoch"]
                row["late_epoch"] = row["epoch"]
                raise Rejection("late")
            raise Rejection("illegal_transition")

    def apply_event(self, key: bytes, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Apply a legal event, or raise `Rejection` if its guard fails."""
        if kind in MIGRATION_TYPES:
            self.judge_migration(key, row, kind, envelope, fields)
            return
        self.judge_run(key, row, kind, envelope, fields)
        note_tool(row, kind, fields)
        match kind:
            case "session_phase_changed":
                move_phase(row, envelope["producer_id"], fields["phase"], self.now)
            case "session_started":
                if row["phase"] != "connecting":
                    raise Rejection("phase_order")
                if self.is_queued(row):
                    raise Rejection("quota_exceeded")
                row["max_due_at"] = self.now + row["limits"]["max_duration_ms"]
                self.enter_state(key, row, "Active", "processing", "T02", event_type=kind)
            case "session_start_failed":
                if fields["reason"] == "UNKNOWN":
                    raise Rejection("invalid_reason")
                self.enter_state(key, row, "Terminated", "releasing", "T03", END_ACTIONS, reason_code=fields["reason"])
            case "session_paused":
                self.pause_session(key, row, envelope, fields)
            case "session_taken_over":
                self.take_over(key, row, envelope, fields)
            case "session_resumed":
                self.resume_session(key, row, envelope, fields)
            case "session_errored":
                if fields["error"]["error_class"] == "UNKNOWN":
                    raise Rejection("missing_error_class")
                row["error_class"] = fields["error"]["error_class"]
                actions = ACTIONS_OF_ERROR_CODES.get(fields["error"]["code"], ())
                self.enter_state(key, row, "Error", "logging", "T10", actions, event_type=kind)
            case "session_recovered":
                if row["phase"] != "recovery":
                    raise Rejection("phase_order")
                if row["error_class"] != "retryable":
                    raise Rejection("not_retryable")
                if row["attempts"] >= 5:
                    raise Rejection("retries_exhausted")
                row["attempts"] += 1
                self.enter_state(key, row, "Active", "processing", "T11", event_type=kind)
                self.fence_off(row, envelope, fields)
            case "session_terminated":
                self.terminate_session(key, row, fields)
            case "state_updated":
                check_content(row, fields)
                row["version"], row["state_json"] = row["version"] + 1, fields["state_json"]
                row["phase"] = "waiting" if is_waiting(row) else "processing"
            case "snapshot_created":
                self.take_snapshot(row, fields["snapshot"])
                self.keep_snapshot(key, row, row["whole"])
            case "session_rolled_back":
                self.roll_back(key, row, fields)
            case "txn_begun" | "txn_committed" | "txn_rolled_back":
                self.move_transaction(row, kind, envelope, fields)
            case "resources_released":
                self.confirm_release(row, fields)
            case "requests_repeated":
                self.ask_again(key, row)

    def roll_back(self, key: bytes, row: Row, fields: Row) -> None:
        """Make the content of an older snapshot the next version, or raise `Rejection`."""
        row["state_json"] = restored(row, self.children.get(child_key_of(key, "h", "")), fields)
        row["version"] += 1
        row["phase"] = "waiting" if is_waiting(row) else "processing"
        row["audit_seq"] += 1
        states = {"from_state": row["state"], "to_state": row["state"]}
        details = {"event_type": "session_rolled_back", "snapshot_id": fields["snapshot_id"]}
        self.add_audit(row, kind="rollback", reason_code="rolled_back", **details, **states)

    def move_transaction(self, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Begin or end a transaction, or raise `Rejection`; those whose time is over end first."""
        check_transaction(row, kind, fields, self.now)
        for late in overdue(row, self.now):
            self.end_transaction(row, late, "txn_rolled_back", "expired")
        one = fields["transaction_id"], self.now, envelope["agent_id"]
        if kind == "txn_committed":
            row["version"], row["state_json"] = row["version"] + 1, fields["state_json"]
            row["phase"] = "waiting" if is_waiting(row) else "processing"
        self.end_transaction(row, one, kind, kind.removeprefix("txn_"))
        if kind == "txn_begun":
            row["transactions"].append(one)
