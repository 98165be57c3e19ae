"""A session among three services, an operator and the clock: the fold beside a model of it.

fold ── verdict, row, audit, dead letters ──▶ account: the six invariants
  │                                              │
  └────── must be what the model says ───────────┘   both are looked at after every step
"""

from collections import Counter
from itertools import count
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessionary.schemas.records import AuditRecord
from sessionary.schemas.types import ErrorInfo, Limits
from tests.core.fold_rig import FoldRig
from tests.core.stream_processors.core.migration.protocol_account import (
    AUDITS,
    COMMITS,
    EPOCHS,
    HASHES,
    OWNERS,
    SUCCESSES,
    Line,
    ProtocolAccount,
    Step,
)
from tests.core.stream_processors.core.migration.protocol_model import ProtocolModel, Said, hash_of
from tests.support.event_factory import TICK, EventFactory, snapshot

SERVICES = ("billing", "shipping", "support")
OPERATOR = "control-api"
# Silence, hold, grace and answers may all end while a migration stands.
LIMITS = Limits(max_duration_ms=10**9, idle_ms=10**9, hold_ms=50_000, grace_ms=40_000, override=True)
ANSWER_MS = 20_000
TICKS_MS = 4_000  # no outage
FAILURE = ErrorInfo("retryable", "busy", "later")
AFTER_END = 3
TTLS_MS = (5_000, 30_000, 45_000)
EVENTS = {
    "offer": "session_migration_offered",
    "load": "session_migration_loaded",
    "accept": "session_migration_accepted",
    "abort": "session_migration_aborted",
    "claim": "session_taken_over",
    "write": "state_updated",
    "work": "session_activity",
    "beat": "heartbeat",
    "pause": "session_paused",
    "ask": "session_paused",
    "resume": "session_resumed",
    "end": "session_terminated",
    "start_call": "tool_call_started",
    "end_call": "tool_call_failed",
}
KEYS = st.sampled_from(("order", "mail"))
SENDERS = st.sampled_from(("owner",) * 6 + ("target",) * 6 + ("other", "operator", "operator"))
TARGETS = st.sampled_from(("target",) * 8 + ("owner", "other", "operator"))
EPOCHS_OFF = st.sampled_from((0,) * 8 + (-1, -1, 1))
MIGRATIONS = st.sampled_from(("open",) * 8 + ("last", "unknown"))


class MigrationMachine(RuleBasedStateMachine):
    """`reached` counts, over all examples, which verdicts, ends and clocks there were."""

    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.rig = FoldRig()
        self.numbers = count(1)
        self.begin()

    def begin(self) -> None:
        """Begin a session, and the model and the account of it."""
        name = f"s{next(self.numbers)}"
        self.agents = {one: EventFactory(name, service=one, producer=f"p-{one}") for one in (*SERVICES, OPERATOR)}
        self.agent = self.agents[SERVICES[0]]
        for one in self.agents.values():
            one.taken = self.agent.taken  # a snapshot's id is new in its session
        self.rig.start(self.agent, limits=LIMITS)
        self.model, self.account = ProtocolModel(SERVICES[0], self.rig.at), ProtocolAccount(SERVICES[0])
        self.ends: list[tuple[str | None, str]] = []
        self.differences: list[str] = []
        self.sent: list[tuple[Said, str, bytes]] = []
        self.last_id, self.after_end = "none", 0

    # What is sent

    def service_of(self, who: str) -> str:
        owner, move = self.model.owner, self.model.move
        target = SERVICES[(SERVICES.index(owner) + 1) % 3] if move is None else move.target
        (other,) = {*SERVICES} - {owner, target}
        return {"owner": owner, "target": target, "other": other, "operator": OPERATOR}[who]

    def migration_of(self, which: str) -> str:
        if which == "open" and self.model.move is not None:
            return self.model.move.migration_id
        return which if which == "unknown" else self.last_id

    def say(self, kind: str, who: str, off: int = 0, **more: Any) -> str:
        """Send an event whose epoch is `off` the session's; return the verdict.

        Once a few came after the session's end, there is another session.
        """
        self.after_end += self.model.state == "Terminated"
        if self.after_end > AFTER_END:
            self.begin()
        said = Said(
            kind, self.service_of(who), max(1, self.model.epoch + off), **{"operator": who == "operator", **more}
        )
        agent, event_id = self.agents[said.service], f"e{next(self.numbers)}"
        agent.head = self.rig.row_of(self.agent).snapshot.snapshot_id
        event_type = "tool_call_succeeded" if kind == "end_call" and said.succeeded else EVENTS[kind]
        value = agent.event_bytes(event_type, {"event_id": event_id, "epoch": said.epoch}, **self.payload_of(said))
        if kind != "beat":
            self.sent.append((said, event_id, value))
        verdict = self.rig.append(agent.key.encoded(), value)
        expected = self.model.judge(said, self.rig.at)
        if verdict != expected:
            self.differences.append(f"{said}: {verdict}, not {expected}")
        self.reached[f"{kind}: {verdict}"] += 1
        self.take(said, event_id, verdict)
        return verdict

    def payload_of(self, said: Said) -> dict[str, Any]:
        """Return the fields in which an event differs from the example of its type."""
        migration, operator = {"migration_id": said.migration_id}, {"as_operator": said.operator}
        has = {"version": said.version, "content_hash": said.content}
        written = {"base_version": said.version, "new_version": said.version + 1, "state_json": said.content}
        call = {"tool_call_id": f"call-{said.key}", "idem_key": said.key, "tool_name": "shop"}
        tries = self.model.calls.get(said.key, ("", 0))[1]
        fields: dict[str, dict[str, Any]] = {
            "offer": {**migration, **operator, "target_service": said.target, "ttl_ms": said.ttl_ms},
            "load": migration,
            "accept": {**migration, **has, "target_service": said.service},
            "abort": {**migration, **operator},
            "claim": operator,
            "write": written,
            "pause": {**operator, "snapshot": None if said.operator else snapshot("paused")},
            "ask": {"kind": "review", "question": "May I?", "answer_ms": ANSWER_MS, **operator},
            "resume": {**operator, "approved": said.succeeded or None},
            "end": {**operator, "reason": "cancelled"},
            "start_call": {**call, "try_number": tries + 1, "side_effect": True, "queryable": False},
            "end_call": {**call, "try_number": max(1, tries), **({} if said.succeeded else {"error": FAILURE})},
        }
        return fields.get(said.kind, {})

    # What comes of it

    def take(self, said: Said | None, event_id: str, verdict: str) -> None:
        """Tell the account what an event, or a tick, has come to."""
        row, lines = self.rig.row_of(self.agent), self.lines()
        reported = [
            Line(line.kind, line.event_id, line.epoch, line.owner_service, line.migration_step) for line in lines
        ]
        letters = [] if self.rig.outcome is None else self.rig.outcome.records_on("rejected")
        after = (row.epoch, row.owner_service, row.version, row.state_json)
        self.account.take(Step(said, event_id, verdict, reported, [letter.reason for _, letter in letters], *after))
        ends = [line for line in lines if line.migration_step in ("completed", "aborted")]
        self.ends += [(line.migration_id, line.reason_code) for line in ends]
        self.reached.update(f"end: {line.reason_code}" for line in ends)

    def lines(self) -> list[AuditRecord]:
        """Return what was just audited of the session, not of those before it."""
        written = [] if self.rig.outcome is None else self.rig.outcome.records_on("audit")
        return [line for _, line in written if line.session_id == self.agent.key.session_id]

    def pass_ms(self, ms: int) -> None:
        """Let time pass, with ticks, until the session ends."""
        until = self.rig.at + ms
        while self.rig.at < until and self.model.state != "Terminated":
            self.rig.at = min(until, self.rig.at + TICKS_MS)
            verdict = self.rig.append(None, TICK)
            for clock in filter(None, map(clock_of, self.lines())):
                self.reached[f"clock: {clock.partition(' ')[0]}"] += 1
                self.differences += filter(None, [self.model.hear_clock(clock, self.rig.at)])
            if self.model.is_late(self.rig.at):
                self.differences.append(f"{self.model.move} is not over at {self.rig.at}")
            self.take(None, "", verdict)

    # Rules: the migration

    @rule(who=SENDERS, off=EPOCHS_OFF, steps=st.sampled_from((1, 1, 1, 2, 0)), ttl_ms=st.sampled_from(TTLS_MS))
    def offer(self, who: str = "owner", off: int = 0, steps: int = 1, ttl_ms: int = TTLS_MS[-1]) -> None:
        """Offer the session to the service that is so many steps behind its owner."""
        target = SERVICES[(SERVICES.index(self.model.owner) + steps) % 3]
        self.last_id = f"m{next(self.numbers)}"
        self.say("offer", who, off, migration_id=self.last_id, target=target, ttl_ms=ttl_ms)

    @rule(who=TARGETS, off=EPOCHS_OFF, which=MIGRATIONS)
    def load(self, who: str = "target", off: int = 0, which: str = "open") -> None:
        self.say("load", who, off, migration_id=self.migration_of(which), operator=False)

    @rule(who=TARGETS, off=EPOCHS_OFF, which=MIGRATIONS, wrong=st.sampled_from(("",) * 4 + ("version", "hash")))
    def accept(self, who: str = "target", off: int = 0, which: str = "open", wrong: str = "") -> None:
        """Accept as a service that has read the row, or that has read another one."""
        has = hash_of("{}!" if wrong == "hash" else self.model.content)
        version = self.model.version + (wrong == "version")
        fields = {"migration_id": self.migration_of(which), "version": version, "content": has, "operator": False}
        self.say("accept", who, off, **fields)

    @precondition(lambda machine: machine.model.move is not None and machine.model.move.prepared)
    @rule()
    def accept_something_else(self) -> None:
        """Let the target have another state, as often as it may."""
        for wrong in ("hash", "version", "hash"):
            self.accept(wrong=wrong)

    @rule(steps=st.sampled_from((1, 2, 2, 3, 3)))
    def go_on(self, steps: int = 1) -> None:
        """Let the next steps of the migration come, as they should."""
        for _ in range(steps):
            move = self.model.move
            self.offer() if move is None else self.accept() if move.prepared else self.load()

    @precondition(lambda machine: machine.model.state == "Active" and machine.model.move is None)
    @rule()
    def prepare_while_asking(self) -> None:
        """Let a session wait for a person, and for its migration."""
        self.pause(asks=True)
        self.go_on(2)

    @rule(who=SENDERS, off=EPOCHS_OFF, which=MIGRATIONS)
    def abort(self, who: str = "owner", off: int = 0, which: str = "open") -> None:
        self.say("abort", who, off, migration_id=self.migration_of(which))

    @rule(
        who=st.sampled_from(("owner", "target", "other")),
        off=EPOCHS_OFF,
        by_operator=st.sampled_from((False, False, True)),
    )
    def claim(self, who: str = "target", off: int = 0, by_operator: bool = False) -> None:
        self.say("claim", who, off, operator=by_operator)

    # Rules: the session

    @rule(who=SENDERS, off=EPOCHS_OFF, base=st.sampled_from((0, 0, 0, 0, 1)))
    def write(self, who: str = "owner", off: int = 0, base: int = 0) -> None:
        content = f'{{"n": {next(self.numbers)}}}'
        self.say("write", who, off, version=self.model.version + base, content=content, operator=False)

    @rule(who=SENDERS, off=EPOCHS_OFF)
    def work(self, who: str = "owner", off: int = 0) -> None:
        self.say("work", who, off, operator=False)

    @rule(who=SENDERS, off=EPOCHS_OFF)
    def beat(self, who: str = "owner", off: int = 0) -> None:
        self.say("beat", who, off, operator=False)

    @rule(who=SENDERS, off=EPOCHS_OFF, asks=st.booleans())
    def pause(self, who: str = "owner", off: int = 0, asks: bool = False) -> None:
        self.say("ask" if asks else "pause", who, off)

    @rule(who=SENDERS, off=EPOCHS_OFF)
    def resume(self, who: str = "owner", off: int = 0) -> None:
        """Resume as the owner; an operator answers, if there is a question."""
        self.say("resume", who, off, succeeded=who == "operator" and self.model.is_asking)

    @rule(who=SENDERS, off=EPOCHS_OFF, key=KEYS)
    def start_call(self, who: str = "owner", off: int = 0, key: str = "order") -> None:
        self.say("start_call", who, off, key=key, operator=False)

    @rule(who=SENDERS, off=EPOCHS_OFF, key=KEYS, succeeds=st.booleans())
    def end_call(self, who: str = "owner", off: int = 0, key: str = "order", succeeds: bool = True) -> None:
        self.say("end_call", who, off, key=key, succeeded=succeeds, operator=False)

    @rule(key=KEYS, who=st.sampled_from(("owner", "target")))
    def report_success_twice(self, key: str = "order", who: str = "owner") -> None:
        """Call a tool; two processes tell its success."""
        self.start_call(key=key)
        self.end_call(key=key)
        self.end_call(who, key=key)

    @rule(which=st.integers(0, 19))
    def deliver_again(self, which: int = 0) -> None:
        """Append one of the last events once more: its number tells that it is a repetition."""
        if not self.sent:
            return
        said, event_id, value = self.sent[-20:][which % len(self.sent[-20:])]
        verdict = self.rig.append(self.agent.key.encoded(), value)
        if verdict != "duplicate":
            self.differences.append(f"{said} again: {verdict}")
        self.reached[f"again: {verdict}"] += 1
        self.take(said, event_id, verdict)

    @rule(ms=st.sampled_from((1, 4_999, 5_000, 12_000, 20_000)))
    def pass_time(self, ms: int = 1) -> None:
        self.pass_ms(ms)

    @precondition(lambda machine: machine.model.move is not None)
    @rule(loads=st.booleans())
    def let_time_end_it(self, loads: bool = False) -> None:
        """Let time pass up to the end of the open migration, with a look 1 ms before."""
        if loads:
            self.load()
        assert self.model.move is not None
        self.pass_ms(self.model.move.ends_ms - self.rig.at - 1)
        self.pass_ms(1)

    @precondition(lambda machine: machine.model.state == "Active")
    @rule(moves=st.booleans(), for_good=st.booleans())
    def fall_silent(self, moves: bool = False, for_good: bool = False) -> None:
        """Let nothing be heard until the session is in Timeout; it may be offered then, or end."""
        self.pass_ms(61_000)
        if moves:
            self.go_on(2)
        if for_good:
            self.pass_ms(41_000)

    @rule(who=st.sampled_from(("owner", "operator", "other", "other", "other")))
    def end(self, who: str = "owner") -> None:
        self.say("end", who)

    @precondition(lambda machine: machine.model.state == "Terminated")
    @rule()
    def begin_again(self) -> None:
        self.begin()

    # What must hold

    @invariant()
    def accepted_epochs_never_fall(self) -> None:
        assert self.account.found[EPOCHS] == [], EPOCHS

    @invariant()
    def an_epoch_has_one_owner(self) -> None:
        assert self.account.found[OWNERS] == [], OWNERS

    @invariant()
    def nothing_of_an_epoch_is_accepted_after_it_ended(self) -> None:
        assert self.account.found[COMMITS] == [], COMMITS

    @invariant()
    def the_target_has_the_fold_of_all_accepted_events(self) -> None:
        assert self.account.found[HASHES] == [], HASHES

    @invariant()
    def each_rejected_event_is_audited_once(self) -> None:
        assert self.account.found[AUDITS] == [], AUDITS

    @invariant()
    def a_key_succeeds_once(self) -> None:
        assert self.account.found[SUCCESSES] == [], SUCCESSES

    @invariant()
    def the_fold_is_as_the_model_says(self) -> None:
        assert self.find_differences() == []

    def find_differences(self) -> list[str]:
        """Return in what fold and model differ: verdicts, session, migration, and its ends."""
        row, model = self.rig.row_of(self.agent), self.model
        migration = row.migration if row.migration is not None and row.migration.is_open else None
        step = None if migration is None else (migration.migration_id, migration.target_service, migration.step)
        move = model.move and (
            model.move.migration_id,
            model.move.target,
            "prepared" if model.move.prepared else "offered",
        )
        ours = (row.state, row.owner_service, row.epoch, row.version, row.state_json, step, self.ends)
        theirs = (model.state, model.owner, model.epoch, model.version, model.content, move, model.outcomes)
        return [
            *self.differences,
            *(f"{our}, not {their}" for our, their in zip(ours, theirs, strict=True) if our != their),
        ]


def clock_of(line: AuditRecord) -> str:
    """Return which clock a line tells of, in the model's words; '' for what follows from it."""
    if line.due_at is None or line.reason_code == "migration_aborted":
        return ""
    return line.transition or ("migration" if line.kind == "migration" else f"call {line.idem_key}")
