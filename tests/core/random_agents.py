"""Random agents and random time, checked by an `OracleRig`; the given `Random` decides everything.

Three sessions of two tenants share a partition; each session has two client processes. Most events
are legal in the session's state; the others are wrong in every way that a record can be wrong.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.ids import run_key
from sessionary.schemas.records import Position, SessionState
from sessionary.schemas.types import CleanupAction, ErrorInfo, Limits
from tests.core.moves_of_others import MovesOfOthers
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.core.run_moves import (
    ARTIFACT_WAY,
    CALL_WAY,
    ERRORS,
    MESSAGES,
    PLAIN_CALLS,
    RUN_IDS,
    WORK,
    draw_child_event,
    draw_run_event,
    draw_run_marks,
)
from tests.support.event_factory import EventFactory, snapshot, snapshot_id

SHORT = Limits(
    idle_ms=40_000,
    max_duration_ms=100_000,
    grace_ms=9_000,
    hold_ms=20_000,
    user_idle_ms=60_000,
    recovery_ms=9_000,
    archive_delay_ms=5_000,
    release_limit_ms=8_000,
)
LIMITS = [
    *[SHORT] * 4,
    *[SHORT._replace(idle_ms=60_000, max_duration_ms=60_000)] * 3,  # ties
    *[SHORT._replace(max_duration_ms=20_000)] * 3,
    Limits(),
    Limits(model_ms=29_999),
    Limits(model_ms=60_000),
    Limits(model_ms=60_001, override=True),
    Limits(tool_ms=10_000, network_ms=15_000, context_limit_bytes=50_000_000),
    Limits(tool_ms=9_999),
    Limits(network_ms=15_001, override=True),
    Limits(context_limit_bytes=200_000_001),
    Limits(grace_ms=0, override=True),
    Limits(hold_ms=-1),
]
ENDS = "UNKNOWN closed completed cancelled abnormal_termination forced unrecoverable recovery_failed timeout_cleanup"
PHASES = "validating connecting processing updating persisting waiting logging recovery cleanup releasing clearing"
FIELDS: dict[str, dict[str, list[Any]]] = {
    "session_created": {"limits": LIMITS},
    "session_phase_changed": {"phase": PHASES.split()},
    "session_start_failed": {"reason": ["UNKNOWN", "invalid_config", "connection_failed", "init_timeout"]},
    "session_paused": {"snapshot": [snapshot("paused"), snapshot("paused"), None]},
    "session_resumed": {"snapshot_id": [None, None, *map(snapshot_id, ("paused", "first", "nowhere"))]},
    "session_errored": {"error": ERRORS},
    "session_terminated": {"reason": ENDS.split()},
    "snapshot_created": {"snapshot": [snapshot("x"), snapshot("paused")]},
}
AGENT_FIELDS = FIELDS | PLAIN_CALLS | MESSAGES
Move = tuple[str, dict[str, Any]]
NEXT_EVENTS: dict[str, list[Move]] = {
    "Idle": [
        ("session_phase_changed", {"phase": "validating"}),
        ("session_phase_changed", {"phase": "connecting"}),
        ("session_started", {}),
        ("session_started", {}),
        ("session_start_failed", {"reason": "invalid_config"}),
        ("heartbeat", {}),
    ],
    "Active": [
        ("session_phase_changed", {"phase": "updating"}),
        ("session_phase_changed", {"phase": "persisting"}),
        ("session_phase_changed", {"phase": "waiting"}),
        ("session_phase_changed", {"phase": "processing"}),
        ("session_paused", {}),
        ("session_errored", {}),
        ("session_errored", {"error": ERRORS[0]}),
        ("session_terminated", {"reason": "completed"}),
        ("session_terminated", {"reason": "abnormal_termination"}),
        ("session_terminated", {"reason": "forced"}),
        ("heartbeat", {}),
        ("heartbeat", {}),
        ("state_updated", {}),
        ("state_updated", {}),
        ("snapshot_created", {}),
        *[(name, {}) for name in WORK],
    ],
    "Paused": [
        ("session_resumed", {"snapshot_id": snapshot_id("paused")}),
        ("session_resumed", {}),
        ("session_terminated", {"reason": "cancelled"}),
        ("usage_recorded", {}),
        ("snapshot_created", {}),
        ("heartbeat", {}),
    ],
    "Timeout": [("session_resumed", {"snapshot_id": None}), ("session_activity", {}), ("heartbeat", {})],
    "Error": [
        ("session_phase_changed", {"phase": "recovery"}),
        ("session_phase_changed", {"phase": "recovery"}),
        ("session_recovered", {}),
        ("session_recovered", {}),
        ("session_terminated", {"reason": "forced"}),
        ("heartbeat", {}),
    ],
    "Terminated": [("session_phase_changed", {"phase": "clearing"}), ("heartbeat", {})],
}
CONTEXT_SIZES = [None, None, None, 1_000, 199_999_999, 200_000_000, 200_000_001, 50_000_000, 50_000_001]
INVALID_ENVELOPES: list[dict[str, Any]] = [
    {"tenant_id": "evil"},
    {"tenant_id": "not a name"},
    {"session_id": "0198f1c2-7d9a-7000-8000-000000000009"},
    {"service_id": "other"},
    {"service_id": ""},
    {"agent_id": "a b"},
    {"epoch": -1},
    {"epoch": 0},
    {"epoch": 99},
    {"producer_seq": 0},
    {"producer_seq": -5},
    {"user_id": None},
]
# Each of these is rejected.
LONG_TEXTS: list[dict[str, Any]] = [
    {name: "x" * 257} for name in ("event_id", "user_id", "agent_role", "actor", "run_id", "step_id", "causation_id")
]
OUT_OF_BOUNDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("usage_recorded", {"tokens_in": -5}, {}),
    ("usage_recorded", {"tool_cost_usd_nanos": 10**15 + 1}, {}),
    ("usage_recorded", {"model": "x" * 257}, {}),
    ("session_activity", {}, {"context_bytes": -1}),
    ("session_activity", {}, {"producer_seq": 10**15 + 1}),
    ("session_activity", {}, {"run_seq": -1}),
    ("progress_reported", {"progress": float("inf")}, {}),
    ("session_errored", {"error": ErrorInfo("retryable", "e", "x" * 16_385)}, {}),
    ("session_terminated", {"message": "x" * 16_385}, {}),
    ("heartbeat", {"last_seq": -1}, {}),
    ("session_created", {"parent_session_id": "x" * 257}, {}),
]
BAD_KEYS = [None, b"", b"acme:x", b"\xff", b"\x00position"]


class RandomAgents(MovesOfOthers):
    """Six agents of three sessions, and the rig that judges what they send."""

    def __init__(self, rng: Random, position: Position = FIRST_POSITION) -> None:
        """If rules are announced at `position`, they begin at some time."""
        self.rng, self.rig = rng, OracleRig(position=position)
        names = (("a", "acme"), ("b", "acme"), ("a", "zeta"))
        self.agents = [EventFactory(name, tenant, producer=p) for name, tenant in names for p in ("p1", "p2")]
        self.renewed = 0

    def act_once(self) -> None:
        weights = [weight for weight, _ in self.weighted_actions()]
        self.rng.choices([act for _, act in self.weighted_actions()], weights)[0]()

    def weighted_actions(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the actions with their relative frequency."""
        return [
            (40, self.send_sensible),
            (4, self.send_any_type),
            (4, self.send_invalid_envelope),
            (3, self.skip_numbers),
            (4, self.repeat_number),
            (3, self.append_again),
            (3, self.append_damaged),
            (1, self.append_bad_key),
            (6, self.confirm_release),
            (3, self.fail_and_recover),
            (5, self.start_session),
            (12, self.pass_time),
            (6, self.jump_to_deadline),
            (1, self.step_clock_back),
            (1 if self.rig.oracle.announced else 0, self.begin_rules),
            (3 if self.rig.oracle.rules >= 2 else 0, self.exceed_bounds),
            (4 if self.rig.oracle.rules >= 2 else 0, self.forge_content),
            (4 if self.rig.oracle.rules >= 2 else 0, self.replay_missing),
            (3 if self.rig.oracle.rules >= 2 else 0, self.take_over),
            (3 if self.rig.oracle.rules >= 2 else 0, self.migrate_session),
            (8 if self.rig.oracle.rules >= 2 else 0, self.step_in),
            (4 if self.rig.oracle.rules >= 2 else 0, self.ask_person),
            (30 if self.rig.oracle.rules >= 2 else 0, self.send_run_event),
            (40 if self.rig.oracle.rules >= 2 else 0, self.send_child_event),
            (6 if self.rig.oracle.rules >= 2 else 0, self.send_child_story),
            (8 if self.rig.oracle.rules >= 2 else 0, self.send_agent_event),
            (12 if self.rig.oracle.rules >= 2 else 0, self.send_point_event),
        ]

    def pick_agent(self) -> EventFactory:
        """Pick any agent; if its session is archived, mostly replace that session's agents."""
        place = self.rng.randrange(len(self.agents))
        old = self.agents[place]
        if old.key.encoded() in self.rig.oracle.graves and self.rng.random() < 0.8:
            self.renewed += 1
            for n in (place & ~1, place | 1):
                name, tenant = f"new-{self.renewed}", old.key.tenant_id
                self.agents[n] = EventFactory(name, tenant, producer=f"p{n & 1}")
        return self.agents[place]

    def pick_active_agent(self) -> EventFactory:
        """Pick an agent, mostly of a session in which work is accepted."""
        active = [agent for agent in self.agents if getattr(self.row_of(agent), "state", "") == "Active"]
        return self.rng.choice(active) if active and self.rng.random() < 0.8 else self.pick_agent()

    def row_of(self, agent: EventFactory) -> SessionState | None:
        row = self.rig.fold.rows.get(agent.key.encoded())
        return row if isinstance(row, SessionState) else None

    def send(self, agent: EventFactory, event_type: str, fields: dict[str, Any], **envelope: Any) -> None:
        drawn = {name: self.rng.choice(options) for name, options in AGENT_FIELDS.get(event_type, {}).items()}
        row = self.row_of(agent)
        if row is not None:
            agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
            if event_type == "state_updated":
                base = row.version + self.rng.choice([0, 0, 0, 1, -1])
                drawn = {"base_version": base, "new_version": base + self.rng.choice([1, 1, 1, 2])}
        weight = self.rng.choice(CONTEXT_SIZES)
        self.rig.send(agent, event_type, {"context_bytes": weight, **envelope}, **{**drawn, **fields})

    def send_sensible(self) -> None:
        agent = self.pick_agent()
        row = self.row_of(agent)
        moves = [("session_created", {})] if row is None else NEXT_EVENTS[row.state]
        self.send(agent, *self.rng.choice(moves))

    def send_any_type(self) -> None:
        self.send(self.pick_agent(), self.rng.choice(sorted(PAYLOADS)), {})

    def send_invalid_envelope(self) -> None:
        agent = self.pick_agent()
        row = self.row_of(agent)
        moves = [("session_created", {})] if row is None else [*NEXT_EVENTS[row.state], ("session_created", {})]
        self.send(agent, *self.rng.choice(moves), **self.rng.choice(INVALID_ENVELOPES))

    def exceed_bounds(self) -> None:
        """Send what is rejected for its form."""
        if self.rng.random() < 0.3:
            self.send(self.pick_agent(), self.rng.choice(WORK), {}, **self.rng.choice(LONG_TEXTS))
        else:
            event_type, fields, envelope = self.rng.choice(OUT_OF_BOUNDS)
            self.send(self.pick_agent(), event_type, fields, **envelope)

    def replay_missing(self) -> None:
        """Send an event again as an operator does, mostly with a number that is missing."""
        agent = self.pick_agent()
        row = self.row_of(agent)
        ledgers = {} if row is None else {ledger.producer_id: ledger for ledger in row.producers}
        missing = ledgers[agent.producer].missing if agent.producer in ledgers else ()
        number = self.rng.choice([1, 2, agent.seq, *(self.rng.randint(*gap) for gap in missing for _ in range(4))])
        event_type = self.rng.choice(
            [*WORK, *WORK, "state_updated", "checkpoint_saved", "step_skipped", "artifact_purged"]
        )
        marks = {"producer_seq": max(1, number), "epoch": self.rng.choice([0, 1, 1, 99])}
        fields = {"idem_key": self.rng.choice(["", "k1"])} if event_type == "tool_call_succeeded" else {}
        value = agent.event_bytes(event_type, {**marks, "run_id": self.rng.choice([None, *RUN_IDS])}, **fields)
        self.rig.append(agent.key.encoded(), value, (("replayed_from", b'"events:0:1"'),))

    def send_run_event(self) -> None:
        """Send an event of one of a session's few runs."""
        agent, run_id = self.pick_agent(), self.rng.choice(RUN_IDS)
        known = self.rig.fold.rows.get(run_key(*agent.key, run_id))
        self.send(agent, *draw_run_event(self.rng, known), **draw_run_marks(self.rng, run_id))

    def send_child_event(self) -> None:
        """Send an event of a step, a reserved tool call or an artifact."""
        agent = self.pick_active_agent()
        move = draw_child_event(self.rng, agent.key, self.rig.fold.rows.get)
        self.send(agent, move.event_type, move.fields, **move.marks)

    def send_child_story(self) -> None:
        """Send the events of an artifact or a call of a session, in their order."""
        agent, name = self.pick_active_agent(), f"own-{self.rng.randrange(3)}"
        way, names = self.rng.choice([(ARTIFACT_WAY, {"artifact_id": name}), (CALL_WAY, {"idem_key": name})])
        for event_type, fields in way[: self.rng.randint(2, len(way))]:
            self.send(agent, event_type, {**names, **fields})

    def take_over(self) -> None:
        """Take a session over, as the owning service or another one."""
        service = self.rng.choice(["billing", "billing", "other"])
        self.send(self.pick_agent(), "session_taken_over", {}, service_id=service, agent_id=f"agent-{service}")

    def forge_content(self) -> None:
        """Send a snapshot that is not the next one, or a content of another service's session."""
        event_type = self.rng.choice(["snapshot_created", "session_paused", "session_terminated", "session_created"])
        reason = {"reason": self.rng.choice(["closed", "cancelled", "forced"])}
        wrong = self.rng.choice(
            [snapshot("wrong", parent="nowhere"), snapshot("wrong")._replace(content_hash="0" * 64)]
        )
        fields = {"snapshot": wrong} | (reason if event_type == "session_terminated" else {})
        if self.rng.random() < 0.3:
            self.send(self.pick_agent(), self.rng.choice(["snapshot_created", "state_updated"]), {}, service_id="other")
        else:
            self.send(self.pick_agent(), event_type, fields)

    def skip_numbers(self) -> None:
        agent = self.pick_agent()
        agent.seq += self.rng.randint(1, 4)
        self.send(agent, self.rng.choice(WORK), {})

    def repeat_number(self) -> None:
        """Send a duplicate, or a late filler if the number falls into a gap."""
        agent = self.pick_agent()
        self.send(agent, self.rng.choice(WORK), {}, producer_seq=self.rng.randint(1, max(1, agent.seq)))

    def append_again(self) -> None:
        if self.rig.log:
            record = self.rng.choice(self.rig.log[-30:])
            self.rig.append(record.key, record.value)

    def append_damaged(self) -> None:
        if self.rig.log:
            record = self.rng.choice(self.rig.log[-30:])
            value = bytearray(record.value or b"")
            if value and self.rng.random() < 0.5:
                value[self.rng.randrange(len(value))] ^= 1 << self.rng.randrange(8)
            else:
                del value[self.rng.randrange(len(value) + 1) :]
            self.rig.append(record.key, bytes(value))

    def append_bad_key(self) -> None:
        self.rig.append(self.rng.choice(BAD_KEYS), self.pick_agent().event_bytes("session_activity"))

    def confirm_release(self) -> None:
        agent = self.pick_agent()
        row = self.row_of(agent)
        known = [cleanup.cleanup_id for cleanup in row.cleanups] if row is not None else []
        lost = self.rng.random() < 0.2
        fields = {
            "cleanup_id": self.rng.choice([*known[-2:] * 3, "nonsense"]),
            "actions": [CleanupAction("close_connection", True, 1), CleanupAction("clear_context", not lost, 2)],
            "bytes_released": self.rng.choice([None, 5]),
            "host_lost": lost,
        }
        self.send(agent, "resources_released", fields, epoch=self.rng.choice([0, 1, 7]))

    def start_session(self) -> None:
        """Send the events from creation to Active."""
        agent = self.pick_agent()
        if self.row_of(agent) is None:
            self.send(agent, "session_created", {"limits": self.rng.choice(LIMITS[:10])})
        for phase in ("validating", "connecting"):
            self.send(agent, "session_phase_changed", {"phase": phase})
        self.send(agent, "session_started", {})

    def fail_and_recover(self) -> None:
        """Let a session fail and recover a few times in a row."""
        agent = self.pick_agent()
        error = self.rng.choice(ERRORS)
        for _ in range(self.rng.randint(1, 6)):
            self.send(agent, "session_errored", {"error": error})
            self.send(agent, "session_phase_changed", {"phase": "recovery"})
            self.send(agent, "session_recovered", {})

    def pass_time(self) -> None:
        self.rig.at += self.rng.choice([1, 10, 999, 999, 4_999, 5_000, 5_001])
        if self.rng.random() < 0.5:
            self.rig.tick()

    def jump_to_deadline(self) -> None:
        """Move time to a deadline, 1 ms before it or 1 ms after it.

        Ticks on the way prevent an outage in the log; without them there may be one.
        """
        oracle = self.rig.oracle
        if not oracle.rows or self.rng.random() < 0.1:
            self.rig.at = max(self.rig.at, oracle.outage_grace_until + self.rng.choice([-1, 0, 1]))
            return
        due = min(oracle.earliest_of(self.rng.choice(sorted(oracle.rows))), self.rig.at + 130_000)
        target = max(self.rig.at, due + self.rng.choice([-1, 0, 1]))
        while self.rng.random() < 0.98 and self.rig.at + 4_999 < target:
            self.rig.at += self.rng.choice([4_999, 5_000])
            self.rig.tick()
        self.rig.at = target
        if self.rng.random() < 0.7:
            self.rig.tick()

    def begin_rules(self) -> None:
        if self.rig.oracle.announced:
            self.rig.begin_rules()

    def step_clock_back(self) -> None:
        now, self.rig.at = self.rig.at, self.rig.at - self.rng.randint(1, 3_000)
        self.rig.tick()
        self.rig.at = now
