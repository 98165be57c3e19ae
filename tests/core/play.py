"""Random agents in random time, before a court; all chance comes from the `Random` handed in.

Three sessions of two tenants in one partition, each with two client processes; most of what they do makes sense in the
session's state, the rest is nonsense of every kind that a record can have.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import CleanupAction, ErrorInfo, Limits
from tests.core.court import Court
from tests.support.scribe import Scribe, snapshot

SHORT = Limits(
    idle_ms=40_000,
    max_duration_ms=100_000,
    grace_ms=9_000,
    hold_ms=20_000,
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
WORK = ["session_activity", "progress_reported", "message_appended", "usage_recorded", "tool_call_succeeded"]
ERRORS = [ErrorInfo(kind, "e", "e") for kind in ("retryable", "retryable", "retryable", "fatal", "UNKNOWN")]
ENDS = "UNKNOWN closed completed cancelled abnormal_termination forced unrecoverable recovery_failed timeout_cleanup"
PHASES = "validating connecting processing updating persisting logging recovery cleanup releasing clearing"
FIELDS: dict[str, dict[str, list[Any]]] = {
    "session_created": {"limits": LIMITS},
    "session_phase_changed": {"phase": PHASES.split()},
    "session_start_failed": {"reason": ["UNKNOWN", "invalid_config", "connection_failed", "init_timeout"]},
    "session_paused": {"snapshot": [snapshot("paused"), snapshot("paused"), None]},
    "session_resumed": {"snapshot_id": [None, None, "paused", "first", "nowhere"]},
    "session_errored": {"error": ERRORS},
    "session_terminated": {"reason": ENDS.split()},
    "snapshot_created": {"snapshot": [snapshot("x"), snapshot("paused")]},
}
Move = tuple[str, dict[str, Any]]
NEXT: dict[str, list[Move]] = {
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
        ("session_resumed", {"snapshot_id": "paused"}),
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
WEIGHTS = [None, None, None, 1_000, 199_999_999, 200_000_000, 200_000_001, 50_000_000, 50_000_001]
BENT: list[dict[str, Any]] = [
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
BAD_KEYS = [None, b"", b"acme:x", b"\xff", b"\x00position"]


class Play:
    """One court and its agents."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.court = rng, Court()
        names = (("a", "acme"), ("b", "acme"), ("a", "zeta"))
        self.scribes = [Scribe(name, tenant, producer=p) for name, tenant in names for p in ("p1", "p2")]
        self.renewed = 0

    def step(self) -> None:
        weights = [weight for weight, _ in self.acts()]
        self.rng.choices([act for _, act in self.acts()], weights)[0]()

    def acts(self) -> list[tuple[int, Callable[[], None]]]:
        """What may happen, and how often in relation."""
        return [
            (40, self.sense),
            (4, self.nonsense),
            (4, self.bent),
            (3, self.gap),
            (4, self.past),
            (3, self.again),
            (3, self.broken),
            (1, self.bad_key),
            (6, self.released),
            (3, self.stumble),
            (5, self.begin),
            (12, self.pause),
            (6, self.deadline),
            (1, self.backwards),
        ]

    def scribe(self) -> Scribe:
        """Any agent; where its session is archived, it and its neighbour mostly turn to a new one."""
        place = self.rng.randrange(len(self.scribes))
        old = self.scribes[place]
        if old.key.encoded() in self.court.book.graves and self.rng.random() < 0.8:
            self.renewed += 1
            for n in (place & ~1, place | 1):
                name, tenant = f"new-{self.renewed}", old.key.tenant_id
                self.scribes[n] = Scribe(name, tenant, producer=f"p{n & 1}")
        return self.scribes[place]

    def row(self, scribe: Scribe) -> SessionState | None:
        row = self.court.fold.rows.get(scribe.key.encoded())
        return row if isinstance(row, SessionState) else None

    def send(self, scribe: Scribe, event_type: str, fields: dict[str, Any], **envelope: Any) -> None:
        drawn = {name: self.rng.choice(options) for name, options in FIELDS.get(event_type, {}).items()}
        row = self.row(scribe)
        if row is not None:
            scribe.epoch = row.epoch
            if event_type == "state_updated":
                base = row.version + self.rng.choice([0, 0, 0, 1, -1])
                drawn = {"base_version": base, "new_version": base + self.rng.choice([1, 1, 1, 2])}
        weight = self.rng.choice(WEIGHTS)
        self.court.says(scribe, event_type, {"context_bytes": weight, **envelope}, **{**drawn, **fields})

    def sense(self) -> None:
        scribe = self.scribe()
        row = self.row(scribe)
        moves = [("session_created", {})] if row is None else NEXT[row.state]
        self.send(scribe, *self.rng.choice(moves))

    def nonsense(self) -> None:
        self.send(self.scribe(), self.rng.choice(sorted(PAYLOADS)), {})

    def bent(self) -> None:
        scribe = self.scribe()
        row = self.row(scribe)
        moves = [("session_created", {})] if row is None else [*NEXT[row.state], ("session_created", {})]
        self.send(scribe, *self.rng.choice(moves), **self.rng.choice(BENT))

    def gap(self) -> None:
        scribe = self.scribe()
        scribe.seq += self.rng.randint(1, 4)
        self.send(scribe, self.rng.choice(WORK), {})

    def past(self) -> None:
        """A duplicate, or a late filler where it falls into a gap."""
        scribe = self.scribe()
        self.send(scribe, self.rng.choice(WORK), {}, producer_seq=self.rng.randint(1, max(1, scribe.seq)))

    def again(self) -> None:
        if self.court.log:
            record = self.rng.choice(self.court.log[-30:])
            self.court.hear(record.key, record.value)

    def broken(self) -> None:
        if self.court.log:
            record = self.rng.choice(self.court.log[-30:])
            value = bytearray(record.value or b"")
            if value and self.rng.random() < 0.5:
                value[self.rng.randrange(len(value))] ^= 1 << self.rng.randrange(8)
            else:
                del value[self.rng.randrange(len(value) + 1) :]
            self.court.hear(record.key, bytes(value))

    def bad_key(self) -> None:
        self.court.hear(self.rng.choice(BAD_KEYS), self.scribe().writes("session_activity"))

    def released(self) -> None:
        scribe = self.scribe()
        row = self.row(scribe)
        known = [cleanup.cleanup_id for cleanup in row.cleanups] if row is not None else []
        lost = self.rng.random() < 0.2
        fields = {
            "cleanup_id": self.rng.choice([*known[-2:] * 3, "nonsense"]),
            "actions": [CleanupAction("close_connection", True, 1), CleanupAction("clear_context", not lost, 2)],
            "bytes_released": self.rng.choice([None, 5]),
            "host_lost": lost,
        }
        self.send(scribe, "resources_released", fields, epoch=self.rng.choice([0, 1, 7]))

    def begin(self) -> None:
        """A session from its creation to Active, where nothing is in the way."""
        scribe = self.scribe()
        if self.row(scribe) is None:
            self.send(scribe, "session_created", {"limits": self.rng.choice(LIMITS[:10])})
        for phase in ("validating", "connecting"):
            self.send(scribe, "session_phase_changed", {"phase": phase})
        self.send(scribe, "session_started", {})

    def stumble(self) -> None:
        """A session that errs and recovers a few times in a row."""
        scribe = self.scribe()
        error = self.rng.choice(ERRORS)
        for _ in range(self.rng.randint(1, 6)):
            self.send(scribe, "session_errored", {"error": error})
            self.send(scribe, "session_phase_changed", {"phase": "recovery"})
            self.send(scribe, "session_recovered", {})

    def pause(self) -> None:
        self.court.at += self.rng.choice([1, 10, 999, 999, 4_999, 5_000, 5_001])
        if self.rng.random() < 0.5:
            self.court.tick()

    def deadline(self) -> None:
        """Time lands on a deadline or beside it; with ticks on the way there is no hole, without there may be one."""
        book = self.court.book
        if not book.rows or self.rng.random() < 0.1:
            self.court.at = max(self.court.at, book.quiet_until + self.rng.choice([-1, 0, 1]))
            return
        row = book.rows[self.rng.choice(sorted(book.rows))]
        due = min(book.due(row)[0], self.court.at + 130_000)
        target = max(self.court.at, due + self.rng.choice([-1, 0, 1]))
        while self.rng.random() < 0.98 and self.court.at + 4_999 < target:
            self.court.at += self.rng.choice([4_999, 5_000])
            self.court.tick()
        self.court.at = target
        if self.rng.random() < 0.7:
            self.court.tick()

    def backwards(self) -> None:
        now, self.court.at = self.court.at, self.court.at - self.rng.randint(1, 3_000)
        self.court.tick()
        self.court.at = now
