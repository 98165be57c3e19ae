"""Events made from recorded agent runs: the client's events, multiplied.

    for event in Workload(agent_runs(bench.options.runs_file), seed=1,
    concurrent=2_000).event_stream(300_000):
        producer.produce(topic, event.value, event.key, headers=event.headers)

The client itself runs each recorded run once, against memory, by the demo's plan. Only outcomes are
used that end without a timeout. Verdicts are granted at once, so every epoch is the one that the
processor will assign. The clean-up request at the end is answered as an agent answers it. The
client's events are a template. A session is a template with a new session id, producer id and event
ids. `concurrent` sessions run at a time, with their recorded pauses; when one ends, another begins.
The same runs, seed and `concurrent` give the same bytes.

Every event is legal: a processor that reads them in order applies all of them. Limits are wide (an
inactivity limit of 105 s, the largest that needs no override), so no deadline fires but the one
that archives an ended session.
"""

import heapq
import random
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sessionary.infra.demo.plan import PlannedOutcome, PlannedSession, make_plan
from sessionary.infra.demo.plan_runner import perform_action
from sessionary.infra.demo.runs import Run, read_runs, sample_runs
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import (
    EVENT_TYPES,
    Payload,
    ResourcesReleased,
    SessionResumed,
    SessionStartFailed,
    SessionTerminated,
    StateUpdated,
)
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey, derived_id
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import CleanupAction, Envelope, Limits, Snapshot
from sessionary.stream_processors.core.session.transitions import TRANSITIONS

# 2026-01-01, µs since the epoch: the start of the agents' clocks, which decide nothing.
EPOCH_US = 1_767_225_600_000_000
LIMITS = Limits(
    init_ms=300_000,
    model_ms=60_000,
    tool_ms=30_000,
    network_ms=15_000,
    idle_ms=None,
    attached_run_ms=None,
    max_duration_ms=None,
    grace_ms=None,
    hold_ms=None,
    recovery_ms=300_000,
    archive_delay_ms=1_000,
    release_limit_ms=None,
    context_limit_bytes=None,
    override=False,
)
_TEMPLATES_MAX = 300
# Left out of the demo's outcomes: those that wait for a timeout, and events that are rejected.
_LEFT_OUT: frozenset[PlannedOutcome] = frozenset({"silent", "never_started", "illegal"})
_CLEANUPS = {row.id: row.cleanup for row in TRANSITIONS}
_MOVING = frozenset(row.event_type for row in TRANSITIONS if row.by != "processor")
_BEHIND_END_S = 0.05


class EventRecord(NamedTuple):
    """A record of the events topic."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class _Line(NamedTuple):
    """One event of a template, `at_s` recorded seconds after its session's creation."""

    at_s: float
    payload: Payload
    epoch: int


class Template(NamedTuple):
    """The events of one recorded run. `transitions`: how many of them are transitions."""

    outcome: PlannedOutcome
    envelope: Envelope
    lines: tuple[_Line, ...]
    transitions: int


def agent_runs(path: Path | None = None) -> list[Run]:
    """Return the recorded runs of a file, else the demo's sample of 60."""
    return sample_runs(60) if path is None else read_runs(path)


def make_templates(runs: Sequence[Run], seed: int) -> list[Template]:
    """Run each recorded run once (300 of them at most) and return what the client sent."""
    chosen = list(runs)[:_TEMPLATES_MAX]
    # Each run is planned twice, because some outcomes are left out.
    plan = make_plan([*chosen, *chosen], demo_id=f"benchmark-{seed}", seed=seed, speed=1.0)
    wanted = [session for session in plan.sessions if session.outcome not in _LEFT_OUT]
    return [_record_template(session) for session in wanted]


def _record_template(session: PlannedSession) -> Template:
    client, memory = memory_client(session.tenant_id, session.service_id, f"{session.service_id}-agent")
    client.on_cleanup(lambda _request: None)
    lines: list[_Line] = []
    with client:
        began_s = session.actions[0].at_s
        handle = client.create(
            user_id=session.user_id,
            state={"run": session.run_name, "step": 0},
            limits=LIMITS,
            data_classes=session.data_classes,
            session_id=session.session_id,
        )
        _collect_sent(lines, memory, 0.0)
        for action in session.actions[1:]:
            perform_action(handle, action)
            _collect_sent(lines, memory, action.at_s - began_s)
        memory.request_cleanup(_cleanup_request(session, memory.events()[-1], handle.epoch))
        _collect_sent(lines, memory, lines[-1].at_s + _BEHIND_END_S)
    first = memory.events()[0].envelope
    moves = sum(EVENT_TYPES[type(line.payload)] in _MOVING for line in lines)
    stable = _reproducible(lines, session.session_id)
    return Template(session.outcome, first, stable, moves)


def _collect_sent(lines: list[_Line], memory: InMemoryTransport, at_s: float) -> None:
    """Append what was sent since the last call."""
    fresh = memory.events()[len(lines) :]
    lines.extend(_Line(at_s, event.payload, event.envelope.epoch) for event in fresh)


def _cleanup_request(session: PlannedSession, last: Event, epoch: int) -> CleanupRequest:
    """Return the clean-up request that the processor will send at the session's end."""
    assert isinstance(last.payload, SessionTerminated | SessionStartFailed), last.envelope.event_type
    reason = last.payload.reason
    transition = {"forced": "T12"}.get(reason, "T03" if isinstance(last.payload, SessionStartFailed) else "T13")
    return CleanupRequest(
        cleanup_id="",
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        service_id=session.service_id,
        epoch=epoch,
        reason_code=reason,
        reason=reason,
        actions=_CLEANUPS[transition].actions_for(reason),
        requested_at=EPOCH_US,
    )


def _reproducible(lines: Sequence[_Line], session_id: str) -> tuple[_Line, ...]:
    """Replace random ids and clock times by reproducible ones.

    They are the ids of snapshots, the times of a clean-up, and those of an update's phases.
    """
    names: dict[str, str] = {}

    def rename_snapshot(given: Snapshot) -> Snapshot:
        name = names.setdefault(given.snapshot_id, f"snap_{derived_id(session_id, len(names))[-12:]}")
        return given._replace(snapshot_id=name, parent_snapshot_id=names.get(given.parent_snapshot_id or ""))

    def replace_drawn(payload: Any) -> Payload:
        if getattr(payload, "snapshot", None) is not None:
            payload = payload._replace(snapshot=rename_snapshot(payload.snapshot))
        if isinstance(payload, SessionResumed) and payload.snapshot_id is not None:
            payload = payload._replace(snapshot_id=names[payload.snapshot_id])
        if isinstance(payload, StateUpdated):
            payload = payload._replace(updating_at=EPOCH_US, persisting_at=EPOCH_US)
        if isinstance(payload, ResourcesReleased):
            actions = [CleanupAction(action.action, done=True, at=EPOCH_US) for action in payload.actions]
            payload = payload._replace(actions=actions)
        known: Payload = payload
        return known

    return tuple(line._replace(payload=replace_drawn(line.payload)) for line in lines)


class _Session:
    """One running session."""

    def __init__(self, template: Template, rng: random.Random, began_s: float) -> None:
        self.template, self.began_s, self.done = template, began_s, 0
        self._rng = rng
        session_id = _draw_uuid(rng)
        self._key = SessionKey(template.envelope.tenant_id, session_id).encoded()
        self._envelope = template.envelope._replace(session_id=session_id, producer_id=_draw_uuid(rng))

    @property
    def next_s(self) -> float:
        """The time of its next event, in recorded seconds."""
        return self.began_s + self.template.lines[self.done].at_s

    def next_event(self) -> EventRecord:
        """Return its next event."""
        at_s, (_, payload, epoch) = self.next_s, self.template.lines[self.done]
        self.done += 1
        envelope = self._envelope._replace(
            event_id=_draw_uuid(self._rng),
            event_type=EVENT_TYPES[type(payload)],
            epoch=epoch,
            producer_seq=self.done,
            occurred_at=EPOCH_US + round(at_s * 1e6),
        )
        if isinstance(payload, ResourcesReleased):
            ended = derived_id(envelope.tenant_id, envelope.session_id, self.template.transitions)
            payload = payload._replace(cleanup_id=ended)
        return EventRecord(self._key, encode_event(Event(envelope, payload)), event_headers(envelope))


def _draw_uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class Workload:
    """An endless supply of sessions. Each call of `event_stream` yields the same bytes again."""

    def __init__(self, runs: Sequence[Run], *, seed: int = 1, concurrent: int = 2_000) -> None:
        """Make the templates, which takes some seconds.

        `concurrent`: number of sessions at a time.
        """
        self.seed, self.concurrent = seed, concurrent
        self.templates = make_templates(runs, seed)

    def event_stream(self, events: int) -> Iterator[EventRecord]:
        """Yield `events` events. The sessions that run at the end stay unfinished."""
        rng = random.Random(self.seed)
        mean_s = sum(template.lines[-1].at_s for template in self.templates) / len(self.templates)
        # The first sessions begin spread over a session's length, so that the mix of events is
        # even.
        due = [self._start_session(rng, rng.uniform(0, mean_s), n) for n in range(self.concurrent)]
        heapq.heapify(due)
        for _ in range(events):
            at_s, n, session = due[0]
            yield session.next_event()
            if session.done < len(session.template.lines):
                heapq.heapreplace(due, (session.next_s, n, session))
            else:
                heapq.heapreplace(due, self._start_session(rng, at_s, n))

    def _start_session(self, rng: random.Random, at_s: float, n: int) -> tuple[float, int, _Session]:
        session = _Session(rng.choice(self.templates), rng, at_s)
        return session.next_s, n, session
