"""The protocol of migrations as a plain model: owner, epoch, step, version and content.

An account of its own: it imports nothing of the product, and nothing of the oracle. It computes all
that services, operators and the time of an offer do. The clocks of a session are none of the
protocol's; the model is reported when one has fired.
"""

import hashlib
from typing import NamedTuple

OWNER_SILENT_MS = 20_000  # a third of the budget of silence
MISSES_MAX = 3
MOVABLE = ("Active", "Paused", "Timeout")


class Said(NamedTuple):
    """An event, as far as the protocol knows it. `kind`: the name of one of the model's rules.

    `version` and `content`: of a write the version that it follows, and the new content; of an
    acceptance what the target says that it has, the content as its hash.
    """

    kind: str
    service: str
    epoch: int
    operator: bool = False
    migration_id: str = ""
    target: str = ""
    ttl_ms: int = 0
    version: int = 0
    content: str = ""
    key: str = ""
    succeeded: bool = False


class Move(NamedTuple):
    """A migration that is not over. `before`: the session's state when it was prepared."""

    migration_id: str
    target: str
    ends_ms: int
    prepared: bool = False
    before: str = ""
    misses: int = 0


def hash_of(content: str) -> str:
    """Return the hash of a content: SHA-256 of its UTF-8 text, as hex."""
    return hashlib.sha256(content.encode()).hexdigest()


class ProtocolModel:
    """One session, from its start in Active. Times are ms of the log."""

    def __init__(self, owner: str, now_ms: int) -> None:
        self.owner, self.epoch, self.state = owner, 1, "Active"
        self.version, self.content = 1, "{}"
        self.move: Move | None = None
        self.outcomes: list[tuple[str, str]] = []  # how each migration ended, by its id
        self.is_asking = False
        self.is_held = False
        self.calls: dict[str, tuple[str, int]] = {}  # state and number of the last try, by key
        self.owner_heard_ms = now_ms
        self.fenced: set[tuple[int, str]] = set()  # who was rejected a beat of a past epoch, by epoch

    def judge(self, said: Said, now_ms: int) -> str:
        """Return the verdict on an event, and take it if it applies."""
        objection = self._object(said)
        if not objection:
            objection = getattr(self, f"_{said.kind}")(said, now_ms)
        if objection:
            return "fenced beat" if self._is_known_beat(said, objection) else f"rejected {objection}"
        if said.service == self.owner:
            self.owner_heard_ms = now_ms
        return "applied"

    def _is_known_beat(self, said: Said, objection: str) -> bool:
        """Return whether a service beats once more in an epoch that has fenced it off."""
        fenced = self.epoch, said.service
        if said.kind != "beat" or objection != "stale_epoch":
            return False
        is_known = fenced in self.fenced
        self.fenced.add(fenced)
        return is_known

    def hear_clock(self, clock: str, now_ms: int) -> str:
        """Take what a clock did: of a session, a call, or a migration. Returns what is wrong."""
        move = self.move
        if clock == "T06":
            self.state = "Timeout"
        elif clock in ("T08", "T09"):
            self._end_session()
        elif clock == "T05":  # the time for an answer is over
            self.state, self.epoch, self.is_asking = "Active", self.epoch + 1, False
            if move is not None and move.prepared:
                self._end_move("session_resumed")
        elif clock.startswith("call "):
            key = clock.removeprefix("call ")
            self.calls[key] = ("unknown", self.calls[key][1])
        elif move is None or now_ms < move.ends_ms:
            return f"a migration ended at {now_ms}, but the open one is {move}"
        else:
            self._abort_move("expired" if move.prepared else "target_silent")
        return ""

    def is_late(self, now_ms: int) -> bool:
        """Return whether the open migration should have ended."""
        return self.move is not None and now_ms >= self.move.ends_ms

    # Who may

    def _object(self, said: Said) -> str:
        if said.epoch != self.epoch:
            return "stale_epoch" if said.epoch < self.epoch else "future_epoch"
        target = None if self.move is None else self.move.target
        allowed: dict[str, set[str | None]] = {
            "offer": {self.owner},
            "load": {target} if target else {said.service},
            "accept": {target} if target else {said.service},
            "abort": {self.owner, target},
            **{kind: {self.owner} for kind in ("pause", "ask", "resume", "end")},
        }
        if said.kind == "write" and said.service != self.owner:
            return "not_member"
        if said.kind in allowed and said.service not in allowed[said.kind] and not said.operator:
            return "not_owner"
        return ""

    def _object_to_state(self, *allowed: str) -> str:
        if self.state in allowed:
            return ""
        return "late" if self.state == "Timeout" and "Active" in allowed else "illegal_transition"

    # The protocol

    def _offer(self, said: Said, now_ms: int) -> str:
        if self.state not in MOVABLE:
            return "illegal_transition"
        if self.move is not None:
            return "migration_open"
        if said.target == self.owner:
            return "invalid_value"
        self.move = Move(said.migration_id, said.target, now_ms + said.ttl_ms)
        return ""

    def _load(self, said: Said, now_ms: int) -> str:
        if self.move is None or self.move.migration_id != said.migration_id:
            return "unknown_migration"
        if self.move.prepared or self.state not in MOVABLE:
            return "illegal_transition"
        self.move = self.move._replace(prepared=True, before=self.state)
        if self.state == "Active":
            self.state = "Paused"
        return ""

    def _accept(self, said: Said, now_ms: int) -> str:
        move = self.move
        if move is None or move.migration_id != said.migration_id:
            return "unknown_migration"
        if not move.prepared:
            return "illegal_transition"
        if (said.version, said.content) != (self.version, hash_of(self.content)):
            self.move = move._replace(misses=move.misses + 1)
            if self.move.misses == MISSES_MAX:
                self._abort_move("state_differs")
            return "migration_moved"
        self._give_to(move.target, now_ms)
        self._end_move("migrated")
        self.state = "Paused" if move.before == "Paused" else "Active"
        return ""

    def _abort(self, said: Said, now_ms: int) -> str:
        if self.move is None or self.move.migration_id != said.migration_id:
            return "unknown_migration"
        is_target = said.service == self.move.target and not said.operator
        self._abort_move("declined" if is_target else "called_off")
        return ""

    def _claim(self, said: Said, now_ms: int) -> str:
        if self.state not in MOVABLE:
            return "illegal_transition"
        is_silent = now_ms - self.owner_heard_ms >= OWNER_SILENT_MS
        if said.service != self.owner and not said.operator and not is_silent:
            return "owner_alive"
        self._give_to(said.service, now_ms)
        if self.move is not None:
            self._abort_move("taken_over")
        return ""

    def _give_to(self, service: str, now_ms: int) -> None:
        self.owner, self.epoch, self.owner_heard_ms = service, self.epoch + 1, now_ms

    def _abort_move(self, why: str) -> None:
        """End the migration; the session is as it was before."""
        if self.move is not None and self.move.before == "Active":
            self.state = "Active"
        self._end_move(why)

    def _end_move(self, why: str) -> None:
        if self.move is not None:
            self.outcomes.append((self.move.migration_id, why))
        self.move = None

    def _end_session(self) -> None:
        self.state, self.is_asking, self.is_held = "Terminated", False, False
        self._end_move("session_ended")

    # What happens meanwhile

    def _write(self, said: Said, now_ms: int) -> str:
        if objection := self._object_to_state("Active"):
            return objection
        if said.version != self.version:
            return "version_conflict"
        self.version, self.content = self.version + 1, said.content
        return ""

    def _work(self, said: Said, now_ms: int) -> str:
        return self._object_to_state("Active")

    def _beat(self, said: Said, now_ms: int) -> str:
        return self._object_to_state(*MOVABLE)

    def _pause(self, said: Said, now_ms: int) -> str:
        if objection := self._object_to_state("Active", *(["Paused"] if said.operator else [])):
            return objection
        if self.move is not None and self.move.prepared and self.move.before == "Active":
            self.move = self.move._replace(before="Paused")  # it stays Paused whatever becomes of the move
        self.state, self.is_asking = "Paused", self.is_asking or said.kind == "ask"
        self.is_held = said.operator
        return ""

    _ask = _pause

    def _resume(self, said: Said, now_ms: int) -> str:
        """Resume; an operator's resumption with `succeeded` is an approval."""
        if self.state not in ("Paused", "Timeout"):
            return "illegal_transition"
        if self.is_held and not said.operator:
            return "operator_only"
        if self.move is not None and self.move.prepared:
            return "migration_open"
        if self.is_asking != said.succeeded:
            return "question_open" if self.is_asking else "no_question"
        self.state, self.epoch, self.is_asking, self.is_held = "Active", self.epoch + 1, False, False
        return ""

    def _end(self, said: Said, now_ms: int) -> str:
        if objection := self._object_to_state("Active", "Paused"):
            return objection
        self._end_session()
        return ""

    def _start_call(self, said: Said, now_ms: int) -> str:
        state, tries = self.calls.get(said.key, ("", 0))
        rejections = {"running": "call_in_progress", "succeeded": "call_succeeded", "unknown": "call_unresolved"}
        if objection := self._object_to_state("Active") or rejections.get(state, ""):
            return objection
        self.calls[said.key] = ("running", tries + 1)
        return ""

    def _end_call(self, said: Said, now_ms: int) -> str:
        state, tries = self.calls.get(said.key, ("", 0))
        if objection := self._object_to_state(*MOVABLE):
            return objection
        if not state:
            return "unknown_call"
        if state in ("succeeded", "failed"):
            return "illegal_transition"
        self.calls[said.key] = ("succeeded" if said.succeeded else "failed", tries)
        return ""
