"""The oracle's steps, reserved tool calls, artifacts and turns: rows of a run, or of a session.

They vanish with their parent. A call of a run with a side effect holds its run while its outcome is
unknown.
"""

from typing import Any

from tests.auditor.agent_model import AGENT_TYPES, agent_named, keep_agent, next_agent
from tests.auditor.artifact_model import ARTIFACT_TYPES, next_artifact
from tests.auditor.call_model import is_reserved, next_call, unknown_call
from tests.auditor.decoding import Rejection, Row, child_key_of, run_key_of
from tests.auditor.message_model import is_too_long, next_turn, turn_name
from tests.auditor.point_model import is_kept, next_checkpoint, next_snapshot
from tests.auditor.run_model import RunModel
from tests.auditor.step_model import expired_step, is_recorded, next_step

CHILDREN_MAX = 10_000


class ChildModel(RunModel):
    """Children by key.

    `running` has the keys of running calls, and of running steps with a limit, by their session's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.children: dict[bytes, Row] = {}
        self.children_of: dict[bytes, set[bytes]] = {}  # by the key of the run or session
        self.running: dict[bytes, set[bytes]] = {}
        self.returning: bytes | None = None  # the run that the record's event may let go on
        self.pending: list[int] = []  # offsets with which a call of an archived session became unknown

    def judge_child(
        self, key: bytes, row: Row, run: Row | None, kind: str, envelope: Row, fields: Row
    ) -> tuple[bytes, bytes, Row] | None:
        """Return the child after its event, after the keys of its parent and of itself.

        Raises `Rejection`.
        """
        found = self.find_child(key, row, run, kind, envelope, fields)
        if found is None or kind == "message_appended" or found[1] in self.children:
            return found
        if len(self.children_of.get(found[0], ())) >= CHILDREN_MAX:
            raise Rejection("too_many_children")
        return found

    def find_child(
        self, key: bytes, row: Row, run: Row | None, kind: str, envelope: Row, fields: Row
    ) -> tuple[bytes, bytes, Row] | None:
        """Return what `judge_child` does, however many children the parent has."""
        parent = key if run is None else run_key_of(key, run["run_id"])
        if is_recorded(kind, fields) and run is not None:
            name = child_key_of(parent, "s", fields["name"])
            return parent, name, next_step(self.children.get(name), run, kind, envelope, fields, self.now)
        if is_reserved(kind, fields):
            name = child_key_of(parent, "c", fields["idem_key"])
            return parent, name, next_call(self.children.get(name), row, run, kind, envelope, fields, self.now)
        if kind in ARTIFACT_TYPES:
            name = child_key_of(parent, "a", fields["artifact_id"])
            return parent, name, next_artifact(self.children.get(name), row, run, kind, envelope, fields, self.now)
        if is_kept(kind, fields):
            name = child_key_of(parent, "k", fields["operation"])
            return parent, name, next_checkpoint(self.children.get(name), row, run, fields, self.now)
        if kind in AGENT_TYPES:
            name = child_key_of(key, "g", agent_named(kind, envelope, fields))
            return key, name, next_agent(self.children.get(name), row, kind, envelope, fields, self.now)
        if kind == "message_appended":
            if is_too_long(kind, fields):
                raise Rejection("invalid_value")
            return self.turn_of(key, row, envelope, fields)
        return None

    def turn_of(self, key: bytes, row: Row, envelope: Row, fields: Row) -> tuple[bytes, bytes, Row]:
        """Return the next turn, after the keys of its session and of itself."""
        turn = next_turn(row, envelope, fields, self.now)
        return key, child_key_of(key, "m", turn_name(turn["turn"])), turn

    def keep_snapshot(self, key: bytes, row: Row, snapshot: Row) -> None:
        """Keep a whole snapshot's content in the row of its session's last ones."""
        if snapshot["tool"] is None:
            name = child_key_of(key, "h", "")
            self.keep_child(key, key, name, next_snapshot(self.children.get(name), row, snapshot, self.now))

    def needs_order(self, kind: str, envelope: Row, fields: Row) -> bool:
        """Tell whether an event is of a child that a replayed event cannot change."""
        is_steps = is_recorded(kind, fields) and bool(envelope["run_id"])
        return (
            is_steps
            or is_reserved(kind, fields)
            or kind in (*ARTIFACT_TYPES, *AGENT_TYPES)
            or is_too_long(kind, fields)
        )

    def keep_child(self, key: bytes, parent: bytes, name: bytes, child: Row) -> None:
        """Take what `judge_child` returned; `key` is the session's."""
        before = self.children.get(name)
        self.children[name] = child
        if child["kind"] == "MessageState":
            self.rows[key]["turns"] = child["turn"]
        if child["kind"] == "AgentState":
            keep_agent(self.rows[key], child)
        self.children_of.setdefault(parent, set()).add(name)
        if child["kind"] in ("ToolCallState", "TimedStep"):
            self.running.setdefault(key, set()).add(name)
        else:
            self.stop_call(key, name)
        run = self.runs.get(parent)
        if run is not None and before is not None and before["state"] == "unknown" and before["side_effect"]:
            run["unresolved_calls"] -= 1
            self.returning = parent

    def stop_call(self, key: bytes, name: bytes) -> None:
        """Take a call or step from those that run; the last one takes the session's entry too."""
        names = self.running.get(key, set())
        names.discard(name)
        if not names:
            self.running.pop(key, None)

    def drop_children(self, key: bytes, parent: bytes) -> None:
        """Drop the children of a run or session that vanishes; `key` is the session's."""
        for name in self.children_of.pop(parent, ()):
            del self.children[name]
            self.stop_call(key, name)

    def follow_calls(self, key: bytes, row: Row) -> None:
        """Let the run go on that was held for a call whose outcome the event reported.

        The session's own audit lines come first.
        """
        name, self.returning = self.returning, None
        if name is None:
            return
        run = self.runs[name]
        goes_on = row["state"] == "Active" or run["mode"] == "detached"
        if run["state"] == "paused" and run["held"] and not run["unresolved_calls"] and goes_on:
            reported = {"event_type": "run_resumed", "reason": "Run resumed: the outcome of all its calls is known"}
            self.decide_run(key, row, name, "running", "call_resolved", **reported)

    def fire_child(self, key: bytes, name: bytes, instant: int) -> None:
        """Do what the limit of a call or step does once it has passed."""
        if self.children[name]["kind"] == "TimedStep":
            self.fire_step(key, name, instant)
        else:
            self.fire_call(key, name, instant)

    def fire_step(self, key: bytes, name: bytes, instant: int) -> None:
        """Fail an attempt whose limit has passed."""
        step = self.children[name] = expired_step(self.children[name], self.now)
        self.stop_call(key, name)
        row = self.rows.get(key)
        if row is None:
            self.pending.append(self.entry.offset)
            return
        states = {"from_state": row["state"], "to_state": row["state"]}
        row["audit_seq"] += 1
        self.add_audit(
            row,
            kind="step",
            event_type="step_failed",
            reason_code="model_limit",
            reason=step["error"]["message"],
            run_id=step["run_id"],
            step_name=step["name"],
            step_attempt=step["attempt"],
            from_step_state="running",
            to_step_state="failed",
            occurred_at=instant * 1_000,
            due_at=instant * 1_000,
            fired_at=self.now * 1_000,
            **states,
        )

    def fire_call(self, key: bytes, name: bytes, instant: int) -> None:
        """Make a call unknown whose limit has passed."""
        call = self.children[name]
        self.children[name] = unknown_call(call, self.now)
        self.stop_call(key, name)
        row = self.rows.get(key)
        if row is None:  # nothing numbers an audit line of an archived session
            self.pending.append(self.entry.offset)
        else:
            self.notify_unknown(row, call, instant)
        parent = run_key_of(key, call["run_id"]) if call["run_id"] else b""
        if not call["side_effect"] or not parent:
            return
        run = self.runs[parent]
        run["unresolved_calls"] += 1
        if row is not None and run["state"] in ("started", "running"):
            reason = f"Run paused: the outcome of {call['tool_name']} is unknown"
            self.decide_run(key, row, parent, "paused", "call_unresolved", event_type="run_paused", reason=reason)
            run["held"] = True

    def notify_unknown(self, row: Row, call: Row, instant: int) -> None:
        limit = f"{call['limit_ms'] / 1_000:g}s"
        missing = f"no outcome of {call['tool_name']} was reported within its limit"
        details: dict[str, Any] = {name: call[name] for name in ("run_id", "tool_name", "idem_key")}
        row["audit_seq"] += 1
        self.add_audit(
            row,
            kind="tool_call",
            event_type="tool_call_unknown",
            reason_code="tool_call_limit",
            reason=f"Tool call unknown after {limit}: {missing}",
            from_state=row["state"],
            to_state=row["state"],
            from_call_state="running",
            to_call_state="unknown",
            occurred_at=instant * 1_000,
            due_at=instant * 1_000,
            fired_at=self.now * 1_000,
            **details,
        )

    def drop_run(self, name: bytes) -> None:
        run = self.runs[name]
        self.drop_children(f"{run['tenant']}:{run['session']}".encode(), name)
        super().drop_run(name)

    def repair_runs(self, passed: int) -> None:
        """Give what runs as much time as it had, after the clock was set."""
        super().repair_runs(passed)
        for names in self.running.values():
            for call in map(self.children.__getitem__, names):
                call["started_at"] = min(call["started_at"] + passed, self.now)
                call["due_at"] = min(call["due_at"] + passed, self.now + call["limit_ms"])
