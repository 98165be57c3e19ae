"""The events of all clients of a memory in the order of the log, with their verdicts.

Imported lazily, as `judge`.
"""

from collections.abc import Callable, Sequence

from sessionary.producers.errors import RunGone, SessionLost
from sessionary.producers.ports import (
    AgentMember,
    ChangedSession,
    KnownSession,
    OutRecord,
    SessionChanges,
    SessionView,
    TaskView,
    Verdict,
)
from sessionary.producers.run_ports import FollowedState, MigrationView
from sessionary.producers.testing.judge import Judge
from sessionary.producers.testing.judged_event import JudgedEvent, MemoryQuota
from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.events import SessionRecovered, SessionResumed, SessionTakenOver
from sessionary.schemas.ids import message_key, partition_of, run_key
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Limits, RejectionReason
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.core.session.clocks import waits_for_quota

_NOT_KEPT = Verdict(applied=False, reason=None, kept=False)


class JudgedLog:
    """The events that were sent, with the judge's knowledge of them. Not thread-safe.

    `records` and `judged` are the events, `heartbeats` those that `records` leaves out, each in
    order. A test may add to `next_rejections`: reasons for which the next resumes, recoveries and
    take-overs are rejected.
    """

    def __init__(self, partitions: int, now_ms: int, quota: MemoryQuota | None = None) -> None:
        """Begin empty. The arguments are those of `Judge`."""
        slots = None if quota is None else quota.live_sessions
        limits = None if quota is None else TenantLimits(quota.concurrent_runs, quota.over)
        if limits is not None and quota is not None:
            limits = limits._replace(tokens=quota.tokens, token_window_s=quota.token_window_s)
        if limits is not None and slots is not None:
            limits = limits._replace(live_sessions=slots)
        self.judge = Judge(partitions, now_ms, limits, asks_sessions=slots is not None)
        self.records: list[OutRecord] = []
        self.judged: list[JudgedEvent] = []
        self.heartbeats: list[Event] = []
        self.next_rejections: list[RejectionReason] = []
        self._partitions = partitions
        self._began_ms = now_ms
        self._decoder = Decoder()
        self._keys: dict[str, bytes] = {}  # of the records, by session id
        self._verdicts: dict[tuple[int, int], Verdict] = {}

    def append_event(self, record: OutRecord) -> JudgedEvent:
        """Judge an event, keep it, and return it with its verdict."""
        record, event = self._at_fake_time(record)
        judged = self._judge_event(record, event)
        self.records.append(record)
        self.judged.append(judged)
        self._keys.setdefault(judged.session_id, record.key)
        return judged

    def append_heartbeat(self, record: OutRecord) -> None:
        """Judge a heartbeat and keep it."""
        record, event = self._at_fake_time(record)
        self._judge_event(record, event)
        self.heartbeats.append(event)

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
            answer=row.answer,
            agents=[AgentMember(*agent) for agent in row.agents],
            migration=_migration_view(row),
            awaits_quota=waits_for_quota(row),
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

    def view_task(self, task_id: str, after: tuple[int, int] | None) -> TaskView | None:
        """Return a task, with the verdict on the event at `after`; None if there is none.

        Raises `RunGone` if the task vanished.
        """
        row = self.judge.find_run(task_id)
        if row is None:
            if self.judge.is_task_gone({key.decode().partition(":")[0] for key in self._keys.values()}, task_id):
                raise RunGone(f"task {task_id} finished and is no longer kept")
            return None
        return TaskView(
            *(row.run_id, row.session_id, row.task_type, row.state, row.progress, row.result_json),
            *(row.artifact_id, row.error, row.plan_json, row.created_at, row.entered_at, row.last_event_at),
            version=f"{row.run_seq}.{row.state}",
            verdict=None if after is None else self._verdicts.get(after, _NOT_KEPT),
        )

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
        return None if after is None else self._verdicts.get(after, _NOT_KEPT)

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
        return record._replace(value=encode_event(event)), event

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
