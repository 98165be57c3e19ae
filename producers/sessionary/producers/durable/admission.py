"""A run that asks for its tenant's quota, and waits until it is admitted."""

from functools import partial
from typing import Final

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import QuotaExceeded, RunOver
from sessionary.producers.durable.flow import Do, Flow, Wait
from sessionary.producers.durable.recorder import Judged, Recorder, wait_recorded
from sessionary.producers.errors import Refused, Unavailable
from sessionary.producers.run_ports import FINISHED_STATES, LogPosition, RunView
from sessionary.schemas.events import RunCancelled, RunStarted

LIMIT: Final = "concurrent_runs"
_REASON: Final = "quota_exceeded"
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0


def begin_admitted(
    recorder: Recorder, run_id: str, started: RunStarted, fields: EnvelopeFields, wait_s: float
) -> Flow[None]:
    """Begin a run, and wait until its tenant's quota admits it.

    Raises:
        QuotaExceeded: It was rejected, or waited for `wait_s`; then it is cancelled.
        RunOver: It was cancelled meanwhile, or failed.
        Refused: The processor refuses its first event.
    """
    judged = yield Do(partial(_ask, recorder, run_id, started, fields))
    if judged.refusal is not None:
        if judged.refusal != _REASON:
            raise Refused("run_started", judged.refusal)
        recorder.keep_refusal(judged.event_id, judged.refusal)
        raise QuotaExceeded(run_id, LIMIT, recorder.key.tenant_id)
    if judged.record is not None:
        yield from wait_admitted(recorder, run_id, fields, wait_s, judged.event_id)


def _ask(recorder: Recorder, run_id: str, started: RunStarted, fields: EnvelopeFields) -> Judged:
    """Begin a run, and return it as judged. No record and no refusal: there are no quotas yet."""
    sent = recorder.send(started, fields)
    place = wait_recorded(sent, sent.event_type, recorder.timeout_s)
    run = _fetch_run(recorder, run_id, place)
    if run is not None and (run.verdict is None or run.verdict.applied):
        return Judged(run, sent.event_id, None)
    session = recorder.control.fetch_session(recorder.key.session_id, place, recorder.timeout_s)
    verdict = session.verdict if run is None or run.verdict is None or not run.verdict.kept else run.verdict
    if verdict is not None and verdict.reason is not None:
        return Judged(run, sent.event_id, verdict.reason)
    if run is None and session.quotas:
        return Judged(None, sent.event_id, _REASON)  # it was there, and is gone
    return Judged(run, sent.event_id, None)


def _fetch_run(recorder: Recorder, run_id: str, place: LogPosition | None = None) -> RunView | None:
    return recorder.known.fetch_run(recorder.key.session_id, run_id, place, recorder.timeout_s)


def wait_admitted(
    recorder: Recorder, run_id: str, fields: EnvelopeFields, wait_s: float, event_id: str | None = None
) -> Flow[None]:
    """Wait until a run that asked is admitted; cancel it if that is given up.

    `event_id`: of the event that asked, the refusal of which is told here. Raises as
    `begin_admitted`.
    """
    tenant_id = recorder.key.tenant_id
    try:
        admitted = yield from _poll_admission(recorder, run_id, wait_s)
    except QuotaExceeded:
        if event_id is not None:
            recorder.keep_refusal(event_id, _REASON)
        raise
    except RunOver:
        raise
    except BaseException:
        yield Do(partial(_cancel, recorder, fields, "its client stopped waiting for the quota"))
        raise
    if not admitted:
        yield Do(partial(_cancel, recorder, fields, f"it waited {wait_s:g} s for the quota"))
        raise QuotaExceeded(run_id, LIMIT, tenant_id, waited_s=wait_s)


def _poll_admission(recorder: Recorder, run_id: str, wait_s: float) -> Flow[bool]:
    """Return True once a run is admitted, False after `wait_s`."""
    waits, pause_s = recorder.waits, _PAUSE_S
    deadline_s = waits.now_s() + wait_s
    while True:
        try:
            run: RunView | None = yield Do(partial(_fetch_run, recorder, run_id))
        except Unavailable:
            if waits.now_s() >= deadline_s:
                return False
        else:
            if run is None or (run.state in FINISHED_STATES and run.reason_code == _REASON):
                raise QuotaExceeded(run_id, LIMIT, recorder.key.tenant_id)
            if run.state in FINISHED_STATES:
                raise RunOver(run_id, run.state, run.error)
            if run.state != "queued":
                return True
        left_s = deadline_s - waits.now_s()
        if left_s <= 0:
            return False
        yield Wait(min(pause_s, left_s))
        pause_s = min(1.5 * pause_s, _PAUSE_S_MAX)


def _cancel(recorder: Recorder, fields: EnvelopeFields, reason: str) -> None:
    recorder.send(RunCancelled(reason), fields)
