"""Rows of open runs, and of finished ones until they vanish, and the clock of an open run.

An attached run that has started has a limit, which does not end it while its session is Paused, or
an answer waits for a process, and begins again afterwards. A detached run, and one that waits in a
queue, is given up if nothing is heard of it for a day. Times are ms of log time.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.limits import RUN_SILENCE_MS
from sessionary.schemas.records import FinishedRun, RunContent, RunState, RunTombstone, SessionState
from sessionary.schemas.types import ClockRepair, ErrorInfo, RunMode, RunStateName
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.family import StoredRows, content_parts, session_facts
from sessionary.stream_processors.core.model import Decision, RowLookup
from sessionary.stream_processors.core.rows import RowKind
from sessionary.stream_processors.core.run.changes import ClaimMoved, awaits_process, begin_limit_again, give_up_run
from sessionary.stream_processors.core.run.transitions import RunRow
from sessionary.stream_processors.core.tombstones import DAY_MS

RUN_TOMBSTONE_MS: Final = 1_209_600_000  # 14 days, as a session's tombstone stays
_CONTENT: Final = content_parts(RunContent)


class RunLabel(NamedTuple):
    """The label by which runs are counted."""

    state: RunStateName
    mode: RunMode


class RunDeadline(NamedTuple):
    """When a run's clock is due, and the error that it then reports."""

    due_ms: int
    reason_code: str
    reason: str


def run_deadline(run: RunState, outage_end_ms: int = 0) -> RunDeadline:
    """Return the deadline of a run.

    Silence is measured from `outage_end_ms` on, if no event could be heard before; 0: no outage.
    """
    if run.due_at is not None:
        limit = format_seconds(run.attached_run_ms)
        return RunDeadline(run.due_at, "attached_limit", f"Attached run failed after {limit}: its limit is over")
    limit = format_seconds(RUN_SILENCE_MS)
    return RunDeadline(
        max(run.last_event_at, outage_end_ms) + RUN_SILENCE_MS,
        "run_silent",
        f"Run failed after {limit}: nothing was heard of it",
    )


def run_due_ms(run: RunState, outage_end_ms: int = 0) -> int:
    """Return when a run's clock is due, as `run_deadline`."""
    return max(run.last_event_at, outage_end_ms) + RUN_SILENCE_MS if run.due_at is None else run.due_at


def attached_since_ms(run: RunState) -> int | None:
    """Return when an attached run was started or resumed; None for one in a queue or detached."""
    return None if run.due_at is None else run.due_at - run.attached_run_ms


def repair_run_times(run: RunState, repairs: Sequence[ClockRepair]) -> RunState:
    """Return a run with its times as they are after repairs of the partition's clock.

    The same object if it includes them all. The remaining time never exceeds the limit.
    """
    for number, _, clock_ms, shift_ms, _ in repairs:
        if number <= run.clock_repair:
            continue
        due_at = run.due_at
        if due_at is not None:
            due_at = min(due_at + shift_ms, clock_ms + run.attached_run_ms)
        checkpoint = run.checkpoint
        if checkpoint is not None:
            checkpoint = checkpoint._replace(at=min(checkpoint.at + shift_ms, clock_ms))
        run = run._replace(
            created_at=min(run.created_at + shift_ms, clock_ms),
            entered_at=min(run.entered_at + shift_ms, clock_ms),
            last_event_at=min(run.last_event_at + shift_ms, clock_ms),
            due_at=due_at,
            checkpoint=checkpoint,
            clock_repair=number,
        )
    return run


def run_end_ms(row: FinishedRun) -> int:
    """Return when a finished run vanishes but for its tombstone (ms of log time)."""
    return row.entered_at + row.kept_days * DAY_MS


def _bury_run(row: FinishedRun) -> RunTombstone:
    return RunTombstone(run_end_ms(row) + RUN_TOMBSTONE_MS)


def _grave_end_ms(row: RunTombstone) -> int:
    return row.expires_at


def _label_of(row: RunRow) -> RunLabel:
    return RunLabel(row.state, row.mode)


class RunRows(StoredRows):
    """Rows of runs; their limits are part of the rules."""

    def __init__(self) -> None:
        super().__init__(
            "run",
            (
                RowKind(
                    RunState,
                    live=True,
                    prefixes=record_headers(RunState),
                    encode=encode_record,
                    parts=_CONTENT,
                    label=_label_of,
                    open_since_ms=attached_since_ms,
                ),
                RowKind(
                    FinishedRun,
                    live=False,
                    prefixes=record_headers(FinishedRun),
                    encode=encode_record,
                    parts=_CONTENT,
                    label=_label_of,
                    remains=_bury_run,
                ),
                RowKind(
                    RunTombstone,
                    live=False,
                    prefixes=record_headers(RunTombstone),
                    encode=encode_record,
                    expiry_ms=_grave_end_ms,
                ),
            ),
        )

    def due_ms(self, row: RunRow | RunTombstone, outage_end_ms: int = 0) -> int:
        """Return an open run's deadline, or when what is left of one vanishes (ms of log time)."""
        if isinstance(row, RunState):
            return run_due_ms(row, outage_end_ms)
        return run_end_ms(row) if isinstance(row, FinishedRun) else row.expires_at

    def repair_times(self, row: RunRow | RunTombstone, repairs: Sequence[ClockRepair]) -> RunRow | RunTombstone:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return repair_run_times(row, repairs) if isinstance(row, RunState) else row

    def is_only_postponed(self, row: RunRow | RunTombstone, after: RunRow | RunTombstone) -> bool:
        """Return True if the limit is the same, or if there is none: time only goes forward."""
        return isinstance(row, RunState) and isinstance(after, RunState) and row.due_at == after.due_at

    def fire(
        self, key: bytes, row: RunRow | RunTombstone, rows: RowLookup, now_ms: int, outage_end_ms: int = 0
    ) -> Decision:
        """Return the failure of a run whose clock is due; its claim to a quota ends in any case.

        The limit of an attached run begins again in a pause of its session, and while an answer
        waits for a process.
        """
        assert isinstance(row, RunState)
        session = rows.get_row(SessionKey(row.tenant_id, row.session_id).encoded())
        is_known = row.due_at is not None and isinstance(session, SessionState)
        if is_known and (session.state == "Paused" or awaits_process(session)):
            return Decision((), writes={key: begin_limit_again(row, now_ms)})
        due_ms, reason_code, reason = run_deadline(row, outage_end_ms)
        after, facts = give_up_run(row, now_ms, ErrorInfo("retryable", reason_code, reason), due_ms)
        released = [fact for fact in facts if isinstance(fact, ClaimMoved)]
        others = session_facts(rows, row, *(fact for fact in facts if not isinstance(fact, ClaimMoved)))
        return Decision((*released, *others), writes={key: after})
