"""The worker of quotas in a schedule: it folds what sessions tell, crashes, and sends verdicts.

Its own `Random` decides about it, so that schedules without quotas stay as they are.
"""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import partition_of, quota_key
from sessionary.schemas.records import QuotaNotice, RulesActivation, RunState, SessionState, TenantQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.core.quota.machine import QuotaMachine, read_quota_arrival
from sessionary.stream_processors.quotas.verdict_sender import PendingVerdict, pending_verdicts
from tests.core.oracle_rig import START_MS
from tests.simulation.adapter import DECODER, LogRecord, PartitionSettings, RulesRequest
from tests.simulation.clients import Sent
from tests.support.machines import MACHINES

if TYPE_CHECKING:
    from tests.simulation.world import World

_SETTINGS = PartitionSettings("sessionary.quotas", 1)
_ROUNDS_MAX = 200
Claim = tuple[str, str, str, str, int]


class QuotaWorker:
    """One partition of the topic of quotas. `is_on`: the newest rules have quotas here."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = rng = Random(f"quotas {world.seed}")
        self.is_on = len(world.machines) == len(MACHINES) and rng.random() < 0.4
        self.limits = TenantLimits(rng.choice((0, 1, 1, 2, 3)), rng.choice(("queue", "queue", "reject")))
        # Agents that must survive start without waiting.
        asks_sessions = self.is_on and not world.shape.calm and rng.random() < 0.3
        self.limits = self.limits._replace(live_sessions=rng.choice((1, 2, 3, 5)))
        self.request = RulesRequest(NEWEST_RULES._replace(quotas=self.is_on, session_quotas=asks_sessions), "operator")
        self.activation = encode_record(RulesActivation(*self.request.rules, "operator", "w1"))
        self.log: list[tuple[bytes, QuotaNotice]] = []
        self.stale: list[PendingVerdict] = []
        self._carried: Counter[int] = Counter()  # outcomes whose notices are in the log, by partition
        self.state = self._opened({})

    def _opened(self, rows: dict[bytes, TenantQuota]) -> PartitionState:
        """Return the state as it is after a recovery with these rows."""
        state = PartitionState(
            0, _SETTINGS, DECODER, [QuotaMachine(lambda _: self.limits)], read_arrival=read_quota_arrival
        )
        for key, row in rows.items():
            state.load(key, row)
        state.load_position(state.position._replace(rules=NEWEST_RULES))
        state.finish_loading()
        return state

    def step(self) -> None:
        """Do something, if there are quotas."""
        if self.is_on:
            self.rng.choice((self.carry, self.fold, self.send, self.send, self.send_late))()

    def carry(self) -> None:
        """Let what some transactions of a partition told come to the log of quotas, in order."""
        outcomes = self.world.broker.outcomes
        partition = self.rng.randrange(len(outcomes))
        for outcome in outcomes[partition][self._carried[partition] :][: self.rng.randint(1, 9)]:
            self._carried[partition] += 1
            self.log += outcome.records_on("quotas")

    def fold(self) -> None:
        """Fold some notices in one transaction; or crash before it, and open again."""
        begin, batch = self.state.position.next_offset, self.state.begin()
        for offset, (key, notice) in enumerate(self.log[begin : begin + self.rng.randint(1, 9)], begin):
            assert batch.apply(LogRecord(offset, START_MS + offset, key, encode_record(notice)))
        if self.rng.random() < 0.2 * self.world.trouble:
            position = self.state.position
            self.state = self._opened(dict(self.state.rows))
            self.state.load_position(position)
            self.world.mark("crash: worker of quotas")
        elif batch.records:
            batch.finish()
            self.state.merge(batch)

    def pending(self) -> list[PendingVerdict]:
        rows = [row for row in self.state.rows.values() if isinstance(row, TenantQuota)]
        return [pending for row in rows for pending in pending_verdicts(row, "q1")]

    def send(self) -> None:
        """Send the verdicts that are not heard; some are lost, some come twice."""
        for pending in self.pending():
            self.stale.append(pending)
            for _ in range(self.rng.choice((0, 1, 2)) if self.world.trouble else 1):
                self.deliver(pending)

    def send_late(self) -> None:
        if self.stale:
            self.deliver(self.rng.choice(self.stale))

    def deliver(self, pending: PendingVerdict) -> None:
        partition = partition_of(pending.key, self.world.shape.partitions)
        if self.world.broker.up:
            of_session = "" if pending.verdict.run_id else " a session"
            self.world.mark(f"quota: {'granted' if pending.verdict.granted else 'rejected'}{of_session}")
            self.world.log(Sent("verdict", partition, pending.key, encode_record(pending.verdict)))
            self.world.sent_records.pop()

    def finish(self) -> None:
        """Let everything that was told be heard."""
        for _ in range(_ROUNDS_MAX if self.is_on else 0):
            for partition, outcomes in enumerate(self.world.broker.outcomes):
                for outcome in outcomes[self._carried[partition] :]:
                    self.log += outcome.records_on("quotas")
                self._carried[partition] = len(outcomes)
            while self.state.position.next_offset < len(self.log):
                self.fold()
            if not self.pending():
                return
            self.send()
            self.world.cluster.finish()
        assert not self.is_on, "verdicts are not heard"

    # What must hold in the end

    def find_faults(self) -> list[str]:
        """Return how the claims differ from the sessions and their runs, and from the limits."""
        if not self.is_on:
            return []
        claims: dict[Claim, str] = {}
        found: list[str] = []
        for row in self.state.rows.values():
            assert isinstance(row, TenantQuota)
            claims |= {(row.quota, row.tenant_id, *claim[:3]): claim.state for claim in row.claims}
            holders, slots = [claim.state for claim in row.claims].count("taken"), self.limits.slots_of(row.quota)
            waiting = len(row.claims) - holders
            if holders > slots or (waiting and holders < slots):
                found.append(f"{row.quota} of tenant {row.tenant_id}: {holders} hold a slot, {waiting} wait: {slots}")
            assert quota_key(row.tenant_id, row.quota) in self.state.rows
        held: dict[Claim, str] = {}
        for partition in range(self.world.shape.partitions):
            for one in self.world.cluster.owner(partition).fold.rows.values():
                if isinstance(one, RunState | SessionState) and one.quota is not None:
                    what = ("concurrent_runs", one.run_id) if isinstance(one, RunState) else ("live_sessions", "")
                    name = what[0], one.tenant_id, one.session_id, what[1], one.quota.offset
                    held[name] = "taken" if one.quota.granted else "waiting"
        if claims != held:
            found.append(f"the claims are {claims}, those in the rows of sessions and runs {held}")
        return found


__all__ = ["QuotaWorker"]
