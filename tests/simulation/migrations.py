"""Services that move sessions among each other, with loss, delay, repetition and crashes.

Their own `Random` decides about them, so that schedules without them stay as they are. A service
hears of a migration what transactions wrote to its topic, in its own time and maybe twice; of a
session it knows what it was notified of last.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from sessionary.schemas.ids import content_hash
from sessionary.schemas.records import SessionState
from tests.simulation.adapter import JUDGE
from tests.simulation.agents import BRIEF_LIMITS
from tests.simulation.clients import Process, Session, session_of
from tests.support.event_factory import snapshot

if TYPE_CHECKING:
    from tests.simulation.world import World

SERVICES = ("billing", "shipping", "support")
OPERATOR = "control-api"
LIMITS = BRIEF_LIMITS._replace(
    init_ms=60_000, idle_ms=10**9, max_duration_ms=200_000, grace_ms=20_000, hold_ms=25_000, archive_delay_ms=60_000
)
# How a migration is meant to go; what happens to it may end it otherwise.
PLANS = (
    *("goes well",) * 6,
    *("silent", "stalls", "declines", "is called off", "has another state", "is claimed", "is claimed by an operator"),
    *("waits for a person", "waits for a person", "has another state", "is paused", "was in timeout", "ends"),
)
# What was done last: the offer was sent, its target heard it, reported that it has loaded the
# session, heard that the session is held, and accepted it.
MOVE_STAGES = ("offered", "asked", "loaded", "held", "accepted")
PATIENCE = 14
ANSWER_MS = 12_000


class Movers:
    """The services of one schedule. `is_on`: sessions move in this schedule."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = rng = Random(f"migrations {world.seed}")
        self.is_on = world.shape.renewed and world.judge is JUDGE and rng.random() < 0.6
        self.made = 0
        self.session: Session | None = None
        self.processes: dict[str, Process] = {}
        self.former: list[Process] = []  # that may not know that they were replaced
        self.begin()

    def begin(self) -> None:
        """Begin a migration, of the last session if that lives on, or of a new one."""
        rng = self.rng
        self.made += 1
        self.stage, self.plan, self.age, self.read = "", rng.choice(PLANS), 0, 0
        self.heard: list[str] = []
        self.migration_id = f"move-{self.made}"
        self.source = SERVICES[0]
        row = self.look()
        if row is None or row.owner_service not in SERVICES or rng.random() < 0.3:
            self.session = None
        else:
            self.source = row.owner_service
        self.target, self.other = rng.sample([name for name in SERVICES if name != self.source], 2)

    # What a service knows and sends

    def look(self) -> SessionState | None:
        """Return the row of the session, if a worker has it and it may move."""
        if self.session is None:
            return None
        row = self.world.cluster.look(self.session.encoded, self.session.partition)
        return row if isinstance(row, SessionState) and row.state in ("Active", "Paused", "Timeout") else None

    def process(self, service: str) -> Process:
        if service not in self.processes:
            self.made += 1
            self.processes[service] = Process(self.world, f"mover-{self.made}", service)
        return self.processes[service]

    def send(self, service: str, event_type: str, /, *, asks: bool = True, **fields: Any) -> None:
        """Let a service send an event by what it knows, maybe late, twice, or in vain."""
        assert self.session is not None
        rng, process = self.rng, self.process(service)
        if asks:
            process.ask_state(self.session)
        sent = process.queue_event(self.session, f"session_{event_type}", fields)
        chance = rng.random() if self.world.trouble else 1.0
        if chance < 0.06 and process.queue[0] is sent:
            self.world.mark("migration: an event is lost")
            process.drop_first()
        elif chance < 0.2:
            self.world.mark("migration: an event is late")
        else:
            process.deliver()
            if chance < 0.3 and not process.queue and self.world.broker.up:
                self.world.mark("migration: an event comes twice")
                self.world.log(sent)

    def deliver_all(self) -> None:
        """Deliver what is still queued, in any order of the processes."""
        for process in (*self.former, *self.processes.values()):
            process.deliver()

    def listen(self) -> None:
        """Read what transactions have reported of the migration since."""
        assert self.session is not None
        outcomes = self.world.broker.outcomes[self.session.partition]
        for outcome in outcomes[self.read :]:
            reported = [record for _, record in outcome.records_on("migrations")]
            self.heard += [record.step for record in reported if record.migration_id == self.migration_id]
            lines = [line for _, line in outcome.records_on("audit") if line.migration_id == self.migration_id]
            self.heard += ["over" for line in lines if line.migration_step in ("completed", "aborted")]
        self.read = len(outcomes)

    # Steps

    def step(self) -> None:
        """Do something, if sessions move in this schedule."""
        if not self.is_on:
            return
        rng = self.rng
        if self.session is None:
            self.start_session()
        assert self.session is not None
        if rng.random() < 0.7:
            self.world.cluster.work(rng.choice((6, 30)), self.session.partition)
        self.listen()
        self.age += 1
        if "over" in self.heard or self.age > PATIENCE:
            self.let_former_speak()
            self.begin()
            return
        if rng.random() < 0.1:
            self.crash()
        former_stage = self.stage
        self.go_on()
        if self.stage != former_stage and rng.random() < 0.15:
            self.crash()
        if rng.random() < 0.35:
            self.work_meanwhile()
        for process in self.former:
            if rng.random() < 0.2:
                process.deliver()

    def start_session(self) -> None:
        """Create a session as the source, and bring it to Active, or to where the plan wants it."""
        self.session = session_of("acme", f"moving-{self.made}", self.source, self.world.shape.partitions)
        process, session = self.process(self.source), self.session
        process.queue_event(session, "session_created", {"limits": LIMITS})
        for phase in ("validating", "connecting"):
            process.queue_event(session, "session_phase_changed", {"phase": phase})
        process.queue_event(session, "session_started", {})
        process.deliver()

    def go_on(self) -> None:
        """Let the migration go its next step, if it is time for it."""
        if not self.stage:
            self.prepare_plan()
            fields: dict[str, Any] = {"migration_id": self.migration_id, "target_service": self.target}
            by_operator = self.rng.random() < 0.2
            ttl_ms = self.rng.choice((1_000, 8_000, 30_000, 30_000, 60_000))
            sender = OPERATOR if by_operator else self.source
            self.send(sender, "migration_offered", **fields, ttl_ms=ttl_ms, as_operator=by_operator)
            self.stage = "offered"
        elif self.stage == "offered" and "offered" in self.heard:
            self.stage = "asked"
        elif self.stage == "asked":
            self.answer_offer()
        elif self.stage == "loaded" and "prepared" in self.heard:
            self.stage = "held"
        elif self.stage == "held":
            self.answer_hold()
        elif self.stage == "accepted" and self.rng.random() < 0.3:
            self.accept()

    def prepare_plan(self) -> None:
        """Bring the session to the state in which the plan wants it to be offered."""
        world, session = self.world, self.session
        assert session is not None
        row = self.look()
        if self.plan == "was in timeout":
            world.pass_ms(12_000, 4_000)
            world.cluster.work(30, session.partition)
        elif self.plan in ("waits for a person", "is paused") and row is not None:
            held = snapshot(f"held-{self.made}", row.state_json, row.snapshot.snapshot_id)
            asked: dict[str, Any] = (
                {"question": "Go on?", "answer_ms": 4_000} if self.plan == "waits for a person" else {}
            )
            self.send(self.source, "paused", kind="review", snapshot=held, **asked)
            world.cluster.work(30, session.partition)

    def answer_offer(self) -> None:
        """Let the target load the session, or say no, or nothing."""
        if self.plan == "silent":
            self.world.pass_ms(3_000, 2_500)
        elif self.plan == "declines":
            self.send(self.target, "migration_aborted", migration_id=self.migration_id, as_operator=False)
        else:
            self.send(self.target, "migration_loaded", migration_id=self.migration_id)
            self.stage = "loaded"

    def answer_hold(self) -> None:
        """Let the target accept the session; or prevent it."""
        plan = self.plan
        named: dict[str, Any] = {"migration_id": self.migration_id}
        if plan in ("stalls", "waits for a person"):
            self.world.pass_ms(ANSWER_MS // 3, 2_500)
        elif plan == "is called off":
            by_operator = self.rng.random() < 0.5
            sender = OPERATOR if by_operator else self.source
            self.send(sender, "migration_aborted", **named, as_operator=by_operator)
        elif plan == "ends":
            self.send(self.source, "terminated", reason="cancelled", snapshot=None)
        elif plan == "is claimed by an operator":
            self.send(self.other, "taken_over", as_operator=True)
        elif plan == "is claimed":
            self.world.pass_ms(4_000, 2_000)
            self.send(self.other, "taken_over", as_operator=False)
        else:
            self.accept()
            self.stage = "accepted"

    def accept(self) -> None:
        """Accept the state that the target knows: the session's, or an older or a wrong one."""
        assert self.session is not None
        process = self.process(self.target)
        known = process.ask_state(self.session)
        if not isinstance(known, SessionState):
            return
        is_wrong = self.plan == "has another state" or self.rng.random() < 0.1
        self.send(
            self.target,
            "migration_accepted",
            asks=False,
            migration_id=self.migration_id,
            target_service=self.target,
            version=known.version,
            content_hash="0" * 64 if is_wrong else content_hash(known.state_json),
        )

    def work_meanwhile(self) -> None:
        """Let the source go on as if nothing was, mostly without asking."""
        self.speak(self.process(self.source), asks=self.rng.random() < 0.3)

    def speak(self, process: Process, *, asks: bool) -> None:
        assert self.session is not None
        known = process.ask_state(self.session) if asks else process.known_rows.get(self.session.encoded)
        event_type = self.rng.choice(
            ("session_activity", "session_activity", "state_updated", "state_updated", "usage_recorded")
        )
        fields: dict[str, Any] = {}
        if event_type == "state_updated":
            version = known.version if isinstance(known, SessionState) else 1
            content = f'{{"n": {self.rng.randrange(99)}}}'
            fields = {"base_version": version, "new_version": version + 1, "state_json": content}
        process.queue_event(self.session, event_type, fields)
        process.deliver()

    def let_former_speak(self) -> None:
        """Let the source speak that may not have heard that the session is another's."""
        row = self.look()
        if self.session is not None and row is not None and row.owner_service != self.source:
            self.world.mark("migration: a former owner speaks")
            for _ in range(2):
                self.process(self.source).queue_event(self.session, "heartbeat", {})
            self.speak(self.process(self.source), asks=False)
            self.speak(self.process(row.owner_service), asks=True)

    # Faults

    def crash(self) -> None:
        """Kill the source, the target, or the worker of the session."""
        assert self.session is not None
        who = self.rng.choice(("source", "target", "worker"))
        self.world.mark(f"migration: crash of {who}, {self.stage or 'not offered'}")
        cluster = self.world.cluster
        if who == "worker":
            cluster.workers[cluster.assigned[self.session.partition]].crash()
            return
        service = self.source if who == "source" else self.target
        dead = self.processes.pop(service, None)
        if dead is not None and self.rng.random() < 0.5:
            self.former.append(dead)  # it stood still, and goes on later
        if who == "target" and self.stage:
            self.stage = "held" if "prepared" in self.heard else "offered"  # it hears all again
