"""The processor's own rules over partitions in memory, on a clock that only a test moves.

Imported lazily: importing the client loads nothing of the processor.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import SessionKey, partition_of, partition_of_task, quota_key, run_key, task_key
from sessionary.schemas.records import (
    AuditRecord,
    CleanupRequest,
    FinishedRun,
    MigrationRequest,
    Position,
    QuotaNotice,
    RejectedEvent,
    RunState,
    RunTombstone,
    SessionState,
    TaskRequest,
    TenantQuota,
    Tick,
    Tombstone,
)
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import TopicNames
from sessionary.schemas.types import RejectionReason
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import BatchResult, Emitted, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.claims import UNHEARD, look_again, take_notice, verdict_on
from sessionary.stream_processors.core.quota.limits import TenantLimits

# The quotas of a memory's tenants, by the processor's own rules. Imported lazily, as `judge`.


class SentVerdict(NamedTuple):
    """A verdict as a record of the events topic."""

    key: bytes
    value: bytes


class Quotas:
    """The claims of all tenants, which have the same limits. Not thread-safe.

    `notices`: what sessions reported, until it is taken. `limits`: None if runs ask for no quota.
    """

    def __init__(self, limits: TenantLimits | None) -> None:
        self.limits = limits
        self.notices: deque[QuotaNotice] = deque()
        self.rows: dict[bytes, TenantQuota] = {}

    @property
    def has_tokens(self) -> bool:
        """Whether tokens are counted."""
        return self.limits is not None and self.limits.tokens is not None

    @property
    def next_window_ms(self) -> int | None:
        """When the first window of tokens ends, ms since the epoch; None if none is counted."""
        return min((row.tokens_until for row in self.rows.values() if row.tokens_until), default=None)

    def next_verdict(self, now_ms: int) -> SentVerdict | None:
        """Take all notices; return a verdict that its session has not heard, if there is one.

        Windows of tokens that are over by `now_ms` (ms since the epoch) are forgotten.
        """
        limits = self.limits
        if limits is None:
            return None
        while self.notices:
            notice = self.notices.popleft()
            key = quota_key(notice.tenant_id, notice.quota)
            row = take_notice(self.rows.pop(key, None), notice, limits, now_ms)
            if row is not None:
                self.rows[key] = row
        for key in [key for key, row in self.rows.items() if 0 < row.tokens_until <= now_ms]:
            row = look_again(self.rows.pop(key), limits, now_ms)
            if row is not None:
                self.rows[key] = row
        for row in self.rows.values():
            for claim in row.claims:
                if claim.state in UNHEARD:
                    verdict = verdict_on(row, claim, "memory")
                    return SentVerdict(SessionKey(row.tenant_id, claim.session_id).encoded(), encode_record(verdict))
        return None


# The clock leaps from deadline to deadline, so a stretch without records is no outage.
_NO_OUTAGE_MS = 1 << 62
_TICK = encode_record(Tick("memory"))


class JudgedRecord(NamedTuple):
    """The outcome of one record: the event applied if neither rejected nor a duplicate."""

    offset: int
    rejection: RejectionReason | None
    duplicate_of: str | None  # The id of the event that it repeats; '' if that is too long


class Judge:
    """The partitions' states. Not thread-safe.

    The output of timers and records is in `audits`, `rejected_records` and `cleanups`, in order. In
    the output for one record, the audit record is last in `audits`.
    """

    def __init__(
        self,
        partitions: int,
        now_ms: int,
        limits: TenantLimits | None = None,
        *,
        asks_sessions: bool = False,
    ) -> None:
        """Begin with empty partitions.

        Args:
            partitions: Number of partitions.
            now_ms: The clock, ms since the epoch.
            limits: The limits of each tenant; None: runs ask for no quota.
            asks_sessions: Whether sessions ask for one.
        """
        settings = PartitionSettings(TopicNames.with_prefix("memory").events, partitions, outage_ms=_NO_OUTAGE_MS)
        self.quotas, self._asks_sessions = Quotas(limits), asks_sessions
        self.now_ms = now_ms
        self.audits: list[AuditRecord] = []
        self.rejected_records: list[RejectedEvent] = []
        self.cleanups: list[CleanupRequest] = []
        self.tasks: list[TaskRequest] = []
        self.migrations: list[MigrationRequest] = []
        self.folded = 0  # records and parts of them
        self.folded_more = threading.Condition()  # for who waits, in another thread, until more is folded
        self._states = [self._new_state(partition, settings) for partition in range(partitions)]

    def _new_state(self, partition: int, settings: PartitionSettings) -> PartitionState:
        state = PartitionState(partition, settings, Decoder(), SESSION_JUDGE)
        has_quotas = self.quotas.limits is not None
        judged_by = NEWEST_RULES._replace(quotas=has_quotas, session_quotas=self._asks_sessions)
        judged_by = judged_by._replace(token_quotas=self.quotas.has_tokens)
        state.load_position(Position(0, self.now_ms, 0, 0, 0, rules=judged_by))
        state.finish_loading()
        return state

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next timer fires, or a window of tokens ends, ms since the epoch.

        None without a session, and without tokens that are counted.
        """
        deadlines = [*(state.next_deadline_ms for state in self._states), self.quotas.next_window_ms]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def judge_record(
        self, partition: int, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]]
    ) -> JudgedRecord:
        """Judge one record at the clock's time. Due timers fire first."""
        offset = self.next_offset(partition)
        judged = self._append(partition, LogRecord(offset, self.now_ms, key, value, headers)).judged
        self._send_verdicts()
        return JudgedRecord(offset, judged.rejections.get(offset), judged.duplicates.get(offset))

    def skip_record(self, partition: int) -> int:
        """Leave a record out that is not to be judged; return its offset."""
        offset = self.next_offset(partition)
        state = self._states[partition]
        state.load_position(state.position._replace(next_offset=offset + 1))
        return offset

    def fire_timers(self) -> None:
        """Fire each timer that is due, and drop vanished rows, on every partition."""
        for partition, state in enumerate(self._states):
            deadline_ms = state.next_deadline_ms
            vanishing = (heap[0][0] for heap in (state.expiries, state.unpacked_expiries) if heap)
            ends_ms = min((state.chunks.earliest_ms, *vanishing))
            if ends_ms <= self.now_ms or (deadline_ms is not None and deadline_ms <= self.now_ms):
                self._append(partition, LogRecord(self.next_offset(partition), self.now_ms, None, _TICK))
        self._send_verdicts()

    def _send_verdicts(self) -> None:
        """Append the verdicts on claims to the partitions of their sessions."""
        while (reported := self.quotas.next_verdict(self.now_ms)) is not None:
            partition = partition_of(reported.key, len(self._states))
            offset = self.next_offset(partition)
            self._append(partition, LogRecord(offset, self.now_ms, reported.key, reported.value))

    def find_row(self, partition: int, key: bytes) -> SessionState | Tombstone | None:
        """Return a session as the processor knows it, the remainder of one, or None."""
        row = self._states[partition].rows.get(key)
        return row if isinstance(row, SessionState | Tombstone) else None

    def find_run(self, task_id: str) -> RunState | FinishedRun | None:
        """Return the run that is a task, or None."""
        end = f":{task_id}:".encode()
        rows = (row for state in self._states for key, row in state.rows.items() if key.endswith(end))
        return next((row for row in rows if isinstance(row, RunState | FinishedRun)), None)

    def is_gone(self, partition: int, key: bytes) -> bool:
        """Return whether only a tombstone is left of a run; `key`: its own, or its task's."""
        state = self._states[partition]
        row = state.rows.get(key)
        return isinstance(row, RunTombstone) or (row is None and state.is_packed(key))

    def is_task_gone(self, tenants: Iterable[str], task_id: str) -> bool:
        """Return whether a tombstone is all that is left of a task of one of these tenants."""
        partition = partition_of_task(task_id, len(self._states))
        if partition is None:
            return False
        state = self._states[partition]
        sessions = [(tenant, state.tasks.find_session(tenant, task_id)) for tenant in tenants]
        keys = (task_key(tenant, task_id) if key is None else run_key(*key, task_id) for tenant, key in sessions)
        return any(self.is_gone(partition, key) for key in keys)

    def find_child(self, partition: int, key: bytes) -> object:
        """Return the row under the key of a run, a step or a tool call; None if there is none."""
        return self._states[partition].rows.get(key)

    def find_children(self, partition: int, parent: bytes) -> list[object]:
        """Return the rows of the children of the row under `parent`, in any order."""
        state = self._states[partition]
        return [state.rows[key] for key in state.children(parent)]

    def is_archived(self, partition: int, key: bytes) -> bool:
        """Return whether only a hash of the session's key remains."""
        return self._states[partition].is_packed(key)

    def next_offset(self, partition: int) -> int:
        """Return the offset of the next record."""
        return self._states[partition].position.next_offset

    def _append(self, partition: int, record: LogRecord) -> BatchResult:
        """Fold one record, in a separate batch."""
        state = self._states[partition]
        while True:
            batch = state.begin()
            is_taken = batch.apply(record)
            outcome = batch.finish()
            state.merge(batch)
            for emitted in outcome.emitted:
                self._keep_emitted(emitted)
            with self.folded_more:
                self.folded += 1
                self.folded_more.notify_all()
            if is_taken:
                return outcome
            # The timers that are due filled a batch: the record belongs to the next one.

    def _keep_emitted(self, emitted: Emitted) -> None:
        record = emitted.record
        if isinstance(record, AuditRecord):
            self.audits.append(record)
        elif isinstance(record, RejectedEvent):
            self.rejected_records.append(record)
        elif isinstance(record, CleanupRequest):
            self.cleanups.append(record)
        elif isinstance(record, TaskRequest):
            self.tasks.append(record)
        elif isinstance(record, MigrationRequest):
            self.migrations.append(record)
        elif isinstance(record, QuotaNotice):
            self.quotas.notices.append(record)
