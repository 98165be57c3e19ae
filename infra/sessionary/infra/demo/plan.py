"""The plan of a demo run: the actions of each session, and their times. Pure.

The same runs, seed and speed give the same plan. The recorded runs determine timing and sizes; the
plan adds an outcome, a tenant, a service and limits:

    outcome        transitions (T08 and T14 may follow)    what happens
    completed      T01 T02 T13                             completes its work
    closed         T01 T02 T13                             the same, but ends by close
    cancelled      T01 T02 T13                             is cancelled half way
    paused         T01 T02 T04 T05 T13                     pauses half way, then resumes
    silent         T01 T02 T06                             falls silent half way and times out
    recovered      T01 T02 T10 T11 T13                     fails half way and recovers
    gave_up        T01 T02 T10 T12                         fails half way, is closed by force
    failed_start   T01 T03                                 its configuration is refused
    never_started  T01 T03                                 falls silent before it starts
    illegal        T01 T02 T13                             sends illegal and broken events

`speed` divides the pauses between events and the limits. A limit never falls below its floor.
"""

import random
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from sessionary.infra.demo.runs import ModelCall, Run, Step
from sessionary.infra.environment import TENANTS
from sessionary.schemas.types import DataClass, Limits

Verb = Literal[
    "create",
    "start",
    "fail_start",
    "model_call",
    "tool_call",
    "update_state",
    "progress",
    "pause",
    "resume",
    "error",
    "recover",
    "give_up",
    "complete",
    "close",
    "cancel",
    "silence",
    "illegal",
    "broken",
]
PlannedOutcome = Literal[
    "completed",
    "closed",
    "cancelled",
    "paused",
    "silent",
    "recovered",
    "gave_up",
    "failed_start",
    "never_started",
    "illegal",
]
# Events that the session's client can send, but that its state does not allow.
IllegalEvent = Literal["recovered_while_active", "version_conflict", "unknown_cleanup", "phase_order"]
# Records that no client would send; `broken_events` explains each one.
BrokenRecord = Literal[
    "wrong_bytes", "unknown_schema", "bad_key", "key_mismatch", "foreign_tenant", "stale_epoch", "duplicate"
]
ILLEGAL: tuple[IllegalEvent, ...] = ("recovered_while_active", "version_conflict", "unknown_cleanup", "phase_order")
BROKEN: tuple[BrokenRecord, ...] = (
    "wrong_bytes",
    "unknown_schema",
    "bad_key",
    "key_mismatch",
    "foreign_tenant",
    "stale_epoch",
    "duplicate",
)

EXPECTED: dict[PlannedOutcome, tuple[str, ...]] = {
    "completed": ("T01", "T02", "T13"),
    "closed": ("T01", "T02", "T13"),
    "cancelled": ("T01", "T02", "T13"),
    "paused": ("T01", "T02", "T04", "T05", "T13"),
    "silent": ("T01", "T02", "T06"),
    "recovered": ("T01", "T02", "T10", "T11", "T13"),
    "gave_up": ("T01", "T02", "T10", "T12"),
    "failed_start": ("T01", "T03"),
    "never_started": ("T01", "T03"),
    "illegal": ("T01", "T02", "T13"),
}
SILENT: frozenset[PlannedOutcome] = frozenset({"silent", "never_started"})
# Even a demo of six sessions shows each of these kinds.
_FIRST: tuple[PlannedOutcome, ...] = ("completed", "silent", "paused", "illegal", "recovered", "failed_start")
_OUTCOME_MIX: tuple[PlannedOutcome, ...] = (
    *("completed",) * 8,
    *("closed",) * 2,
    *("paused",) * 2,
    *("silent",) * 2,
    *("cancelled", "recovered", "gave_up", "failed_start", "never_started", "illegal"),
)

_FAULTY_ACTIONS: tuple[tuple[Verb, str], ...] = (
    *(("illegal", name) for name in ILLEGAL),
    *(("broken", name) for name in BROKEN),
)
_STATE_EVERY = 4  # steps between two updates of the state
_PROGRESS_EVERY = 5
_START_DELAY_S = 0.05


class Action(NamedTuple):
    """One action of a session, `at_s` real seconds after the demo run's start."""

    at_s: float
    verb: Verb
    tokens_in: int = 0
    tokens_out: int = 0
    name: str = ""  # of a tool, an illegal event or a broken record
    succeeded: bool = True
    step: int = 0  # number of steps before this action


class PlannedSession(NamedTuple):
    """A session with all its actions in order."""

    session_id: str
    tenant_id: str
    service_id: str
    user_id: str
    data_classes: tuple[DataClass, ...]
    run_name: str
    outcome: PlannedOutcome
    limits: Limits
    actions: tuple[Action, ...]

    @property
    def silent(self) -> bool:
        """True if a timeout must end or interrupt this session."""
        return self.outcome in SILENT

    @property
    def expected(self) -> tuple[str, ...]:
        """Its transitions, without clean-up after a timeout (T08) and archiving (T14)."""
        return EXPECTED[self.outcome]


class Plan(NamedTuple):
    """The plan of a demo run.

    `demo_id` distinguishes its rows in ClickHouse from those of other demo runs.
    """

    demo_id: str
    sessions: tuple[PlannedSession, ...]
    duration_s: float


def limits_for(speed: float) -> Limits:
    """Return the default limits divided by `speed`, but none below its floor.

    The floors keep the inactivity limit (model, tool and network together) at 9 s or more, and are
    longer than a busy machine pauses a process. A demo waits for the inactivity of one session, the
    start of another and a grace; other limits are long, as it waits for none of them.
    """

    def scaled_limit(default_ms: int, floor_ms: int) -> int:
        return max(round(default_ms / speed), floor_ms)

    return Limits(
        init_ms=scaled_limit(15_000, 9_000),
        model_ms=scaled_limit(30_000, 4_500),
        tool_ms=scaled_limit(20_000, 3_000),
        network_ms=scaled_limit(10_000, 1_500),
        idle_ms=scaled_limit(900_000, 120_000),
        attached_run_ms=scaled_limit(900_000, 120_000),
        max_duration_ms=scaled_limit(28_800_000, 600_000),
        grace_ms=scaled_limit(300_000, 5_000),
        hold_ms=scaled_limit(86_400_000, 60_000),
        recovery_ms=scaled_limit(60_000, 60_000),
        archive_delay_ms=scaled_limit(60_000, 1_000),
        release_limit_ms=scaled_limit(300_000, 60_000),
        context_limit_bytes=None,
        override=speed != 1,
    )


def _draw_outcomes(count: int, rng: random.Random) -> list[PlannedOutcome]:
    outcomes: list[PlannedOutcome] = list(_FIRST)
    while len(outcomes) < count:
        outcome_mix = list(_OUTCOME_MIX)
        rng.shuffle(outcome_mix)
        outcomes += outcome_mix
    return outcomes[:count]


def _start_times(runs: Sequence[Run], speed: float, gap_s_max: float) -> list[float]:
    """Return when each run starts, in real seconds.

    The recorded distances are kept, up to `gap_s_max` recorded seconds.
    """
    now, previous, starts = 0.0, None, []
    for run in runs:
        if previous is not None:
            now += min(max(run.start_offset_s - previous, 0.0), gap_s_max)
        previous = run.start_offset_s
        starts.append(now / speed)
    return starts


class _ActionBuilder:
    """Builds the actions of one session in order of time."""

    def __init__(self, run: Run, outcome: PlannedOutcome, start_s: float, speed: float, rng: random.Random) -> None:
        self._run, self._outcome, self._speed, self._rng = run, outcome, speed, rng
        self._start_s = start_s
        self._shift_s = _START_DELAY_S
        self._at_s = start_s
        self.actions: list[Action] = []

    def build_actions(self) -> tuple[Action, ...]:
        self._add_action("create")
        match self._outcome:
            case "failed_start":
                self._advance(self._rng.uniform(1, 10))
                self._add_action("fail_start")
            case "never_started":
                self._add_action("silence")
            case _:
                self._shift_s += _START_DELAY_S
                self._add_action("start")
                self._add_steps()
        return tuple(self.actions)

    def _add_action(self, verb: Verb, name: str = "", step: int = 0) -> None:
        self.actions.append(Action(self._at_s, verb, name=name, step=step))

    def _advance(self, recorded_s: float, floor_s: float = 0.05) -> None:
        """Advance by recorded seconds, and shift all later actions."""
        pause_s = max(recorded_s / self._speed, floor_s)
        self._at_s += pause_s
        self._shift_s += pause_s

    def _add_steps(self) -> None:
        steps = self._run.steps
        middle = len(steps) // 2
        faulty = deque(_FAULTY_ACTIONS if self._outcome == "illegal" else ())
        for done, step in enumerate(steps):
            self._at_s = max(self._at_s, self._start_s + self._shift_s + step.t_s / self._speed)
            if done == middle and not self._add_midpoint():
                return
            self._add_step(step, done)
            if faulty:
                self._add_action(*faulty.popleft())
        for verb, name in faulty:
            self._add_action(verb, name)
        self._at_s = max(self._at_s, self._start_s + self._shift_s + self._run.duration_s / self._speed)
        self._add_action("close" if self._outcome == "closed" else "complete")

    def _add_step(self, step: Step, done: int) -> None:
        if isinstance(step, ModelCall):
            self.actions.append(Action(self._at_s, "model_call", step.tokens_in, step.tokens_out, step=done))
        else:
            call = Action(self._at_s, "tool_call", name=step.name, succeeded=step.succeeded, step=done)
            self.actions.append(call)
        if done % _STATE_EVERY == _STATE_EVERY - 1:
            self._add_action("update_state", step=done + 1)
        if done % _PROGRESS_EVERY == _PROGRESS_EVERY - 1:
            self._add_action("progress", step=done + 1)

    def _add_midpoint(self) -> bool:
        """Add the action half way; return False if it ends the session."""
        match self._outcome:
            case "paused":
                self._add_action("pause")
                self._advance(self._rng.uniform(30, 120), floor_s=0.3)
                self._add_action("resume")
            case "recovered":
                self._add_action("error")
                self._advance(self._rng.uniform(5, 30), floor_s=0.2)
                self._add_action("recover")
            case "gave_up":
                self._add_action("error")
                self._advance(self._rng.uniform(5, 30), floor_s=0.2)
                self._add_action("give_up")
                return False
            case "cancelled" | "silent":
                self._add_action("cancel" if self._outcome == "cancelled" else "silence")
                return False
            case _:
                pass
        return True


def make_plan(
    runs: Sequence[Run], *, demo_id: str, seed: int = 1, speed: float = 60.0, gap_s_max: float = 15.0
) -> Plan:
    """Plan one session for each run, in order of their recorded starts.

    `demo_id` makes the session ids unique: each is a UUIDv5 of `demo_id` and the session's index.
    `gap_s_max` (recorded seconds) bounds the time between two starts.

    Raises `ValueError` if `speed` is not above 0.
    """
    if speed <= 0:
        raise ValueError(f"speed {speed:g} is not above 0")
    rng = random.Random(seed)
    ordered = sorted(runs, key=lambda run: run.start_offset_s)
    limits = limits_for(speed)
    sessions: list[PlannedSession] = []
    starts = _start_times(ordered, speed, gap_s_max)
    for n, (run, outcome, start_s) in enumerate(zip(ordered, _draw_outcomes(len(runs), rng), starts, strict=True)):
        tenant = rng.choice(list(TENANTS))
        services, data_classes = TENANTS[tenant]
        sessions.append(
            PlannedSession(
                session_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{demo_id}:{n}")),
                tenant_id=tenant,
                service_id=rng.choice(services),
                user_id=f"user-{rng.randrange(20) + 1}",
                data_classes=data_classes,
                run_name=run.name,
                outcome=outcome,
                limits=limits,
                actions=_ActionBuilder(run, outcome, start_s, speed, rng).build_actions(),
            )
        )
    return Plan(demo_id, tuple(sessions), max(session.actions[-1].at_s for session in sessions))
