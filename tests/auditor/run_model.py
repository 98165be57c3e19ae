"""The oracle's model of runs: their events, their clocks, and what ends them."""

from typing import Any

from tests.auditor.artifact_model import DELETIONS
from tests.auditor.call_model import is_reserved
from tests.auditor.decoding import LogEntry, Rejection, Row, run_key_of
from tests.auditor.people_model import is_unheard
from tests.auditor.point_model import TXN_TYPES
from tests.auditor.quota_model import QuotaModel
from tests.auditor.rules import ACTIVE_TYPES, COMPLETIONS, DAY_MS, TOMBSTONE_MS

NEVER = 1 << 61
FINISHED = ("completed", "failed", "cancelled")
SILENCE_MS = DAY_MS
READABLE_MS = 30 * DAY_MS
OPEN_MAX = 64
# Types that can name a run; the others are about the session itself.
_OF_SESSION = {"state_updated", "session_activity", *TXN_TYPES}
RUN_TYPES = (ACTIVE_TYPES | {*COMPLETIONS, "checkpoint_saved"}) - _OF_SESSION
# Those of a task that any process may send.
ANY_WORKERS = {*COMPLETIONS, *DELETIONS, "run_cancelled", "run_paused", "run_resumed"}
OWN_TYPES = {kind for kind in ACTIVE_TYPES if kind.startswith(("run_", "plan_"))}


def is_open(run: Row) -> bool:
    return run["state"] not in FINISHED


class RunModel(QuotaModel):
    """The runs of a partition's sessions by key; a run's key begins with its session's."""

    entry: LogEntry
    rows: dict[bytes, Row]
    now: int
    outage_end: int
    rules: int

    def __init__(self) -> None:
        super().__init__()
        self.resume_ms = DAY_MS  # by the rules in force
        self.begun_again = 0  # limits of runs that ended while their session was paused
        self.run_graves: dict[bytes, int] = {}  # when the tombstones of vanished runs vanish
        self.last_transition = ""  # of the record or deadline that is judged now
        self.last_reason = ""  # of that transition, if a deadline made it

    def judge_child(
        self, key: bytes, row: Row, run: Row | None, kind: str, envelope: Row, fields: Row
    ) -> tuple[bytes, bytes, Row] | None:
        raise NotImplementedError

    def keep_child(self, key: bytes, parent: bytes, name: bytes, child: Row) -> None:
        raise NotImplementedError

    def run_due(self, run: Row) -> tuple[int, str]:
        """Return when an open run's deadline is, in ms, and its name."""
        if run["mode"] == "attached" and run["state"] != "queued":
            return run["due_at"], "attached_limit"
        return max(run["last_event_at"], self.outage_end) + SILENCE_MS, "run_silent"

    def open_runs_of(self, key: bytes) -> list[tuple[bytes, Row]]:
        """Return a session's open runs in the order in which they began."""
        row = self.rows.get(key)  # None once it is archived
        return [] if row is None else [(name, self.runs[name]) for name in row["open_runs"]]

    def drop_finished_runs(self) -> None:
        """Drop the runs that finished 30 days ago."""
        gone = [
            name for name, run in self.runs.items() if not is_open(run) and run["entered_at"] + READABLE_MS <= self.now
        ]
        for name in gone:
            ends = self.runs[name]["entered_at"] + READABLE_MS + TOMBSTONE_MS
            self.run_graves[name] = -(-ends // DAY_MS) * DAY_MS
            self.drop_run(name)
        if gone or self.run_graves:
            self.run_graves = {name: ends for name, ends in self.run_graves.items() if ends > self.now}

    def drop_run(self, name: bytes) -> None:
        del self.runs[name]

    def run_of(self, key: bytes, kind: str, envelope: Row) -> Row | None:
        """Return the run that an event names; None if it names none, or one that is not known."""
        if kind not in RUN_TYPES or not envelope["run_id"]:
            return None
        return self.runs.get(run_key_of(key, envelope["run_id"]))

    def is_of_detached(self, key: bytes, kind: str, envelope: Row) -> bool:
        run = self.run_of(key, kind, envelope)
        return run is not None and run["mode"] == "detached"

    def goes_on_alone(self, key: bytes, row: Row, kind: str, envelope: Row) -> bool:
        """Return True if an event is of a detached run that goes on while its session does not."""
        run = self.run_of(key, kind, envelope)
        if run is None or run["mode"] != "detached" or kind == "run_queued":
            return False
        if kind == "run_resumed" and run["state"] == "failed":
            return False  # it begins again, and that only an active session can
        return row["state"] in ("Paused", "Timeout", "Error", "Terminated")

    def judge_run(self, key: bytes, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Apply an event to the run, step and call that it names, or raise `Rejection`."""
        if kind not in RUN_TYPES:
            return
        run_id = envelope["run_id"]
        if not run_id:
            if kind in OWN_TYPES:
                raise Rejection("invalid_value")
            if child := self.judge_child(key, row, None, kind, envelope, fields):
                self.keep_child(key, *child)
            return
        name = run_key_of(key, run_id)
        run = self.runs.get(name)
        if run is None:
            self.begin_run(key, name, row, kind, envelope, fields)
            return
        self.check_run(run, row, kind, envelope, fields)
        child = self.judge_child(key, row, run, kind, envelope, fields)
        if run["mode"] == "detached" and (kind == "run_started" or (kind == "run_resumed" and run["holder"])):
            run["holder"] = envelope["producer_id"] if run["state"] != "failed" else None
        self.move_run(key, name, run, kind, fields)
        if child:
            self.keep_child(key, *child)
        run["run_seq"] += 1
        run["last_event_at"] = self.now

    def begin_run(self, key: bytes, name: bytes, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        if kind == "run_rejected":
            return
        if kind not in ("run_queued", "run_started"):
            raise Rejection("unknown_run")
        if fields["mode"] == "UNKNOWN":
            raise Rejection("invalid_value")
        if len(row["open_runs"]) >= OPEN_MAX:
            raise Rejection("too_many_runs")
        if kind == "run_queued" and fields["mode"] == "detached" and not self.quotas:
            self.tasks.append({"key": key, "run_id": envelope["run_id"], "task_type": fields["task_type"]})
        limit = row["limits"]["attached_run_ms"]
        row["open_runs"].append(name)
        self.runs[name] = {
            **{field: row[field] for field in ("tenant", "session")},
            "run_id": envelope["run_id"],
            "mode": fields["mode"],
            "state": "queued" if kind == "run_queued" else "started",
            "run_seq": 1,
            "created_at": self.now,
            "entered_at": self.now,
            "last_event_at": self.now,
            "due_at": self.now + limit,
            "limit": limit,
            "error_class": None,
            "has_plan": kind == "run_started" and fields["plan_json"] is not None,
            "resumes": 0,
            "progress": None,
            "unresolved_calls": 0,
            "held": False,  # paused until the outcomes of its calls are known
            "checkpoint": None,  # the last one's fields in their order, without its data
            "task_type": fields["task_type"],
            "claim": None,
            "holder": None,  # the process that works on a task
        }
        self.ask_quota(name, kind, None)

    def check_run(self, run: Row, row: Row, kind: str, envelope: Row, fields: Row) -> None:
        """Raise `Rejection` if an event may not happen to a known run."""
        state = run["state"]
        sources: dict[str, tuple[str, ...]] = {
            "run_queued": (),
            "run_rejected": (),
            "run_started": ("queued",),
            "run_running": ("started", "running"),
            "run_paused": ("started", "running"),
            "run_resumed": ("paused", "failed"),
            "run_completed": ("running",),
            "run_failed": ("running", "paused"),
        }
        if run["holder"] not in (None, envelope["producer_id"]) and is_open(run) and kind not in ANY_WORKERS:
            raise Rejection("task_taken_over")
        is_reported = is_reserved(kind, fields) and kind != "tool_call_started"  # its outcome may come at any time
        if (
            not is_reported
            and kind not in DELETIONS
            and state not in sources.get(kind, ("queued", "started", "running", "paused"))
        ):
            raise Rejection("illegal_transition")
        if (kind == "plan_recorded" and run["has_plan"]) or (kind == "plan_replaced" and not run["has_plan"]):
            raise Rejection("illegal_transition")
        if kind == "run_started" and self.waits_for_quota(run):
            raise Rejection("quota_exceeded")
        if kind == "run_started" and fields["mode"] != run["mode"]:
            raise Rejection("invalid_value")
        if kind == "run_running" and fields["progress"] is not None and not 0 <= fields["progress"] <= 1:
            raise Rejection("invalid_value")
        if kind == "run_failed" and fields["error"]["error_class"] == "UNKNOWN":
            raise Rejection("missing_error_class")
        if kind == "run_resumed" and run["unresolved_calls"]:
            raise Rejection("call_unresolved")
        if kind == "run_resumed" and state == "failed":
            if run["error_class"] != "retryable" and not envelope["actor"]:
                raise Rejection("not_retryable")
            if self.now > run["entered_at"] + self.resume_ms:
                raise Rejection("resume_expired")
            if len(row["open_runs"]) >= OPEN_MAX:
                raise Rejection("too_many_runs")

    def move_run(self, key: bytes, name: bytes, run: Row, kind: str, fields: Row) -> None:
        match kind:
            case "run_started":
                run["due_at"] = self.now + run["limit"]
                run["has_plan"] = run["has_plan"] or fields["plan_json"] is not None
                self.enter_run_state(key, name, "started")
            case "run_running":
                if fields["progress"] is not None:
                    run["progress"] = fields["progress"]
                self.enter_run_state(key, name, "running")
            case "run_resumed":
                if run["state"] == "failed":
                    run["due_at"] = self.now + run["limit"]
                    run["resumes"] += 1
                    self.rows[key]["open_runs"].append(name)
                    if self.quotas:
                        run["entered_at"] = self.now
                        self.ask_quota(name, kind, "failed")
                        return
                    run["error_class"] = None
                self.enter_run_state(key, name, "running")
            case "run_failed":
                run["error_class"] = fields["error"]["error_class"]
                self.enter_run_state(key, name, "failed")
            case "run_paused" | "run_completed" | "run_cancelled":
                self.enter_run_state(key, name, kind.removeprefix("run_"))
            case "plan_recorded":
                run["has_plan"] = True
            case "checkpoint_saved":
                how_far = ("stage", "processed_count", "last_item_id", "bytes_written")
                place = (fields["checkpoint_id"], fields["operation"], self.now, fields.get("kind"))
                run["checkpoint"] = (*place, *(fields[name] for name in how_far))

    def enter_run_state(self, key: bytes, name: bytes, state: str) -> None:
        run = self.runs[name]
        if run["state"] != state:
            run["state"], run["entered_at"], run["held"] = state, self.now, False
            if not is_open(run):
                self.rows[key]["open_runs"].remove(name)
                self.release_claim(run)

    def follow_session(self, key: bytes, row: Row) -> None:
        """Pause or fail the attached runs of a session after a transition, if there was one.

        The session's own audit lines come first.
        """
        number, self.last_transition = self.last_transition, ""
        for name, run in self.open_runs_of(key) if number else ():
            if run["mode"] != "attached":
                continue
            if number == "T05" and run["state"] != "queued":
                run["due_at"] = self.now + run["limit"]
            elif number == "T06" and run["state"] in ("started", "running"):
                self.decide_run(
                    key,
                    row,
                    name,
                    "paused",
                    "connection_lost" if self.last_reason == "inactive" else "session_timed_out",
                )
            elif row["state"] == "Terminated":
                run["error_class"] = "retryable"
                self.decide_run(key, row, name, "failed", "session_ended")

    def begin_limits_again(self, key: bytes) -> None:
        """Begin the limits of a session's attached runs again: a process takes the answer."""
        for _, run in self.open_runs_of(key):
            if run["mode"] == "attached" and run["state"] != "queued":
                run["due_at"] = self.now + run["limit"]

    def fire_run(self, key: bytes, name: bytes, instant: int, reason: str) -> None:
        """Fail a run whose deadline has passed; in a pause of its session it begins again.

        So it does after an answer, until something is heard.
        """
        session = self.rows[key]
        if reason == "attached_limit" and (session["state"] == "Paused" or is_unheard(session)):
            self.runs[name]["due_at"] = self.now + self.runs[name]["limit"]
            self.begun_again += 1
            return
        self.runs[name]["error_class"] = "retryable"
        due, fired = instant * 1000, self.now * 1000
        self.decide_run(key, self.rows[key], name, "failed", reason, due_at=due, fired_at=fired)

    def decide_run(self, key: bytes, row: Row, name: bytes, state: str, code: str, **details: Any) -> None:
        """Move a run by a decision of the processor, which leaves an audit record."""
        run = self.runs[name]
        before = run["state"]
        self.enter_run_state(key, name, state)
        row["audit_seq"] += 1
        moved = {"run_id": run["run_id"], "from_run_state": before, "to_run_state": state}
        moved["checkpoint_id"] = run["checkpoint"] and run["checkpoint"][0]
        states = {"from_state": row["state"], "to_state": row["state"]}
        self.add_audit(row, kind="run", reason_code=code, **moved, **states, **details)

    def repair_runs(self, passed: int) -> None:
        """Give open runs as much time as they had, after the clock was set."""
        for run in filter(is_open, self.runs.values()):
            for field in ("created_at", "entered_at", "last_event_at"):
                run[field] = min(run[field] + passed, self.now)
            run["due_at"] = min(run["due_at"] + passed, self.now + run["limit"])
            if run["checkpoint"]:
                name, operation, at, *rest = run["checkpoint"]
                run["checkpoint"] = (name, operation, min(at + passed, self.now), *rest)
