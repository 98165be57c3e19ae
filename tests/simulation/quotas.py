"""The worker of quotas in a schedule: it folds what sessions tell, crashes, and sends verdicts.

Its own `Random` decides about it, so that schedules without quotas stay as they are.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, get_args

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import partition_of, quota_key
from sessionary.schemas.records import QuotaNotice, RulesActivation, RunState, SessionState, TenantQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import QuotaName
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.claims import verdict_on
from sessionary.stream_processors.core.quota.judge import QuotaJudge
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.quotas.verdict_sender import PendingVerdict, pending_verdicts
from tests.auditor.quota_slots import Account, Notice, find_excess
from tests.core.oracle_rig import START_MS
from tests.simulation.adapter import DECODER, LogRecord, PartitionSettings, RulesRequest
from tests.simulation.clients import Sent
from tests.support.judges import JUDGE

if TYPE_CHECKING:
    from tests.simulation.world import World

_SETTINGS = PartitionSettings("sessionary.quotas", 1)
_ROUNDS_MAX = 200
Claim = tuple[str, str, str, str, int]


class QuotaWorker:
    """One partition of the topic of quotas. `is_on`: the rules that are asked for have quotas."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = rng = Random(f"quotas {world.seed}")
        self.is_on = world.judge is JUDGE and rng.random() < 0.4
        self.limits = TenantLimits(rng.choice((0, 1, 1, 2, 3)), rng.choice(("queue", "queue", "reject")))
        # Agents that must survive start without waiting.
        asks_sessions = self.is_on and not world.shape.calm and rng.random() < 0.3
        self.limits = self.limits._replace(live_sessions=rng.choice((1, 2, 3, 5)))
        self.limits = self.limits._replace(tokens=rng.choice((None, 0, 1, 9)), token_window_s=1)
        self.pace_ms = rng.choice((1, 40, 400))  # from one record of the log of quotas to the next
        rules = NEWEST_RULES._replace(quotas=self.is_on, session_quotas=asks_sessions)
        rules = rules._replace(token_quotas=self.is_on and self.limits.tokens is not None)
        self.request = RulesRequest(rules, "operator")
        self.activation = encode_record(RulesActivation(*self.request.rules, "operator", "w1"))
        self.log: list[tuple[bytes, QuotaNotice]] = []
        self.stale: list[PendingVerdict] = []
        self._carried: Counter[int] = Counter()  # outcomes whose notices are in the log, by partition
        self.state = self._opened({})

    def _opened(self, rows: dict[bytes, TenantQuota]) -> PartitionState:
        """Return the state as it is after a recovery with these rows."""
        state = PartitionState(0, _SETTINGS, DECODER, QuotaJudge(lambda _: self.limits))
        for key, row in rows.items():
            state.load(key, row)
        state.finish_loading()
        return state

    def step(self) -> None:
        """Do something, if there are quotas."""
        if self.is_on:
            self.rng.choice((self.carry, self.fold, self.send, self.send, self.send_late, self.forge))()

    def queues_run(self) -> bool:
        """Return whether an agent queues the run that it would start: it waits twice then."""
        return self.is_on and self.rng.random() < 0.3

    def carry(self) -> None:
        """Let what some transactions of a partition reported come to the log of quotas, in
        order.
        """
        outcomes = self.world.broker.outcomes
        partition = self.rng.randrange(len(outcomes))
        for outcome in outcomes[partition][self._carried[partition] :][: self.rng.randint(1, 9)]:
            self._carried[partition] += 1
            self.log += outcome.records_on("quotas")

    def stamp(self, offset: int) -> int:
        """Return when a record of the log of quotas was appended, in ms."""
        return START_MS + offset * self.pace_ms

    def fold(self) -> None:
        """Fold some notices in one transaction; or crash before it, and open again."""
        begin, batch = self.state.position.next_offset, self.state.begin()
        for offset, (key, notice) in enumerate(self.log[begin : begin + self.rng.randint(1, 9)], begin):
            assert batch.apply(LogRecord(offset, self.stamp(offset), key, encode_record(notice)))
        if self.rng.random() < 0.2 * self.world.trouble:
            position = self.state.position
            self.state = self._opened(dict(self.state.rows))
            self.state.load_position(position)
            self.world.mark("crash: worker of quotas")
        elif batch.records:
            batch.finish()
            self.state.merge(batch)
            waiting = [claim for row in self.used_up() for claim in row.claims if claim.state == "waiting"]
            if waiting:
                self.world.mark("quota: tokens are used up")

    def used_up(self) -> list[TenantQuota]:
        """Return the rows whose tokens are used up."""
        rows = [row for row in self.state.rows.values() if isinstance(row, TenantQuota)]
        return [row for row in rows if self.limits.tokens is not None and 0 < row.tokens >= self.limits.tokens]

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

    def forge(self) -> None:
        """Let a client grant itself a slot, as far as it can: it has no key."""
        waiting = [
            PendingVerdict(row.tenant_id, claim, verdict_on(row, claim._replace(state="granted"), "mallory"))
            for row in self.state.rows.values()
            for claim in row.claims
            if claim.state == "waiting"
        ]
        if waiting and self.world.trouble:
            self.world.mark("quota: a forged verdict")
            self.deliver(self.rng.choice(waiting), forged=True)

    def deliver(self, pending: PendingVerdict, *, forged: bool = False) -> None:
        partition = partition_of(pending.key, self.world.shape.partitions)
        if self.world.broker.up:
            of_session = "" if pending.verdict.run_id else " a session"
            if not forged:
                self.world.mark(f"quota: {'granted' if pending.verdict.granted else 'rejected'}{of_session}")
            if pending.verdict.token_limit is not None:
                self.world.mark("quota: rejected because of tokens")
            self.world.log(Sent("verdict", partition, pending.key, encode_record(pending.verdict), forged=forged))
            self.world.sent_records.pop()

    def finish(self) -> None:
        """Let everything that was reported be heard."""
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
        return [*found, *self.find_wrong_accounts(), *self.find_excess()]

    def find_wrong_accounts(self) -> list[str]:
        """Return which rows have counted other tokens than were reported in the last window."""
        clock_ms = self.state.position.clock_ms
        used: Counter[bytes] = Counter()
        for offset, (key, notice) in enumerate(self.log):
            if self.stamp(offset) // 1_000 == clock_ms // 1_000:
                used[key] += notice.tokens
        counted = {key: row.tokens for key, row in self.state.rows.items() if isinstance(row, TenantQuota)}
        keys = counted.keys() | used.keys()
        return [f"{key!r} has {counted.get(key, 0)} tokens" for key in keys if counted.get(key, 0) != used[key]]

    def find_excess(self) -> Iterator[str]:
        """Return what the auditor says of the log of quotas: it has an account of its own."""
        for quota in get_args(QuotaName)[1:]:
            reported = [(self.stamp(n), Notice(*one)) for n, (_, one) in enumerate(self.log) if one.quota == quota]
            tenants = {notice.tenant for _, notice in reported}
            slots = dict.fromkeys(tenants, self.limits.slots_of(quota))
            tokens = self.limits.tokens
            account = Account({} if tokens is None else dict.fromkeys(tenants, (tokens, 1_000)))
            yield from find_excess(quota, reported, slots, account)
