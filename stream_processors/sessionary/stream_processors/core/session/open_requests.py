"""The open requests of a session: what the state says was asked for, and is not done.

An operator has them sent again (`requests_repeated`) if the topics lost them. Each has the identity
that it had: the id of its clean-up, run, claim or migration. So a receiver that has it does nothing
twice.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from sessionary.schemas.ids import run_key
from sessionary.schemas.records import (
    CleanupRequest,
    MigrationRequest,
    QuotaNotice,
    RunState,
    SessionState,
    TaskRequest,
)
from sessionary.schemas.types import Cleanup
from sessionary.stream_processors.core.run.changes import QUOTA, task_request
from sessionary.stream_processors.core.run.transitions import AT_WORK
from sessionary.stream_processors.core.session.admission import SESSION_QUOTA
from sessionary.stream_processors.core.session.clocks import waits_for_quota
from sessionary.stream_processors.core.session.migration import cleanup_request, migration_request, open_migration

OpenRequest = CleanupRequest | TaskRequest | MigrationRequest | QuotaNotice
WORKER_SILENT_MS: Final = 60_000
_STOPPED: Final = frozenset({"Timeout", "Error", "Terminated"})


def open_requests(row: SessionState, get_row: Callable[[bytes], Any], at_ms: int) -> Sequence[OpenRequest]:
    """Return the requests of a session that are open, in the order of their kinds.

    `get_row`: returns the row of a key, or None. A clean-up of a session that works again is not
    open: what it would release is in use. Nor is a claim that was granted: the quotas ask for that
    by themselves. A task that a worker has begun is open once nothing was heard of it for a while:
    the worker that gets it looks first whether the other one lives.
    """
    found: list[OpenRequest] = [
        cleanup_request(row, cleanup, f"asked again: {cleanup.reason_code}")
        for cleanup in row.cleanups
        if _is_open(row, cleanup)
    ]
    if (migration := open_migration(row)) is not None:
        found.append(migration_request(row, migration, at_ms))
    if row.quota is not None and waits_for_quota(row):
        found.append(QuotaNotice(SESSION_QUOTA, "requested", row.tenant_id, row.session_id, "", row.quota.offset))
    for open_run in row.open_runs:
        run = get_row(run_key(row.tenant_id, row.session_id, open_run.run_id))
        if isinstance(run, RunState) and (request := _open_request_of(row, run, at_ms)) is not None:
            found.append(request)
    return found


def _is_open(row: SessionState, cleanup: Cleanup) -> bool:
    if cleanup.released or not cleanup.actions:
        return False
    if cleanup.service_id != row.owner_service:
        return True
    # A session in Error may recover: what a former epoch was to release is in use since its resume.
    return row.state in _STOPPED and (row.state != "Error" or cleanup.epoch == row.epoch)


def _has_lost_worker(run: RunState, at_ms: int) -> bool:
    """Return whether the worker of a task is silent: one that lives beats every few seconds."""
    return run.holder is not None and run.state in AT_WORK and at_ms - run.last_event_at >= WORKER_SILENT_MS


def _open_request_of(row: SessionState, run: RunState, at_ms: int) -> OpenRequest | None:
    """Return a run's waiting claim, or the request for its task; None: neither is open."""
    if run.quota is not None and not run.quota.granted:
        return QuotaNotice(QUOTA, "requested", run.tenant_id, run.session_id, run.run_id, run.quota.offset)
    if run.mode != "detached" or not (run.state == "queued" or _has_lost_worker(run, at_ms)):
        return None
    return task_request(row, run.run_id, run.user_id, run.task_type, run.input_json, at_ms)
