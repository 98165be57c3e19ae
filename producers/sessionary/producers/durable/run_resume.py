"""Resumes a run: reads its records, settles open questions, then sends the resumption."""

from functools import partial
from typing import NamedTuple

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import RunOver, ToolCallUnresolved
from sessionary.producers.durable.flow import Do, Flow
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.reserved_call import ReservedCall, Retry, ToolPolicy
from sessionary.producers.durable.resume_plan import (
    ResumePlan,
    describe_resumption,
    describe_stop,
    is_unresolved,
    make_plan,
)
from sessionary.producers.durable.run_items import border_call
from sessionary.producers.durable.tool import policy_of
from sessionary.producers.errors import Rejected
from sessionary.producers.run_ports import FINISHED_STATES, CallView, RunView, StepView
from sessionary.schemas.events import RunFailed, RunResumed

_NO_RETRY = Retry(retries=0)


class KnownRun(NamedTuple):
    """A run, its steps and its tool calls as the processor has committed them."""

    run: RunView
    steps: list[StepView]
    calls: list[CallView]

    @property
    def plan(self) -> ResumePlan:
        """The effect of resuming the run."""
        return make_plan(*self)


def read_run(recorder: Recorder, run_id: str) -> KnownRun | None:
    """Return the records of a run; None if there is no such run. Raises as `RunReads` does.

    The session's earlier events are judged before: they may have begun or ended the run.
    """
    reads, session_id = recorder.known, recorder.key.session_id
    run = recorder.fetch_run(run_id, recorder.wait_sent(recorder.timeout_s))
    if run is None:
        return None
    steps = reads.fetch_steps(session_id, run_id, recorder.timeout_s)
    return KnownRun(run, list(steps), list(reads.fetch_calls(session_id, run_id, recorder.timeout_s)))


def resume_run(recorder: Recorder, known: KnownRun, fields: EnvelopeFields) -> Flow[KnownRun]:
    """Resume a run, and return its present records; a completed run stays as it is.

    A fatal failure ends the run, unless `fields` name a person who wants it to continue.

    Raises:
        RunOver: The run has failed for good, or was cancelled.
        ToolCallUnresolved: One of its tool calls may have taken effect.
        Rejected: The processor does not resume the run.
    """
    run, plan = known.run, known.plan
    if run.state == "completed":
        return known
    may_go_on = plan.error is None or plan.error.error_class == "retryable" or fields.actor is not None
    if run.state == "cancelled" or not may_go_on:
        if plan.error is not None and run.state not in FINISHED_STATES:
            failed = RunFailed(plan.error, describe_stop(plan))
            yield Do(lambda: recorder.send_acknowledged(failed, fields))
        raise RunOver(run.run_id, "cancelled" if run.state == "cancelled" else "failed", plan.error)
    for call in filter(is_unresolved, known.calls):
        yield from _call_of(recorder, call, run.run_id).resolve(call)
        # The outcome of the last one resumes the run without a request.
        known = (yield Do(lambda: read_run(recorder, run.run_id))) or known
    if known.run.state in ("paused", "failed"):
        yield Do(lambda: _send_resumed(recorder, known, fields))
    lost = border_call(known.run.checkpoint)
    if lost is not None and all(call.idem_key != lost[1] for call in known.calls):
        yield from _hand_to_people(recorder, run.run_id, *lost)
    return known


def _hand_to_people(recorder: Recorder, run_id: str, tool_name: str, key: str) -> Flow[None]:
    """Reserve a call whose record is gone, and never make it: so it becomes unknown.

    The call then holds the run, and is resolved like any other that may have taken effect.
    """
    policy = ToolPolicy(
        tool_name,
        side_effect=True,
        queryable=False,
        query=None,
        limit_ms=1,
        retry=_NO_RETRY,
        rate=None,
        wait_s=0.0,
        is_repeatable=False,
    )
    stored = yield from ReservedCall(policy, recorder, run_id, None, key).reserve()
    if stored is None:
        raise ToolCallUnresolved(tool_name, key, "the run had reached it, and its record is gone")


def _call_of(recorder: Recorder, call: CallView, run_id: str) -> ReservedCall:
    policy = policy_of(call.tool_name)
    if policy is None:
        raise ToolCallUnresolved(call.tool_name, call.idem_key, "this process has no tool of that name")
    return ReservedCall(policy._replace(retry=_NO_RETRY), recorder, run_id, None, call.idem_key)


def _send_resumed(recorder: Recorder, known: KnownRun, fields: EnvelopeFields) -> None:
    run_id, plan = known.run.run_id, known.plan
    judged = recorder.ask(
        RunResumed(plan.next, describe_resumption(plan, by_person=fields.actor is not None)),
        fields,
        partial(recorder.fetch_run, run_id),
    )
    if judged.rejection is None:
        return
    recorder.keep_rejection(judged.event_id, judged.rejection)
    open_call = next(filter(is_unresolved, known.calls), None)
    if judged.rejection == "call_unresolved" and open_call is not None:
        raise ToolCallUnresolved(open_call.tool_name, open_call.idem_key)
    raise Rejected("run_resumed", judged.rejection)
