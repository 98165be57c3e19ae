"""What simulated agents do: mostly legal events, and every kind of invalid record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessionary.schemas.codec import encode_record
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import SessionState, Tombstone
from sessionary.schemas.types import CleanupAction, Limits
from tests.auditor.decoding import run_key_of
from tests.core.people_moves import asking_story, draw_actor, draw_operator_event
from tests.core.random_agents import AGENT_FIELDS, BAD_KEYS, CONTEXT_SIZES, INVALID_ENVELOPES, LIMITS, NEXT_EVENTS
from tests.core.run_moves import (
    AGENT_WAY,
    ARTIFACT_WAY,
    ERRORS,
    RUN_IDS,
    WORK,
    draw_agent_event,
    draw_child_event,
    draw_run_event,
    draw_run_marks,
)
from tests.simulation.clients import Process, Sent, Session, SteadySession, session_of
from tests.simulation.large_moves import LargeMoves
from tests.support.event_factory import TICK

if TYPE_CHECKING:
    from tests.simulation.world import World

_NAMES = sorted(PAYLOADS)
BRIEF_LIMITS = Limits(
    model_ms=4_000,
    tool_ms=3_000,
    network_ms=2_000,
    init_ms=6_000,
    idle_ms=14_000,
    max_duration_ms=30_000,
    grace_ms=8_000,
    hold_ms=9_000,
    user_idle_ms=12_000,
    recovery_ms=7_000,
    archive_delay_ms=3_000,
    attached_run_ms=11_000,
    release_limit_ms=5_000,
    override=True,
)
STEADY_LIMITS = BRIEF_LIMITS._replace(
    model_ms=10_000, tool_ms=6_000, network_ms=4_000, idle_ms=10**9, max_duration_ms=10**9
)
LIMITS_DRAWN = [*[BRIEF_LIMITS] * 12, *LIMITS]
STEADY_EVERY_MS = 3_000


class AgentPool(LargeMoves):
    """All agent processes and sessions of a schedule."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.made = 0
        self.sessions = [self._session() for _ in range(world.shape.sessions)]
        self.processes = [self._process("billing") for _ in range(world.shape.processes)]
        self.replayers: list[Process] = []
        self.stragglers: list[Sent] = []
        self.steady_sessions: list[SteadySession] = []
        if world.shape.calm:
            session = session_of("acme", "steady", "billing", world.shape.partitions)
            self.steady_sessions.append(SteadySession(world, session, STEADY_EVERY_MS))
            self.steady_sessions[0].begin({"limits": STEADY_LIMITS})

    @property
    def steady_keys(self) -> set[bytes | None]:
        """The keys of the sessions that must survive."""
        return {one.session.encoded for one in self.steady_sessions}

    def _session(self) -> Session:
        self.made += 1
        tenant = self.rng.choice(("acme", "acme", "zeta"))
        return session_of(tenant, f"s{self.made}", "billing", self.world.shape.partitions)

    def _process(self, service: str) -> Process:
        self.made += 1
        return Process(self.world, f"p{self.made}", service)

    # Random choices

    def pick_process(self) -> Process:
        return self.rng.choice(self.processes)

    def pick_session(self) -> Session:
        """Pick any session; mostly replace one that is archived by a new one."""
        place = self.rng.randrange(len(self.sessions))
        session = self.sessions[place]
        known = self.world.cluster.look(session.encoded, session.partition)
        if isinstance(known, Tombstone) and self.rng.random() < 0.5:
            session = self.sessions[place] = self._session()
        return session

    def _pick_active_session(self) -> Session:
        """Pick a session in which work is accepted, if there is one, else any."""
        rows = {session: self.world.cluster.look(session.encoded, session.partition) for session in self.sessions}
        active = [session for session, row in rows.items() if getattr(row, "state", "") == "Active"]
        return self.rng.choice(active) if active and self.rng.random() < 0.8 else self.pick_session()

    def send(self, process: Process, session: Session, event_type: str, fields: dict[str, Any], **changed: Any) -> None:
        """Queue an event by what the process knows; mostly it asks first and sends at once."""
        rng = self.rng
        known = process.ask_state(session) if rng.random() < 0.8 else process.known_rows.get(session.encoded)
        drawn = {name: rng.choice(options) for name, options in AGENT_FIELDS.get(event_type, {}).items()}
        if event_type == "session_created":
            drawn = {"limits": rng.choice(LIMITS_DRAWN)}
        elif event_type in ("state_updated", "session_rolled_back") and isinstance(known, SessionState):
            base = known.version + rng.choice((0, 0, 0, 1, -1))
            drawn = {"base_version": base, "new_version": base + rng.choice((1, 1, 1, 2))}
        if rng.random() < 0.1:
            changed = {"context_bytes": rng.choice(CONTEXT_SIZES), **changed}
        process.queue_event(session, event_type, {**drawn, **fields}, **changed)
        if rng.random() < 0.8:
            process.deliver()

    # Actions

    def send_sensible(self) -> None:
        process, session = self.pick_process(), self.pick_session()
        known = process.ask_state(session)
        if isinstance(known, Tombstone):
            moves: list[tuple[str, dict[str, Any]]] = [("session_created", {}), ("session_activity", {})]
        else:
            moves = [("session_created", {})] if known is None else NEXT_EVENTS[known.state]
        self.send(process, session, *self.rng.choice(moves))

    def start_session(self) -> None:
        """Send the events from creation to Active without waiting for verdicts."""
        process, session = self.pick_process(), self.pick_session()
        if process.ask_state(session) is None:
            self.send(process, session, "session_created", {"limits": self.rng.choice(LIMITS_DRAWN[:18])})
        for phase in ("validating", "connecting"):
            process.queue_event(session, "session_phase_changed", {"phase": phase})
        self.send(process, session, "session_started", {})

    def fail_and_recover(self) -> None:
        """Fail and recover a few times; each recovery waits for its verdict."""
        process, session, error = self.pick_process(), self.pick_session(), self.rng.choice(ERRORS)
        for _ in range(self.rng.randint(1, 6)):
            self.send(process, session, "session_errored", {"error": error})
            process.queue_event(session, "session_phase_changed", {"phase": "recovery"})
            self.send(process, session, "session_recovered", {})
            process.deliver()
            self.world.cluster.work(12, session.partition)

    def pause_and_resume(self) -> None:
        """Pause, and mostly resume at once."""
        process, session = self.pick_process(), self.pick_session()
        self.send(process, session, "session_paused", {})
        self.world.cluster.work(12, session.partition)
        if self.rng.random() < 0.6:
            self.send(process, session, "session_resumed", {})

    def step_in(self) -> None:
        """Let an operator pause, resume, answer or cancel a session, by one event of a worker."""
        hand, session = self._process("control-api"), self.pick_session()
        known = hand.ask_state(session)
        if isinstance(known, SessionState):
            self.send(hand, session, *draw_operator_event(self.rng, known), actor=draw_actor(self.rng))

    def ask_person(self) -> None:
        """Ask in a new session, without waiting for verdicts; no answers come, and mostly one."""
        process, hand, session = self.pick_process(), self._process("control-api"), self._session()
        for event_type, fields in asking_story(self.rng):
            sender = hand if fields.get("as_operator") else process
            sender.queue_event(session, event_type, fields, actor=draw_actor(self.rng))
            sender.deliver()

    def send_any_type(self) -> None:
        self.send(self.pick_process(), self.pick_session(), self.rng.choice(_NAMES), {})

    def send_invalid_envelope(self) -> None:
        process, session = self.pick_process(), self.pick_session()
        known = process.ask_state(session)
        moves = NEXT_EVENTS[known.state] if isinstance(known, SessionState) else []
        self.send(
            process, session, *self.rng.choice([*moves, ("session_created", {})]), **self.rng.choice(INVALID_ENVELOPES)
        )

    def send_work(self) -> None:
        self.send(self.pick_process(), self.pick_session(), self.rng.choice(WORK), {})

    def send_run_event(self) -> None:
        """Send an event of one of a session's few runs, mostly one that fits the run's state."""
        process, session, run_id = self.pick_process(), self.pick_session(), self.rng.choice(RUN_IDS)
        known = self.world.cluster.look(run_key_of(session.encoded, run_id), session.partition)
        self.send(process, session, *draw_run_event(self.rng, known), **draw_run_marks(self.rng, run_id))

    def start_run(self) -> None:
        """Start a run, or queue it, and let it work, without waiting for verdicts."""
        process, session, run_id = self.pick_process(), self.pick_session(), self.rng.choice(RUN_IDS)
        process.ask_state(session)
        mode = self.rng.choice(("attached", "detached"))
        if self.world.quotas.queues_run():
            process.queue_event(session, "run_queued", {"mode": mode}, run_id=run_id)
        else:
            process.queue_event(session, "run_started", {"mode": mode, "plan_json": None}, run_id=run_id)
        process.queue_event(session, "run_running", {"progress": 0.5}, run_id=run_id)
        self.send(process, session, self.rng.choice(WORK), {}, run_id=run_id)

    def send_child_event(self) -> None:
        """Send a few events of steps, calls and artifacts, each mostly by what came of the last."""
        process, session = self.pick_process(), self._pick_active_session()
        for _ in range(self.rng.randint(1, 3)):
            move = draw_child_event(self.rng, session.key, lambda key: self.world.cluster.look(key, session.partition))
            self.send(process, session, move.event_type, move.fields, **move.marks)
            if self.rng.random() < 0.7:
                self.world.cluster.work(12, session.partition)

    def reserve_call(self) -> None:
        """Reserve a call twice in a new run, and tell its outcome soon or after its limit."""
        rng, process, session, run_id = (
            self.rng,
            self.pick_process(),
            self._pick_active_session(),
            self.rng.choice(RUN_IDS),
        )
        process.ask_state(session)
        is_slow, marks = rng.random() < 0.6, {"run_id": run_id, "step_id": None}
        call = {"tool_call_id": "own", "idem_key": f"own-{rng.randrange(3)}", "tool_name": "order"}
        limit_ms = rng.choice((1, 500)) if is_slow else None
        started = call | {"try_number": 1, "side_effect": True, "queryable": False, "limit_ms": limit_ms}
        mode = rng.choice(("attached", "detached"))
        process.queue_event(session, "run_started", {"mode": mode, "plan_json": None}, **marks)
        if rng.random() < 0.5:
            process.queue_event(session, "run_running", {"progress": 0.5}, **marks)
        for _ in range(2):
            process.queue_event(session, "tool_call_started", started, **marks)
        if is_slow:
            process.deliver()
            self.world.pass_ms(501, 250)
            self.world.cluster.work(12, session.partition)
            process.queue_event(session, "run_resumed", {}, **marks)
            outcome = rng.choice(("succeeded", "failed"))
            self.send(
                process, session, "tool_call_resolved", {**call, "outcome": outcome, "result_json": None}, **marks
            )
        else:
            process.queue_event(session, "tool_call_succeeded", {**call, "try_number": 1, "result_json": "{}"}, **marks)
            self.send(process, session, "tool_call_started", {**started, "try_number": 2}, **marks)

    def make_artifact(self) -> None:
        """Send the first events of an artifact's way, from its creation to its end."""
        process, session = self.pick_process(), self._pick_active_session()
        process.ask_state(session)
        run_id, artifact_id = self.rng.choice((None, None, *RUN_IDS)), f"own-{self.rng.randrange(3)}"
        for event_type, fields in ARTIFACT_WAY[: self.rng.randint(2, len(ARTIFACT_WAY))]:
            process.queue_event(session, event_type, {"artifact_id": artifact_id, **fields}, run_id=run_id)
        process.deliver()

    def send_agent_events(self) -> None:
        """Register an agent, complete a task twice, and tell of other agents' tasks as it comes."""
        process, session = self.pick_process(), self._pick_active_session()
        process.ask_state(session)
        agent_id = f"own-{self.rng.randrange(3)}"
        for event_type, fields in AGENT_WAY[self.rng.choice((0, 0, 1)) :]:
            process.queue_event(session, event_type, {"agent_id": agent_id, **fields})
        move = draw_agent_event(self.rng, session.key, lambda key: self.world.cluster.look(key, session.partition))
        process.queue_event(session, move.event_type, move.fields)
        process.deliver()

    def send_messages(self) -> None:
        process, session = self.pick_process(), self.pick_session()
        for _ in range(self.rng.randint(1, 4)):
            process.queue_event(session, "message_appended", {})
        process.deliver()

    def lose_events(self) -> None:
        """Send later events while earlier ones are lost, or arrive much too late."""
        process, session = self.pick_process(), self.pick_session()
        process.deliver()
        for _ in range(self.rng.randint(1, 3)):
            process.queue_event(session, self.rng.choice(WORK), {})
            lost = process.drop_first()
            if lost is not None and self.rng.random() < 0.6:
                self.stragglers.append(lost)
        self.world.mark("client: loses events and goes on")
        self.send(process, session, self.rng.choice(WORK), {})

    def send_late(self) -> None:
        if self.stragglers and self.world.broker.up:
            self.world.mark("client: a straggler comes")
            self.world.log(self.stragglers.pop(self.rng.randrange(len(self.stragglers))))

    def repeat_record(self) -> None:
        """Append an old record again: unchanged, damaged, or under another key."""
        sent = self.world.pick_sent_record()
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
            key = self.rng.choice([*BAD_KEYS, self.pick_session().encoded])
            self.world.log(sent._replace(what=f"{sent.what}, under {key!r}", key=key))

    def send_garbage(self) -> None:
        """Append bytes that are no event."""
        rng, session = self.rng, self.pick_session()
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
        self.world.log(Sent(f"{session.name}: garbage {value!r:.40}", session.partition, session.encoded, value))

    def confirm_release(self) -> None:
        process, session = self.pick_process(), self.pick_session()
        known = process.ask_state(session)
        cleanups = [c.cleanup_id for c in known.cleanups] if isinstance(known, SessionState) else []
        lost = self.rng.random() < 0.2
        fields = {
            "cleanup_id": self.rng.choice([*cleanups[-2:] * 4, "nonsense"]),
            "actions": [CleanupAction("close_connection", True, 1), CleanupAction("clear_context", not lost, 2)],
            "bytes_released": self.rng.choice((None, 5)),
            "host_lost": lost,
        }
        self.send(process, session, "resources_released", fields, epoch=self.rng.choice((0, 1, 7)))

    def send_as_other_service(self) -> None:
        """Send an event from a service that does not own the session."""
        self.send(self._process("other"), self.pick_session(), self.rng.choice(_NAMES), {})

    def take_over(self) -> None:
        """Take a session over, mostly as its own service."""
        process = self._process("other") if self.rng.random() < 0.4 else self.pick_process()
        self.send(process, self.pick_session(), "session_taken_over", {})

    # Faults

    def crash_process(self) -> None:
        """Kill a process and start another one; a spool is replayed under the old id."""
        place = self.rng.randrange(len(self.processes))
        dead = self.processes[place]
        self.world.trace("process %s dies, %d queued, spool: %s", dead.name, len(dead.queue), dead.spools)
        if dead.spools and dead.journal:
            self.world.mark("client: a spool is replayed")
            replayer = self._process(dead.service)
            replayer.name, replayer.spools = dead.name, False
            replayer.queue.extend(dead.journal)
            self.replayers.append(replayer)
        elif dead.queue:
            self.world.mark("client: a process dies with its queue")
        self.processes[place] = self._process(dead.service)

    def freeze_or_resume(self) -> None:
        process = self.pick_process()
        process.frozen = not process.frozen
        if process.frozen:
            process.queue_event(self.pick_session(), self.rng.choice(WORK), {})
        elif process.queue:
            self.world.mark("client: a frozen process goes on")
            process.deliver()

    def deliver_one(self) -> None:
        self.rng.choice([*self.processes, *self.replayers]).deliver()

    def deliver_all(self) -> None:
        for process in (*self.processes, *self.replayers):
            process.frozen = False
            process.deliver()


_GRAVE = encode_record(Tombstone("acme", "x", (), "closed", 1, 1, 1))
