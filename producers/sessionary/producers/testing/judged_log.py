"""The processor's own rules over partitions in memory, and the events that they have judged.

The clock is one that only a test moves. Imported lazily: importing the client loads nothing of the
processor. It is one module, because all that loads the processor's rules is in it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sessionary.producers.errors import RunGone, SessionLost
from sessionary.producers.ports import (
    AgentMember,
    ChangedSession,
    KnownSession,
    OutRecord,
    SessionChanges,
    SessionView,
    TaskFilter,
    TaskPart,
    TaskView,
    Verdict,
)
from sessionary.producers.run_ports import LOG_END, FollowedState, HeldBy, LogEntry, MigrationView
from sessionary.producers.testing.judged_event import MEMORY_KEYS, JudgedEvent, MemoryQuota, NamedSession
from sessionary.schemas.codec import Decoder, Event, encode_event, encode_record
from sessionary.schemas.events import OPERATORS, Heartbeat, SessionRecovered, SessionResumed, SessionTakenOver
from sessionary.schemas.ids import (
    SessionId,
    SessionKey,
    given_session_id,
    is_run_key,
    is_task_id,
    message_key,
    parse_key,
    partition_of,
    partition_of_task,
    quota_key,
    run_key,
    task_key,
)
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
from sessionary.schemas.signatures import SIGNATURE
from sessionary.schemas.topics import TopicNames
from sessionary.schemas.types import Limits, RejectionReason
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import BatchResult, Emitted, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.claims import UNHEARD, look_again, take_notice, verdict_on
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.core.session.clocks import waits_for_quota
from sessionary.stream_processors.core.session.people import hold_end_ms, is_answer_new

# The quotas of a memory's tenants, by the processor's own rules.


class SentVerdict(NamedTuple):
    """A verdict as a record of the events topic."""

    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


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
                    key = SessionKey(row.tenant_id, claim.session_id).encoded()
                    value = encode_record(verdict_on(row, claim, "memory"))
                    return SentVerdict(key, value, [MEMORY_KEYS.sign(key, value)])
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
        outages: bool = False,
    ) -> None:
        """Begin with empty partitions.

        Args:
            partitions: Number of partitions.
            now_ms: The clock, ms since the epoch.
            limits: The limits of each tenant; None: runs ask for no quota.
            asks_sessions: Whether sessions ask for one.
            outages: Whether a stretch without records is an outage, as in a log of Kafka.
        """
        topic = TopicNames.with_prefix("memory").events
        settings = PartitionSettings(topic, partitions, keys=MEMORY_KEYS)
        settings = settings if outages else settings._replace(outage_ms=_NO_OUTAGE_MS)
        self.quotas, self._asks_sessions = Quotas(limits), asks_sessions
        self.now_ms = now_ms
        self.audits: list[AuditRecord] = []
        self.rejected_records: list[RejectedEvent] = []
        self.cleanups: list[CleanupRequest] = []
        self.tasks: list[TaskRequest] = []
        self.migrations: list[MigrationRequest] = []
        self.folded = 0  # records and parts of them
        self.folded_more = threading.Condition()  # for who waits, in another thread, until more is folded
        self.touched: set[bytes] | None = None  # keys of the rows that were written since this was set
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
            self._append(partition, LogRecord(offset, self.now_ms, *reported))

    def find_row(self, partition: int, key: bytes) -> SessionState | Tombstone | None:
        """Return a session as the processor knows it, the remainder of one, or None."""
        row = self._states[partition].rows.get(key)
        return row if isinstance(row, SessionState | Tombstone) else None

    def list_tasks(self, tenant_id: str | None) -> list[tuple[bytes, RunState | FinishedRun]]:
        """Return a tenant's tasks by their keys, in the order of these; None: those of all."""
        rows = ((key, row) for state in self._states for key, row in state.rows.items() if is_run_key(key))
        found = [(key, row) for key, row in rows if isinstance(row, RunState | FinishedRun)]
        return sorted(
            (key, row)
            for key, row in found
            if tenant_id in (None, row.tenant_id) and is_task_id(row.run_id, SessionKey(row.tenant_id, row.session_id))
        )

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

    def list_rows(self, partition: int) -> list[tuple[bytes, object]]:
        """Return all rows of a partition with their keys, in any order."""
        return list(self._states[partition].rows.items())

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
            if self.touched is not None:
                self.touched.update(outcome.rows)
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


_NOT_KEPT = Verdict(applied=False, reason=None, kept=False)


class JudgedLog:
    """The events that were sent, with the judge's knowledge of them. Not thread-safe.

    `records` and `judged` are the events, `heartbeats` those that `records` leaves out, each in
    order. A test may add to `next_rejections`: reasons for which the next resumes, recoveries and
    take-overs are rejected.
    """

    def __init__(
        self, partitions: int, now_ms: int, quota: MemoryQuota | None = None, *, outages: bool = False
    ) -> None:
        """Begin empty. The arguments are those of `Judge`."""
        slots = None if quota is None else quota.live_sessions
        limits = None if quota is None else TenantLimits(quota.concurrent_runs, quota.over)
        if limits is not None and quota is not None:
            limits = limits._replace(tokens=quota.tokens, token_window_s=quota.token_window_s)
        if limits is not None and slots is not None:
            limits = limits._replace(live_sessions=slots)
        self.judge = Judge(partitions, now_ms, limits, asks_sessions=slots is not None, outages=outages)
        self.records: list[OutRecord] = []
        self.judged: list[JudgedEvent] = []
        self.heartbeats: list[Event] = []
        self.next_rejections: list[RejectionReason] = []
        self._partitions = partitions
        self._began_ms = now_ms
        self._decoder = Decoder()
        self._keys: dict[str, bytes] = {}  # of the records, by session id
        self._verdicts: dict[tuple[int, int], Verdict] = {}
        self.entries: list[LogEntry] = []  # all records as they were sent, heartbeats too

    def append_event(self, record: OutRecord) -> JudgedEvent:
        """Judge an event, keep it, and return it with its verdict."""
        sent = record
        record, event = self._at_fake_time(record)
        judged = self._judge_event(record, event)
        self._keep_entry(sent, judged)
        self.records.append(record)
        self.judged.append(judged)
        self._keys.setdefault(judged.session_id, record.key)
        return judged

    def append_heartbeat(self, record: OutRecord) -> None:
        """Judge a heartbeat and keep it."""
        sent = record
        record, event = self._at_fake_time(record)
        self._keep_entry(sent, self._judge_event(record, event))
        self.heartbeats.append(event)

    def append_past(self, entry: LogEntry, *, has_times: bool) -> JudgedEvent | None:
        """Judge an entry of another log at its time; return its event, if it is one.

        `has_times`: the log has a record for each passing second; else clocks fire at their exact
        times. What a server role signed is signed anew: its key is not known here. Raises
        `DecodeError`.
        """
        judge = self.judge
        while not has_times and (due_ms := judge.next_deadline_ms) is not None and due_ms < entry.at_ms:
            judge.now_ms = max(judge.now_ms, due_ms)
            judge.fire_timers()
        judge.now_ms = max(judge.now_ms, entry.at_ms)
        judge.fire_timers()
        if entry.key is None:
            return None
        event, headers = self._decoder.decode_event(entry.value), list(entry.headers)
        if any(name == SIGNATURE for name, _ in headers):
            headers = [pair for pair in headers if pair[0] != SIGNATURE]
            headers.append(MEMORY_KEYS.sign(entry.key, entry.value))
        if not isinstance(event, Event):
            judge.judge_record(partition_of(entry.key, self._partitions), entry.key, entry.value, headers)
            return None
        envelope = event.envelope
        ids = (envelope.event_id, envelope.event_type, envelope.tenant_id, envelope.session_id)
        numbers = (envelope.producer_id, envelope.producer_seq)
        record = OutRecord(entry.key, entry.value, headers, *ids, *numbers)
        judged = self._judge_event(record, event)
        self._keys.setdefault(judged.session_id, record.key)
        if isinstance(event.payload, Heartbeat):
            self.heartbeats.append(event)
            return None
        self.records.append(record)
        self.judged.append(judged)
        return judged

    def _keep_entry(self, record: OutRecord, judged: JudgedEvent) -> None:
        self.entries.append(LogEntry(judged.offset, judged.at_ms, record.key, record.value, record.headers))

    def id_of(self, session: NamedSession | SessionId) -> str:
        """Return the id of a session that is named by its object or its id. Raises `Invalid`.

        A text that is no UUID names the session of the first tenant that has it.
        """
        if not isinstance(session, SessionId):
            return session.session_id
        tenant_ids = dict.fromkeys(parse_key(key).tenant_id for key in self._keys.values())
        ids = [given_session_id(tenant_id, session).session_id for tenant_id in tenant_ids or ("",)]
        return next((each for each in ids if each in self._keys), ids[0])

    def entries_of(self, session_id: str) -> list[LogEntry]:
        """Return the entries of a session's log, in order. Raises `SessionLost`."""
        key = self._keys.get(session_id)
        if key is None:
            raise SessionLost(f"session {session_id} is not known")
        return [entry for entry in self.entries if entry.key == key]

    def find_row(self, session_id: str) -> SessionState:
        """Return the row of a session. Raises `SessionLost`."""
        key = self._keys.get(session_id)
        if key is None:
            raise SessionLost(f"session {session_id} is not known")
        partition = partition_of(key, self._partitions)
        row = self.judge.find_row(partition, key)
        if isinstance(row, SessionState):
            return row
        is_archived = row is not None or self.judge.is_archived(partition, key)
        raise SessionLost(f"session {session_id} {'was archived' if is_archived else 'is not known'}")

    def view_session(self, session_id: str, after: tuple[int, int] | None) -> SessionView:
        """Return a session, with the verdict on the event at `after`. Raises `SessionLost`."""
        row = self.find_row(session_id)
        return SessionView(
            session_id=session_id,
            state=row.state,
            phase=row.phase,
            epoch=row.epoch,
            version=row.version,
            owner_service=row.owner_service,
            state_json=row.state_json,
            state_schema_version=row.state_schema_version,
            snapshot_id=row.snapshot.snapshot_id,
            snapshot_state_json=row.snapshot.state_json,
            limits=Limits(*row.limits),
            verdict=self.find_verdict(after),
            data_classes=tuple(row.data_classes),
            agent_id=row.agent_id,
            holder=row.holder or None,
            rejections=row.rejections,
            reason_code=row.reason_code,
            quotas=self.judge.quotas.limits is not None,
            holder_epoch=row.holder_epoch,
            question=row.question,
            answers=list(row.answers),
            is_answer_new=is_answer_new(row),
            agents=[AgentMember(*agent) for agent in row.agents],
            migration=_migration_view(row),
            awaits_quota=waits_for_quota(row),
            exchanges=row.exchanges,
            hold=None if row.hold is None else HeldBy(row.hold.by, hold_end_ms(row, row.hold)),
            user_id=row.user_id,
            external_id=row.external_id,
            head_messages=tuple(row.snapshot.messages),
            head_tool=row.snapshot.tool,
        )

    def follow_session(self, session_id: str) -> FollowedState | None:
        """Return a session and its place; None if it is archived. Raises `SessionLost`."""
        key = self._keys.get(session_id)
        if key is not None:
            partition = partition_of(key, self._partitions)
            row = self.judge.find_row(partition, key)
            if not isinstance(row, SessionState) and (row is not None or self.judge.is_archived(partition, key)):
                return None
            position = partition, self.judge.next_offset(partition) - 1
            return FollowedState(self.view_session(session_id, None)._replace(rejections=()), position)
        raise SessionLost(f"session {session_id} is not known")

    def view_task(self, tenant_id: str | None, task_id: str, after: tuple[int, int] | None) -> TaskView | None:
        """Return a tenant's task, with the verdict on the event at `after`; None if there is none.

        Raises `RunGone` if the task vanished.
        """
        row = next((row for _, row in self.judge.list_tasks(tenant_id) if row.run_id == task_id), None)
        if row is None:
            tenants = {key.decode().partition(":")[0] for key in self._keys.values()}
            if self.judge.is_task_gone(tenants if tenant_id is None else {tenant_id}, task_id):
                raise RunGone(f"task {task_id} finished and is no longer kept")
            return None
        return _task_view(row)._replace(verdict=None if after is None else self._verdicts.get(after, _NOT_KEPT))

    def list_tasks(self, tenant_id: str | None, wanted: TaskFilter) -> TaskPart:
        """Return a part of the list of a tenant's tasks, in the order of their keys."""
        fits = [
            (key.decode(), _task_view(row)._replace(result_json=None, plan_json=None, user_id=row.user_id))
            for key, row in self.judge.list_tasks(tenant_id)
            if wanted.user_id in (None, row.user_id) and wanted.state in (None, row.state)
        ]
        left = [(key, view) for key, view in fits if key > (wanted.cursor or "")]
        part = left[: wanted.limit]
        return TaskPart([view for _, view in part], part[-1][0] if len(left) > len(part) else None)

    def find_child(self, session_id: str, key_of: Callable[[str], bytes]) -> object:
        """Return the row of a session's run, step or tool call; None if there is none.

        `key_of` takes the tenant, and returns the row's key.
        """
        found = self._locate(session_id, key_of)
        return None if found is None else self.judge.find_child(*found)

    def require_kept(self, session_id: str, run_id: str) -> None:
        """Raise `RunGone` if the run of a session finished and vanished."""
        found = self._locate(session_id, lambda tenant: run_key(tenant, session_id, run_id))
        if found is not None and self.judge.is_gone(*found):
            raise RunGone(f"run {run_id} finished and is no longer kept")

    def find_children(self, session_id: str, key_of: Callable[[str], bytes]) -> list[object]:
        """Return the rows of the steps and tool calls below a session's row, in any order."""
        found = self._locate(session_id, key_of)
        return [] if found is None else self.judge.find_children(*found)

    def find_turns(self, session_id: str, last: int) -> list[object]:
        """Return the rows of the last turns of a session in order. Raises `SessionLost`."""
        turns, key = self.find_row(session_id).turns, self._keys[session_id]
        partition = partition_of(key, self._partitions)
        asked = range(max(turns - last, 0) + 1, turns + 1)
        return [self.judge.find_child(partition, message_key(key, turn)) for turn in asked]

    def find_verdict(self, after: tuple[int, int] | None) -> Verdict | None:
        """Return the verdict on the event at `after`; None if none is asked for."""
        return None if after in (None, LOG_END) else self._verdicts.get(after, _NOT_KEPT)

    def _locate(self, session_id: str, key_of: Callable[[str], bytes]) -> tuple[int, bytes] | None:
        key = self._keys.get(session_id)
        if key is None:
            return None
        return partition_of(key, self._partitions), key_of(key.decode().partition(":")[0])

    def find_changes(self, known: Sequence[KnownSession]) -> SessionChanges:
        """Return the sessions that differ from the known ones, as the control API does."""
        positions = {partition: self.judge.next_offset(partition) for partition in range(self._partitions)}
        changes = (self._find_change(each) for each in known)
        return SessionChanges(positions, [change for change in changes if change is not None])

    def _find_change(self, known: KnownSession) -> ChangedSession | None:
        key = self._keys.get(known.session_id)
        if key is None:
            return ChangedSession(known.session_id, None, None, None, None, (), None)
        partition = partition_of(key, self._partitions)
        row = self.judge.find_row(partition, key)
        if isinstance(row, SessionState):
            rejections = tuple(each for each in row.rejections if each.offset > known.rejected_after)
            is_other = known.holder is not None and row.holder not in ("", known.holder)
            seq = next((one.last_seq for one in row.producers if one.producer_id == known.producer_id), 0)
            agents = len(row.agents)
            is_same = (row.state, row.epoch, agents) == (known.state, known.epoch, known.agents)
            is_same = is_same and seq <= known.last_seq
            if not rejections and not is_other and is_same:
                return None
            return ChangedSession(
                known.session_id,
                row.state,
                row.epoch,
                row.holder or None,
                row.reason_code,
                rejections,
                None,
                seq,
                row.holder_epoch,
                row.snapshot.snapshot_id,
                agents,
                row.owner_service,
            )
        verdict = None if known.after is None else self._verdicts.get(known.after, _NOT_KEPT)
        is_archived = row is not None or self.judge.is_archived(partition, key)
        if is_archived and known.state == "Terminated" and (verdict is None or verdict.reason is None):
            return None
        state, epoch, reason_code = ("Archived" if is_archived else None), None, None
        if row is not None:
            epoch, reason_code = row.epoch, row.reason_code
        return ChangedSession(known.session_id, state, epoch, None, reason_code, (), verdict)

    def _at_fake_time(self, record: OutRecord) -> tuple[OutRecord, Event]:
        """Return a record as sent at the fake time: the agent's own clock has moved as far."""
        event = self._decoder.decode_event(record.value)
        assert isinstance(event, Event)
        passed_ms = self.judge.now_ms - self._began_ms
        if not passed_ms:
            return record, event
        occurred_at = event.envelope.occurred_at + passed_ms * 1_000
        event = event._replace(envelope=event.envelope._replace(occurred_at=occurred_at))
        value = encode_event(event)
        if (
            type(event.payload) in OPERATORS
            and MEMORY_KEYS.find_fault(record.key, record.value, record.headers) is None
        ):
            others = [pair for pair in record.headers if pair[0] != SIGNATURE]
            record = record._replace(given_headers=[*others, MEMORY_KEYS.sign(record.key, value)])
        return record._replace(value=value), event

    def _judge_event(self, record: OutRecord, event: Event) -> JudgedEvent:
        judge, now_ms = self.judge, self.judge.now_ms
        partition = partition_of(record.key, self._partitions)
        if self.next_rejections and isinstance(event.payload, SessionResumed | SessionRecovered | SessionTakenOver):
            offset, reason = judge.skip_record(partition), self.next_rejections.pop(0)
            judged = JudgedEvent(event, partition, offset, now_ms, "rejected", reason, "the test rejects it")
        else:
            offset, rejection, repeated_id = judge.judge_record(partition, record.key, record.value, record.headers)
            if rejection is not None:
                detail = judge.rejected_records[-1].detail
                judged = JudgedEvent(event, partition, offset, now_ms, "rejected", rejection, detail)
            else:
                judged = JudgedEvent(
                    event, partition, offset, now_ms, "applied" if repeated_id is None else "duplicate"
                )
        self._verdicts[partition, offset] = judged.verdict
        return judged


def _migration_view(row: SessionState) -> MigrationView | None:
    last = row.migration
    if last is None:
        return None
    return MigrationView(last.migration_id, last.target_service, last.step, last.reason_code or None, last.from_state)


def _task_view(row: RunState | FinishedRun) -> TaskView:
    return TaskView(
        *(row.run_id, row.session_id, row.task_type, row.state, row.progress, row.result_json),
        *(row.artifact_id, row.error, row.plan_json, row.created_at, row.entered_at, row.last_event_at),
        version=f"{row.run_seq}.{row.state}",
        holder=row.holder if isinstance(row, RunState) else None,
    )
