"""How sessions are paused, resumed and ended, for the oracle."""

from contextlib import suppress

from tests.auditor.decoding import Rejection, Row
from tests.auditor.migration_model import is_held_for_migration
from tests.auditor.partition_model import PartitionModel
from tests.auditor.people_model import (
    ask_question,
    begin_hold,
    by_operator,
    check_answer,
    check_hold,
    check_hold_time,
    drop_question,
    head_for_operator,
    take_answer,
)
from tests.auditor.rules import END_ACTIONS, ERROR_ACTIONS
from tests.auditor.snapshot_model import accept_snapshot
from tests.auditor.turn_model import continue_duration, end_other_turn, stop_duration


class PauseModel(PartitionModel):
    """Applies the events that pause, resume and end a session."""

    def take_snapshot(self, row: Row, snapshot: Row) -> None:
        accept_snapshot(row, snapshot)

    def fence_off(self, row: Row, envelope: Row, fields: Row) -> None:
        """Note that a client raised the epoch: only its holder goes on below that."""
        if not by_operator(fields):
            row["holder_epoch"] = row["epoch"]
            end_other_turn(row, envelope["producer_id"])

    def pause_session(self, key: bytes, row: Row, envelope: Row, fields: Row) -> None:
        is_paused = row["state"] == "Paused"
        if is_paused and not by_operator(fields):
            raise Rejection("illegal_transition")
        if fields["snapshot"] is None and not by_operator(fields):
            raise Rejection("missing_snapshot")
        check_hold_time(fields)
        if fields["snapshot"] is not None:
            self.take_snapshot(row, fields["snapshot"])
        else:
            head_for_operator(row)
        if is_held_for_migration(row):
            row["migration"]["from"] = "Paused"
        if not is_paused:
            stop_duration(row, self.now)
        if row["question"] is None:
            ask_question(row, envelope, fields)
        begin_hold(row, envelope, fields)
        details = {"snapshot_id": row["head"], "actor": envelope["actor"]}
        self.enter_state(key, row, "Paused", None, "T04", event_type="session_paused", **details)

    def resume_session(self, key: bytes, row: Row, envelope: Row, fields: Row) -> None:
        check_hold(row, fields)
        if row["migration"] is not None and row["migration"]["step"] == "prepared":
            raise Rejection("migration_open")
        if fields["snapshot_id"] is not None and fields["snapshot_id"] != row["head"]:
            raise Rejection("version_conflict")
        check_answer(row, fields)
        row["hold"] = None
        if row["state"] == "Paused":
            continue_duration(row, self.now)
            code = "resumed"
            if row["question"] is not None:
                code = "approved" if fields["approved"] else "denied"
                take_answer(row, code, envelope["actor"] or "", fields["message"])
            details = {"event_type": "session_resumed", "reason_code": code, "actor": envelope["actor"]}
            self.enter_state(key, row, "Active", "processing", "T05", **details)
            self.fence_off(row, envelope, fields)
            return
        if self.now >= row["max_due_at"]:
            raise Rejection("max_duration_exceeded")
        row["released_at"] = None
        self.enter_state(key, row, "Active", "processing", "T07", event_type="session_resumed")
        self.fence_off(row, envelope, fields)

    def terminate_session(self, key: bytes, row: Row, fields: Row) -> None:
        reason, state = fields["reason"], row["state"]
        number, allowed = {
            "Active": ("T13", ("closed", "completed", "cancelled", "abnormal_termination")),
            "Paused": ("T09", ("cancelled",)),
            "Error": ("T12", ("forced", "unrecoverable", "recovery_failed")),
        }[state]
        if reason not in allowed and not (by_operator(fields) and reason == "cancelled"):
            raise Rejection("invalid_reason")
        if reason == "completed" and row["phase"] in ("updating", "persisting"):
            raise Rejection("phase_order")
        last = fields["snapshot"]
        if last is not None:
            with suppress(Rejection):  # a session ends without a snapshot that is wrong
                accept_snapshot(row, last)
        row["hold"] = None
        drop_question(row)
        bad = state == "Error" or reason == "abnormal_termination"
        self.enter_state(
            key, row, "Terminated", "releasing", number, ERROR_ACTIONS if bad else END_ACTIONS, reason_code=reason
        )
