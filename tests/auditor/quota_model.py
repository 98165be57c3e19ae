"""The oracle's model of runs and sessions that wait for their tenant's quota, and of verdicts."""

from typing import Any

from tests.auditor.decoding import LogEntry, Row, run_key_of
from tests.auditor.rules import DAY_MS, END_ACTIONS

_ADMITTED = {"run_started": "started", "run_resumed": "running"}


class QuotaModel:
    """The claims of runs: the offset of the event that asked, its type, and if it is granted.

    Those of sessions are the same without a type. A session without one that is open has None.
    """

    entry: LogEntry
    rows: dict[bytes, Row]
    now: int
    last_transition: str

    def __init__(self) -> None:
        self.runs: dict[bytes, Row] = {}
        self.tasks: list[Row] = []  # the requests for the work of queued detached runs
        self.quotas = self.session_quotas = self.token_quotas = False  # whether the rules in force have them
        # quota, step, tenant, session, run, claim, tokens
        self.notices: list[tuple[str, str, str, str, str, int, int]] = []
        self._asked: tuple[Row, str | None] | None = None  # by the record that is judged; the state before

    def add_audit(self, row: Row | None, **details: Any) -> None:
        raise NotImplementedError

    def drop_run(self, name: bytes) -> None:
        raise NotImplementedError

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
        raise NotImplementedError

    # Sessions

    def ask_for_session(self, row: Row) -> str:
        """Let a new session wait, if the rules say so; return the reason of its creation."""
        if not self.session_quotas:
            return "created"
        row["claim"] = (self.entry.offset, False)
        self.notify_of_session("requested", row)
        return "quota_requested"

    def is_queued(self, row: Row) -> bool:
        return row["claim"] is not None and not row["claim"][1]

    def queue_clock(self, row: Row, unheard_until: int) -> tuple[int, str]:
        """Return when a session that waits is given up: after a day, or if its owner is silent."""
        limits = row["limits"]
        budget = limits["model_ms"] + limits["tool_ms"] + limits["network_ms"]
        silent = max(row["owner_heard"], unheard_until) + budget
        given_up = row["created_at"] + DAY_MS
        return (given_up, "quota_timeout") if given_up <= silent else (silent, "inactive")

    def free_slot(self, row: Row) -> None:
        """Tell that a session which ends has no claim any more."""
        if row["claim"] is not None:
            self.notify_of_session("released", row)
            row["claim"] = None

    def notify_of_session(self, step: str, row: Row) -> None:
        self.notices.append(("live_sessions", step, row["tenant"], row["session"], "", row["claim"][0], 0))

    def judge_session_verdict(self, key: bytes, row: Row, fields: Row) -> None:
        """Apply a verdict on a session's claim, if it is the one that it waits with."""
        if row["claim"] is None or fields["offset"] != row["claim"][0] or row["claim"][1]:
            self.answer(key, fields, is_held=row["claim"] is not None and fields["offset"] == row["claim"][0])
            return
        offset, _ = row["claim"]
        if fields["granted"]:
            row["claim"], row["entered_at"] = (offset, True), self.now
            self.notify_of_session("taken", row)
            row["audit_seq"] += 1
            states = {"from_state": "Idle", "to_state": "Idle"}
            self.add_audit(row, kind="quota", reason_code="quota_granted", event_type="session_admitted", **states)
            return
        row["rejections"] = sorted([*row["rejections"], (offset, "quota_exceeded")], key=lambda kept: kept[0])[-16:]
        reason = {"reason_code": "quota_exceeded", "event_type": "session_start_failed"}
        self.enter_state(key, row, "Terminated", "releasing", "T03", END_ACTIONS, **reason)
        self.last_transition = ""  # there are no runs yet that follow it

    # Tokens

    def notify_tokens(self, row: Row, kind: str, fields: Row) -> None:
        """Tell each quota that is in force of the tokens which an event used that applies."""
        if kind != "usage_recorded" or not self.token_quotas:
            return
        if tokens := fields["tokens_in"] + fields["tokens_out"]:
            in_force = {"concurrent_runs": self.quotas, "live_sessions": self.session_quotas}
            for quota in (name for name, is_on in in_force.items() if is_on):
                reported = (row["tenant"], row["session"], "", self.entry.offset, tokens)
                self.notices.append((quota, "used", *reported))

    # Runs

    def waits_for_quota(self, run: Row) -> bool:
        return run["claim"] is not None and not run["claim"][2]

    def ask_quota(self, name: bytes, kind: str, before: str | None) -> None:
        """Let a run that was begun or resumed wait, if the rules have quotas."""
        if self.quotas:
            run = self.runs[name]
            run["state"], run["claim"] = "queued", (self.entry.offset, kind, False)
            self._asked = run, before

    def follow_quota(self, row: Row) -> None:
        """Tell that the record's run waits; the session's own audit lines come first."""
        if self._asked is not None:
            (run, before), self._asked = self._asked, None
            self.notify_quotas("requested", run)
            self.notify_change(row, run, "queued", "quota_requested", before)

    def release_claim(self, run: Row) -> None:
        """Tell that a run which ends, or is rejected, has no claim any more."""
        if run["claim"] is not None:
            self.notify_quotas("released", run)
            run["claim"] = None

    def notify_quotas(self, step: str, run: Row) -> None:
        name = run["tenant"], run["session"], run["run_id"]
        self.notices.append(("concurrent_runs", step, *name, run["claim"][0], 0))

    def ask_claims_again(self, key: bytes, row: Row) -> None:
        """Repeat the claims that wait, and the requests for tasks that no worker works on."""
        if self.is_queued(row):
            self.notify_of_session("requested", row)
        for name in row["open_runs"]:
            run = self.runs[name]
            if self.waits_for_quota(run):
                self.notify_quotas("requested", run)
            elif run["mode"] == "detached" and (run["state"] == "queued" or self._is_worker_silent(run)):
                self.tasks.append({"key": key, "run_id": run["run_id"], "task_type": run["task_type"]})

    def _is_worker_silent(self, run: Row) -> bool:
        is_begun = run["holder"] is not None and run["state"] in ("started", "running")
        return is_begun and self.now >= run["last_event_at"] + 60_000

    def answer(self, key: bytes, fields: Row, *, is_held: bool) -> None:
        """Tell the quotas again what has become of a claim."""
        tenant, session = key.decode().split(":", 1)
        step, run_id = "taken" if is_held else "released", fields["run_id"]
        self.notices.append((fields["quota"], step, tenant, session, run_id, fields["offset"], 0))

    def notify_change(self, row: Row, run: Row, state: str, code: str, before: str | None = "queued") -> None:
        row["audit_seq"] += 1
        kind = {"running": "run_resumed"}.get(state, f"run_{state}")
        moved = {"run_id": run["run_id"], "from_run_state": before, "to_run_state": state, "event_type": kind}
        states = {"from_state": row["state"], "to_state": row["state"]}
        self.add_audit(row, kind="run", reason_code=code, **moved, **states)

    def judge_verdict(self, key: bytes, fields: Row) -> None:
        """Apply a verdict, if it is on the claim that its run, or the session, waits with."""
        if fields["quota"] == "live_sessions":
            if key in self.rows:
                self.judge_session_verdict(key, self.rows[key], fields)
            else:
                self.answer(key, fields, is_held=False)
            return
        if fields["quota"] != "concurrent_runs":
            return
        name = run_key_of(key, fields["run_id"])
        row, run = self.rows.get(key), self.runs.get(name)
        if row is None or run is None or run["claim"] is None or fields["offset"] != run["claim"][0]:
            self.answer(key, fields, is_held=False)
            return
        if not self.waits_for_quota(run):
            self.answer(key, fields, is_held=True)
            return
        offset, kind, _ = run["claim"]
        if not fields["granted"]:
            self.reject_run(row, name, offset)
            return
        self.notify_quotas("taken", run)
        state = _ADMITTED.get(kind, "queued")
        run["state"], run["claim"], run["error_class"] = state, (offset, kind, True), None
        run["entered_at"] = run["last_event_at"] = self.now
        run["due_at"] = self.now + run["limit"]
        self.notify_change(row, run, state, "quota_granted")
        if kind == "run_queued" and run["mode"] == "detached":
            self.tasks.append({"key": key, "run_id": run["run_id"], "task_type": run["task_type"]})

    def reject_run(self, row: Row, name: bytes, offset: int) -> None:
        """Leave no row of a run that is over its tenant's quota; a resumed one is failed again."""
        run = self.runs[name]
        self.release_claim(run)
        row["open_runs"].remove(name)
        row["rejections"] = sorted([*row["rejections"], (offset, "quota_exceeded")], key=lambda kept: kept[0])[-16:]
        self.notify_change(row, run, "rejected", "quota_exceeded")
        if run["resumes"]:
            run["state"], run["entered_at"] = "failed", self.now
        else:
            self.drop_run(name)
