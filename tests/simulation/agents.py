"""What agents do: mostly what makes sense as far as they know, and every kind of nonsense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import Gravestone, SessionState
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import CleanupAction, Limits
from tests.core.play import BAD_KEYS, BENT, ERRORS, FIELDS, LIMITS, NEXT, WEIGHTS, WORK
from tests.simulation.clients import Attended, Process, Sent, Session, session_of
from tests.support.scribe import TICK

if TYPE_CHECKING:
    from tests.simulation.world import World

_NAMES = sorted(PAYLOADS)
BRIEF = Limits(
    model_ms=4_000,
    tool_ms=3_000,
    network_ms=2_000,
    init_ms=6_000,
    idle_ms=14_000,
    max_duration_ms=30_000,
    grace_ms=8_000,
    hold_ms=9_000,
    recovery_ms=7_000,
    archive_delay_ms=3_000,
    release_limit_ms=5_000,
    override=True,
)
STEADY = BRIEF._replace(model_ms=10_000, tool_ms=6_000, network_ms=4_000, idle_ms=10**9, max_duration_ms=10**9)
LIMITS_DRAWN = [*[BRIEF] * 12, *LIMITS]
STEADY_EVERY_MS = 3_000


class Crowd:
    """All agents of a schedule."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.made = 0
        self.sessions = [self._session() for _ in range(world.shape.sessions)]
        self.processes = [self._process("billing") for _ in range(world.shape.processes)]
        self.replayers: list[Process] = []
        self.stragglers: list[Sent] = []
        self.attended: list[Attended] = []
        if world.shape.calm:
            session = session_of("acme", "steady", "billing", world.shape.partitions)
            self.attended.append(Attended(world, session, STEADY_EVERY_MS))
            self.attended[0].begin({"limits": STEADY})

    def _session(self) -> Session:
        self.made += 1
        tenant = self.rng.choice(("acme", "acme", "zeta"))
        return session_of(tenant, f"s{self.made}", "billing", self.world.shape.partitions)

    def _process(self, service: str) -> Process:
        self.made += 1
        return Process(self.world, f"p{self.made}", service)

    # Choices

    def process(self) -> Process:
        return self.rng.choice(self.processes)

    def session(self) -> Session:
        """Any session; a new one takes the place of one that is archived."""
        place = self.rng.randrange(len(self.sessions))
        session = self.sessions[place]
        known = self.world.cluster.look(session.encoded, session.partition)
        if isinstance(known, Gravestone) and self.rng.random() < 0.5:
            session = self.sessions[place] = self._session()
        return session

    def send(self, process: Process, session: Session, event_type: str, fields: dict[str, Any], **bent: Any) -> None:
        """With what the process knows; it mostly asks before, and mostly sends at once."""
        rng = self.rng
        known = process.asks(session) if rng.random() < 0.8 else process.knows.get(session.encoded)
        drawn = {name: rng.choice(options) for name, options in FIELDS.get(event_type, {}).items()}
        if event_type == "session_created":
            drawn = {"limits": rng.choice(LIMITS_DRAWN)}
        elif event_type == "state_updated" and isinstance(known, SessionState):
            base = known.version + rng.choice((0, 0, 0, 1, -1))
            drawn = {"base_version": base, "new_version": base + rng.choice((1, 1, 1, 2))}
        if rng.random() < 0.1:
            bent = {"context_bytes": rng.choice(WEIGHTS), **bent}
        process.says(session, event_type, {**drawn, **fields}, **bent)
        if rng.random() < 0.8:
            process.delivers()

    # Acts

    def sense(self) -> None:
        process, session = self.process(), self.session()
        known = process.asks(session)
        if isinstance(known, Gravestone):
            moves: list[tuple[str, dict[str, Any]]] = [("session_created", {}), ("session_activity", {})]
        else:
            moves = [("session_created", {})] if known is None else NEXT[known.state]
        self.send(process, session, *self.rng.choice(moves))

    def begin(self) -> None:
        """From creation to Active without waiting."""
        process, session = self.process(), self.session()
        if process.asks(session) is None:
            self.send(process, session, "session_created", {"limits": self.rng.choice(LIMITS_DRAWN[:18])})
        for phase in ("validating", "connecting"):
            process.says(session, "session_phase_changed", {"phase": phase})
        self.send(process, session, "session_started", {})

    def stumble(self) -> None:
        """Err and recover a few times; each recovery waits for its verdict."""
        process, session, error = self.process(), self.session(), self.rng.choice(ERRORS)
        for _ in range(self.rng.randint(1, 6)):
            self.send(process, session, "session_errored", {"error": error})
            process.says(session, "session_phase_changed", {"phase": "recovery"})
            self.send(process, session, "session_recovered", {})
            process.delivers()
            self.world.cluster.work(12, session.partition)

    def hold(self) -> None:
        """Pause, and mostly resume at once."""
        process, session = self.process(), self.session()
        self.send(process, session, "session_paused", {})
        self.world.cluster.work(12, session.partition)
        if self.rng.random() < 0.6:
            self.send(process, session, "session_resumed", {})

    def nonsense(self) -> None:
        self.send(self.process(), self.session(), self.rng.choice(_NAMES), {})

    def bent(self) -> None:
        process, session = self.process(), self.session()
        known = process.asks(session)
        moves = NEXT[known.state] if isinstance(known, SessionState) else []
        self.send(process, session, *self.rng.choice([*moves, ("session_created", {})]), **self.rng.choice(BENT))

    def work(self) -> None:
        self.send(self.process(), self.session(), self.rng.choice(WORK), {})

    def loses(self) -> None:
        """Events that never leave the process, or much too late, while later ones do."""
        process, session = self.process(), self.session()
        process.delivers()
        for _ in range(self.rng.randint(1, 3)):
            process.says(session, self.rng.choice(WORK), {})
            lost = process.forgets_first()
            if lost is not None and self.rng.random() < 0.6:
                self.stragglers.append(lost)
        self.world.mark("client: loses events and goes on")
        self.send(process, session, self.rng.choice(WORK), {})

    def straggles(self) -> None:
        if self.stragglers and self.world.broker.up:
            self.world.mark("client: a straggler comes")
            self.world.log(self.stragglers.pop(self.rng.randrange(len(self.stragglers))))

    def repeats(self) -> None:
        """An old record once more, or broken, or under the key of another."""
        sent = self.world.some_former()
        if sent is None:
            return
        chance, value = self.rng.random(), bytearray(sent.value or b"")
        if chance < 0.4:
            self.world.log(sent)
        elif chance < 0.7 and value:
            value[self.rng.randrange(len(value))] ^= 1 << self.rng.randrange(8)
            self.world.log(sent._replace(what=f"{sent.what}, a bit flipped", value=bytes(value)))
        elif chance < 0.85:
            del value[self.rng.randrange(len(value) + 1) :]
            self.world.log(sent._replace(what=f"{sent.what}, cut short", value=bytes(value)))
        else:
            key = self.rng.choice([*BAD_KEYS, self.session().encoded])
            self.world.log(sent._replace(what=f"{sent.what}, under {key!r}", key=key))

    def rubbish(self) -> None:
        """Bytes that were never an event."""
        rng, session = self.rng, self.session()
        values = (
            None,
            b"",
            rng.randbytes(rng.randint(1, 40)),
            b"\xc3\x01" + rng.randbytes(12),
            b"\x00\x00\x00\x00\x07x",
            TICK,
            TICK + b"\x00",
            _GRAVE,
        )
        value = rng.choice(values)
        self.world.log(Sent(f"{session.name}: rubbish {value!r:.40}", session.partition, session.encoded, value))

    def released(self) -> None:
        process, session = self.process(), self.session()
        known = process.asks(session)
        cleanups = [c.cleanup_id for c in known.cleanups] if isinstance(known, SessionState) else []
        lost = self.rng.random() < 0.2
        fields = {
            "cleanup_id": self.rng.choice([*cleanups[-2:] * 4, "nonsense"]),
            "actions": [CleanupAction("close_connection", True, 1), CleanupAction("clear_context", not lost, 2)],
            "bytes_released": self.rng.choice((None, 5)),
            "host_lost": lost,
        }
        self.send(process, session, "resources_released", fields, epoch=self.rng.choice((0, 1, 7)))

    def foreign(self) -> None:
        """Another service speaks of a session that is not its own."""
        self.send(self._process("other"), self.session(), self.rng.choice(_NAMES), {})

    # Faults

    def crash(self) -> None:
        """A process dies. One with a spool is replayed under its own id, another takes its place."""
        place = self.rng.randrange(len(self.processes))
        dead = self.processes[place]
        self.world.say("process %s dies, %d queued, spool: %s", dead.name, len(dead.queue), dead.spools)
        if dead.spools and dead.journal:
            self.world.mark("client: a spool is replayed")
            replayer = self._process(dead.service)
            replayer.name, replayer.spools = dead.name, False
            replayer.queue.extend(dead.journal)
            self.replayers.append(replayer)
        elif dead.queue:
            self.world.mark("client: a process dies with its queue")
        self.processes[place] = self._process(dead.service)

    def freeze(self) -> None:
        process = self.process()
        process.frozen = not process.frozen
        if process.frozen:
            process.says(self.session(), self.rng.choice(WORK), {})
        elif process.queue:
            self.world.mark("client: a frozen process goes on")
            process.delivers()

    def deliver(self) -> None:
        self.rng.choice([*self.processes, *self.replayers]).delivers()

    def everybody_joins(self) -> None:
        """More processes in one session than its ledger holds."""
        session = self.sessions[0]
        for n in range(66):
            process = Process(self.world, f"many-{n}", session.service)
            process.asks(session)
            process.says(session, self.rng.choice(WORK), {})
            process.delivers()

    def grows_too_large(self) -> None:
        """A state above what goes by value."""
        process, session = self.process(), self.sessions[0]
        self.world.cluster.work(100, session.partition)
        known = process.asks(session)
        if isinstance(known, SessionState):
            fields = {"base_version": known.version, "new_version": known.version + 1}
            process.says(session, "state_updated", {**fields, "state_json": "x" * (VALUE_BYTES_MAX + 1)})
            process.delivers()

    def drain(self) -> None:
        for process in (*self.processes, *self.replayers):
            process.frozen = False
            process.delivers()


_GRAVE = encode_record(Gravestone("acme", "x", (), "closed", 1, 1, 1))

__all__ = ["STEADY_EVERY_MS", "Crowd"]
