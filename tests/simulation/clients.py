"""Simulated client processes: they share sessions, crash, freeze, and may have a spool.

A process keeps the order of its records; between processes any order is possible. A process knows
of a session only the control API's last answer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from sessionary.schemas.ids import SessionKey, derived_id, partition_of
from sessionary.schemas.records import SessionState, Tombstone
from tests.simulation.event_encoding import event_bytes

if TYPE_CHECKING:
    from tests.simulation.world import World


class Session(NamedTuple):
    """A session's key and partition."""

    name: str
    key: SessionKey
    encoded: bytes
    partition: int
    service: str


class Sent(NamedTuple):
    """A record that a client sends."""

    what: str
    partition: int
    key: bytes | None
    value: bytes | None
    acknowledged: bool = False
    forged: bool = False  # without the signature of a server role


def session_of(tenant: str, name: str, service: str, partitions: int) -> Session:
    key = SessionKey(tenant, derived_id(tenant, name))
    encoded = key.encoded()
    return Session(name, key, encoded, partition_of(encoded, partitions), service)


class Process:
    """A client process: one producer id, one queue; `journal` is its spool, if it has one."""

    def __init__(self, world: World, name: str, service: str) -> None:
        rng = world.rng
        self.world, self.name, self.service = world, name, service
        self.queue: deque[Sent] = deque()
        self.spools = rng.random() < 0.5
        self.journal: list[Sent] = []
        self.clock_error_us = rng.choice((0, 0, -86_400_000_000, 3_600_000_000, 10**15))
        self.frozen = False
        self.seqs: dict[bytes, int] = {}
        self.known_rows: dict[bytes, SessionState | Tombstone | None] = {}

    def ask_state(self, session: Session) -> SessionState | Tombstone | None:
        """Ask the control API for a session; without an answer return the last known row."""
        if self.world.rng.random() < 0.5:
            self.world.cluster.work(12, session.partition)
        found = self.world.cluster.look(session.encoded, session.partition)
        if found is not None:
            self.known_rows[session.encoded] = found
        return self.known_rows.get(session.encoded)

    def queue_event(self, session: Session, event_type: str, fields: dict[str, Any], **changed: Any) -> Sent:
        """Encode an event and queue it; `changed` replaces fields of the envelope."""
        beats = event_type == "heartbeat"
        seq = self.seqs.get(session.encoded, 0)
        if not beats and "producer_seq" not in changed:
            seq += 1
            self.seqs[session.encoded] = seq
        known = self.known_rows.get(session.encoded)
        envelope = {
            "event_id": derived_id(session.name, self.name, event_type, seq),
            "tenant_id": session.key.tenant_id,
            "session_id": session.key.session_id,
            "service_id": self.service,
            "epoch": known.epoch if known is not None else 1,
            "producer_id": self.name,
            "producer_seq": 0 if beats else seq,
            "occurred_at": max(0, self.world.now_ms * 1_000 + self.clock_error_us),
            **changed,
        }
        what = f"{session.name}: {event_type} by {self.name} no. {envelope['producer_seq']}"
        partition = session.partition
        if self.world.rng.random() < 0.01 * self.world.trouble:
            partition = self.world.rng.randrange(self.world.shape.partitions)  # another partitioner
        forged = fields.get("as_operator") is True and self.world.rng.random() < 0.1 * self.world.trouble
        if forged:
            self.world.mark("operator: forged")
        value = event_bytes(event_type, fields, **envelope)
        sent = Sent(what, partition, session.encoded, value, forged=forged)
        self.queue.append(sent)
        if self.spools and not beats:
            self.journal.append(sent)
        return sent

    def deliver(self) -> None:
        """Send the queue in order, until the network or the broker fails."""
        world = self.world
        while self.queue and world.broker.up and not self.frozen:
            if world.rng.random() < 0.03 * world.trouble:
                world.mark("network: dropped, sent again later")
                return
            sent = self.queue.popleft()
            world.log(sent)
            if world.rng.random() < 0.03 * world.trouble:
                world.mark("network: sent twice as the answer was lost")
                world.log(sent)
        if not self.queue and world.rng.random() < 0.7:
            self.journal.clear()  # all deliveries were acknowledged

    def drop_first(self) -> Sent | None:
        """Lose the first event of the queue for good."""
        lost = self.queue.popleft() if self.queue else None
        if lost is not None and lost in self.journal:
            self.journal.remove(lost)
        return lost


class SteadySession:
    """A session whose agent always sends heartbeats: it must never time out as inactive."""

    def __init__(self, world: World, session: Session, every_ms: int) -> None:
        self.world, self.session, self.every_ms = world, session, every_ms
        self.process = Process(world, f"steady-{session.name}", session.service)
        self.beaten_ms = world.now_ms

    def begin(self, fields: dict[str, Any]) -> None:
        self.process.queue_event(self.session, "session_created", fields)
        for phase in ("validating", "connecting"):
            self.process.queue_event(self.session, "session_phase_changed", {"phase": phase})
        self.process.queue_event(self.session, "session_started", {})
        self._send()

    def beat_if_due(self) -> None:
        """Send a heartbeat or activity if it is time to."""
        if self.world.broker.up and self.world.now_ms - self.beaten_ms >= self.every_ms:
            beats = self.world.rng.random() < 0.8
            self.process.queue_event(self.session, "heartbeat" if beats else "session_activity", {})
            self._send()

    def _send(self) -> None:
        self.beaten_ms = self.world.now_ms
        while self.process.queue:
            self.world.log(self.process.queue.popleft())
