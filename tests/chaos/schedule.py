"""The schedule of faults. Pure: the same seed and duration give the same faults."""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, get_args

FaultKind = Literal[
    "kill processor",
    "freeze processor",
    "kill quotas",
    "kill sink",
    "kill broker",
    "restart broker",
    "freeze broker",
    "cut network",
    "slow network",
    "reset connections",
    "late requests",
    "kill clickhouse",
    "slow clickhouse",
    "kill agent",
    "freeze agent",
    "full spool",
    "full store",
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
SESSION_TIMEOUT_S = 6.0
PROCESSORS = ("w1", "w2")
# Sink → the topic that it reads, below the prefix.
SINK_TOPICS = {"audit": "audit", "history": "events", "rejected": "rejected", "batches": "batches"}
SINKS = tuple(SINK_TOPICS)
# The first agent is never killed: no outage of other parts may time out its sessions.
AGENTS = ("steady", "plain", "cramped", "quick")
CRAMPED = "cramped"
CRAMPED_STORE = "w2"
# Where in its tool call an agent is frozen.
BEFORE_EFFECT, AFTER_EFFECT = FREEZE_PLACES = ("before effect", "after effect")
# The role quotas; the tenant whose runs wait for a slot, and how many slots it has.
QUOTAS, QUOTA_TENANT, QUOTA_SLOTS = "quotas", "umbrella", 3
# Without rules by which runs ask for quotas they would have no effect.
NEEDS_QUOTAS: frozenset[FaultKind] = frozenset({"kill quotas"})
# Only a run of chosen kinds has these. With quotas, runs of clients that do not wait are recorded,
# and their ends are rejected until they are admitted: so many sessions would stay open.
CHOSEN_ONLY: frozenset[FaultKind] = frozenset({"kill quotas"})
# The faults of a short run; "kill agent" includes "kill broker", other kinds need longer runs.
_SHORT: tuple[FaultKind, ...] = (
    "kill processor",
    "kill clickhouse",
    "freeze processor",
    "kill sink",
    "full spool",
    "kill agent",
)
SHORT_S = 150.0
_FIRST_S = 4.0
_LAST_S = 8.0  # no fault begins this close to the end
_GAP_S = (6.0, 8.5)
_AGENT_DELAY_S = 1.0
_CHOSEN_MIN = 3
# Shorter and longer than the session time-outs of the groups and of the broker's own controller.
_STALLS_S: dict[FaultKind, tuple[float, float]] = {
    "freeze broker": (5.0, 40.0),
    "cut network": (5.0, 20.0),
    "slow network": (5.0, 10.0),
    "reset connections": (3.0, 6.0),
}


class Fault(NamedTuple):
    """One fault, `at_s` seconds after the load began; `lasts_s` if it has a duration."""

    at_s: float
    kind: FaultKind
    target: str
    lasts_s: float = 0.0


def _pick_broker(brokers: Sequence[str], rng: random.Random) -> str:
    # Nothing is drawn for one broker: a seed's short schedule for one is the same as ever.
    return rng.choice(brokers) if len(brokers) > 1 else brokers[0]


def _target(kind: FaultKind, rng: random.Random, brokers: Sequence[str], number: int) -> str:
    """Return the target of a fault; `number` of its kind came before."""
    match kind:
        case "kill processor" | "freeze processor":
            return rng.choice(PROCESSORS)
        case "kill sink":
            return f"sink-{rng.choice(SINKS)}"
        case "kill agent":
            return rng.choice(AGENTS[1:])
        case "freeze agent":
            return FREEZE_PLACES[number % 2]
        case "full spool":
            return CRAMPED
        case "full store":
            return CRAMPED_STORE
        case "kill quotas":
            return QUOTAS
        case "late requests":
            return "workers"
        case "kill broker" | "restart broker" | "freeze broker" | "cut network" | "slow network" | "reset connections":
            return _pick_broker(brokers, rng)
        case "kill clickhouse" | "slow clickhouse":
            return "clickhouse"


def _lasts_s(kind: FaultKind, rng: random.Random) -> float:
    if kind == "freeze processor":
        return SESSION_TIMEOUT_S + rng.uniform(2.0, 5.0)
    if kind in _STALLS_S:
        return rng.uniform(*_STALLS_S[kind])
    return rng.uniform(5.0, 9.0) if kind in ("slow clickhouse", "full spool", "full store") else 0.0


def kinds_in_deck(seconds: float, only: Collection[FaultKind] = ()) -> tuple[FaultKind, ...]:
    """Return the kinds of faults of a run; `only` chooses them."""
    usual = tuple(kind for kind in KINDS if kind not in CHOSEN_ONLY)
    return tuple(only) or (_SHORT if seconds < SHORT_S else usual)


def count_required(minutes: float, only: Collection[FaultKind] = ()) -> int:
    """Return how often each kind must happen in a run: three times in ten minutes.

    A run of chosen kinds has three of each, however short it is.
    """
    return max(int(3 * minutes / 10), _CHOSEN_MIN if only else 0)


def find_rare_kinds(
    happened: Collection[FaultKind], deck: Collection[FaultKind], minutes: float, only: Collection[FaultKind] = ()
) -> list[str]:
    """Return a sentence for each kind of the deck that happened too rarely."""
    counts, required = Counter(happened), count_required(minutes, only)
    return [
        f"{kind} happened {counts[kind]} times in {minutes:g} minutes, must be {required}"
        for kind in deck
        if counts[kind] < required
    ]


def draw_faults(
    seed: int, seconds: float, only: Collection[FaultKind] = (), brokers: Sequence[str] = ("broker",)
) -> list[Fault]:
    """Return the faults of a run in order of time.

    Kinds come in rounds, each a shuffled deck: every kind occurs before one occurs again. So a
    machine that is too slow for the whole schedule leaves out late rounds, and no kind. An agent is
    killed while a broker is down, because then its spool contains events. `only` restricts the
    kinds.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    deck: list[FaultKind] = []
    at_s = _FIRST_S
    while at_s < seconds - _LAST_S:
        if not deck:
            deck = list(kinds_in_deck(seconds, only))
            rng.shuffle(deck)
        kind = deck.pop()
        if kind == "kill agent":
            faults.append(Fault(round(at_s, 2), "kill broker", _pick_broker(brokers, rng)))
            at_s += _AGENT_DELAY_S
        target = _target(kind, rng, brokers, sum(fault.kind == kind for fault in faults))
        faults.append(Fault(round(at_s, 2), kind, target, round(_lasts_s(kind, rng), 2)))
        at_s += rng.uniform(*_GAP_S)
    return faults
