"""Two partitions of sessions and one of quotas, with loss, repetition and crashes between them."""

from collections import deque
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import quota_key, run_key
from sessionary.schemas.records import QuotaNotice, RunState, TenantQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.judge import QuotaJudge
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.quotas.verdict_sender import PendingVerdict, pending_verdicts
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import DECODER, SETTINGS, START_MS
from tests.support.event_factory import EventFactory

LIMIT = 2
KEY = quota_key("acme", "concurrent_runs")
Claim = tuple[str, str, int]


class SessionPartition(FoldRig):
    """One session, its runs, and the notices that its transactions have written."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.agent = EventFactory(name)
        self.activate(NEWEST_RULES._replace(quotas=True))
        self.start(self.agent)
        self.notices: deque[QuotaNotice] = deque()

    def say(self, event_type: str, run_id: str) -> None:
        fields = {"mode": "detached", "plan_json": None} if event_type == "run_started" else {}
        assert self.send(self.agent, event_type, {"run_id": run_id}, **fields) == "applied"
        self.collect()

    def hear(self, pending: PendingVerdict) -> None:
        assert self.append(pending.key, encode_record(pending.verdict)) == "tick"
        self.collect()

    def collect(self) -> None:
        assert self.outcome is not None
        self.notices += [record for _, record in self.outcome.records_on("quotas")]

    def row(self, run_id: str) -> RunState | None:
        row = self.fold.rows.get(run_key(*self.agent.key, run_id))
        return row if isinstance(row, RunState) else None


class QuotaStory(RuleBasedStateMachine):
    """The model: claims in the order of the log; the first ones hold the slots, the others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = [SessionPartition("a"), SessionPartition("b")]
        judge = QuotaJudge(lambda _: TenantLimits(LIMIT, "queue"))
        self.quotas = PartitionState(0, SETTINGS, DECODER, judge)
        self.quotas.load_position(self.quotas.position._replace(rules=NEWEST_RULES))
        self.quotas.finish_loading()
        self.log: list[QuotaNotice] = []
        self.order: list[Claim] = []  # by the model, of what is folded
        self.stale: list[PendingVerdict] = []
        self.runs: list[tuple[SessionPartition, str]] = []
        self.numbers = count()

    @rule(place=st.integers(0, 1))
    def ask(self, place: int) -> None:
        run_id = f"r{next(self.numbers)}"
        self.partitions[place].say("run_started", run_id)
        self.runs.append((self.partitions[place], run_id))

    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        if self.runs:
            partition, run_id = self.runs.pop(which % len(self.runs))
            partition.say("run_cancelled", run_id)

    @rule(place=st.integers(0, 1), many=st.integers(1, 4))
    def carry(self, place: int, many: int) -> None:
        """A transaction of a partition becomes visible: its notices are in the log of quotas."""
        notices = self.partitions[place].notices
        for _ in range(min(many, len(notices))):
            self.log.append(notices.popleft())

    @rule(crashes=st.booleans(), many=st.integers(1, 5))
    def fold(self, crashes: bool, many: int) -> None:
        batch, begin = self.quotas.begin(), self.quotas.position.next_offset
        reported = self.log[begin : begin + many]
        for offset, notice in enumerate(reported, begin):
            assert batch.apply(LogRecord(offset, START_MS + offset, KEY, encode_record(notice)))
        if crashes or not reported:
            return  # the batch is void, and folded again
        batch.finish()
        self.quotas.merge(batch)
        for notice in reported:
            claim = notice.session_id, notice.run_id, notice.offset
            if notice.step == "requested":
                self.order.append(claim)
            elif notice.step == "released":
                self.order.remove(claim)

    @rule(times=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def send(self, times: list[int]) -> None:
        """Verdicts are lost, come once, or come twice."""
        for pending, copies in zip(self.pending(), times, strict=False):
            self.stale.append(pending)
            for _ in range(copies):
                self.deliver(pending)

    @rule(which=st.integers(0, 99))
    def deliver_late(self, which: int) -> None:
        if self.stale:
            self.deliver(self.stale[which % len(self.stale)])

    def pending(self) -> list[PendingVerdict]:
        row = self.quotas.rows.get(KEY)
        return list(pending_verdicts(row, "q1")) if isinstance(row, TenantQuota) else []

    def deliver(self, pending: PendingVerdict) -> None:
        for partition in self.partitions:
            if pending.key == partition.agent.key.encoded():
                partition.hear(pending)

    @invariant()
    def the_oldest_claims_hold_the_slots(self) -> None:
        row = self.quotas.rows.get(KEY)
        claims = row.claims if isinstance(row, TenantQuota) else ()
        assert [claim[:3] for claim in claims] == self.order
        assert [claim[:3] for claim in claims if claim.state in ("granted", "taken")] == self.order[:LIMIT]

    @invariant()
    def never_more_runs_at_work_than_the_limit(self) -> None:
        assert len(self.at_work()) <= LIMIT

    def at_work(self) -> list[str]:
        rows = (partition.row(run_id) for partition, run_id in self.runs)
        return [row.run_id for row in rows if row is not None and row.state != "queued"]

    def settle(self) -> None:
        """Let everything arrive, with a last crash of the worker of quotas."""
        self.fold(crashes=True, many=100)
        while any(partition.notices for partition in self.partitions) or self.pending() or self.is_behind():
            for place in range(2):
                self.carry(place, 100)
            self.fold(crashes=False, many=100)
            self.send([1] * 100)

    def is_behind(self) -> bool:
        return self.quotas.position.next_offset < len(self.log)

    def teardown(self) -> None:
        self.settle()
        assert len(self.at_work()) == min(LIMIT, len(self.runs))
        while self.runs:
            self.end(0)
            self.settle()
            assert len(self.at_work()) == min(LIMIT, len(self.runs))
        assert dict(self.quotas.rows) == {}


TestQuotaStory = QuotaStory.TestCase
TestQuotaStory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
