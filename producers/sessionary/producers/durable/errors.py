"""The errors of recorded work: runs that cannot continue, and tool calls that are not made.

SessionaryError
├── Invalid
│   └── ResultTooLarge(value)      a result fits into no event, and no library keeps it
└── ProducerError
    ├── RunNotFound(run_id)        a run that is to be resumed does not exist
    ├── RunOver(run_id, state)     a run cannot continue: it failed for good, or was cancelled
    ├── TaskStopped(task_id, state)  a worker's task was cancelled, or is another worker's now
    ├── QuotaExceeded(limit, tenant_id)  over the tenant's quota of runs, sessions or tokens
    └── ToolCallError(idem_key)    a recorded tool call was not made, or its outcome not recorded
        ├── ToolCallInProgress     another process makes it
        ├── ToolCallUnresolved     it may have taken effect: a person must decide
        ├── ToolCallOverdue        it was made, but ended after its limit, and was rejected
        └── ToolCallFailed(error)  it failed for good before

The bases, and the client's other errors, are in `sessionary.producers.errors`.
"""

from typing import Any

from sessionary.producers.errors import Invalid, ProducerError
from sessionary.schemas.types import ErrorInfo, RejectionReason


class ResultTooLarge(Invalid):
    """A result fits into no event, and the client has no library of artifacts that keeps it.

    Counts as a retryable failure: with a library, the same work can be done again.

    Attributes:
        value: The result, so that it is not lost.
    """

    retryable = True

    def __init__(self, what: str, size_bytes: int, value: Any, why: str | None = None) -> None:
        advice = "set SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), to where such values are kept"
        super().__init__(
            "invalid_value", f"{what} has {size_bytes:,} bytes of JSON, which no event can hold: {why or advice}"
        )
        self.value = value


class RunNotFound(ProducerError):
    """The run that is to be resumed does not exist, or no longer does.

    Attributes:
        run_id: The run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Run not found: {run_id}; without resume=True it is begun")
        self.run_id = run_id


class RunOver(ProducerError):
    """A run cannot continue: it has failed for good, was cancelled, or is complete.

    Attributes:
        run_id: The run.
        state: Its state: `failed`, `cancelled` or `completed`.
        error: The run's failure, if it failed.
    """

    def __init__(self, run_id: str, state: str, error: ErrorInfo | None = None) -> None:
        why = "" if error is None else f" ({error.error_class} {error.code}: {error.message})"
        super().__init__(f"run {run_id} is over: it is {state}{why}")
        self.run_id = run_id
        self.state = state
        self.error = error


class TaskStopped(ProducerError):
    """The task that this code works on is over, or is another worker's: nothing more of it counts.

    Every verb of the task and of its session raises it from then on. Let it leave the function.

    Attributes:
        task_id: The task.
        state: `cancelled`, `failed` or `completed`; `taken_over` if another worker has the task.
    """

    def __init__(self, task_id: str, state: str) -> None:
        why = "is another worker's now" if state == "taken_over" else f"is {state}"
        super().__init__(f"task {task_id} {why}: what this worker still sends of it is rejected, so stop the work")
        self.task_id = task_id
        self.state = state


class QuotaExceeded(ProducerError):
    """A run or a session did not begin, or a run cannot continue: its tenant is over its quota.

    The tenant has its maximum of runs or sessions, or has used its tokens. The audit trail says
    which.

    Attributes:
        run_id: The run; None if it is a session that did not begin.
        limit: The name of the quota: `concurrent_runs` or `live_sessions`.
        tenant_id: The tenant.
        waited_s: Seconds of waiting in vain; None if the run or session was rejected.
        session_id: The session that did not begin; None if it is a run.
    """

    retryable = True

    def __init__(
        self,
        run_id: str | None,
        limit: str,
        tenant_id: str,
        waited_s: float | None = None,
        *,
        session_id: str | None = None,
    ) -> None:
        what, end = (f"run {run_id}", "was cancelled") if session_id is None else (f"session {session_id}", "ended")
        why = "was rejected" if waited_s is None else f"waited {waited_s:g} s in vain, and {end}"
        super().__init__(f"{what} {why}: tenant {tenant_id} is at its limit of {limit} or of tokens; try again later")
        self.run_id = run_id
        self.session_id = session_id
        self.limit = limit
        self.tenant_id = tenant_id
        self.waited_s = waited_s


class ToolCallError(ProducerError):
    """A recorded tool call was not made, or not recorded, because of the record of its key.

    Attributes:
        tool_name: The tool.
        idem_key: The call's idempotency key.
    """

    def __init__(self, tool_name: str, idem_key: str, detail: str) -> None:
        super().__init__(detail)
        self.tool_name = tool_name
        self.idem_key = idem_key


class ToolCallInProgress(ToolCallError):
    """The same call is being made elsewhere, or was when its process ended. It may pass."""

    retryable = True

    def __init__(self, tool_name: str, idem_key: str) -> None:
        super().__init__(
            tool_name,
            idem_key,
            f"Tool call already in progress for idemKey={idem_key} (tool {tool_name}): try again later, or let the "
            "tool wait with wait_s",
        )


class ToolCallUnresolved(ToolCallError):
    """The call may have taken effect: its outcome is unknown. It is not repeated; its run is held.

    Once its outcome is resolved, the run can be resumed.
    """

    retryable = True

    def __init__(self, tool_name: str, idem_key: str, why: str = "the tool cannot be asked") -> None:
        super().__init__(
            tool_name,
            idem_key,
            f"tool call {idem_key} of {tool_name} may have taken effect: {why}. A person must decide whether it did; "
            "`sessionary call resolve` takes the answer",
        )


class ToolCallOverdue(ToolCallError):
    """The call was made and ended after its limit, and its outcome was rejected.

    The record of the key says something else, and another try may have been made.

    Attributes:
        reason: Why the outcome was rejected.
        state: The state of the call's record; None if the record is gone.
        result: The result of the call, so that it is not lost.
    """

    def __init__(
        self, tool_name: str, idem_key: str, limit_ms: int, reason: RejectionReason, state: str | None, result: Any
    ) -> None:
        record = "is gone" if state is None else f"is {state}"
        super().__init__(
            tool_name,
            idem_key,
            f"tool call {idem_key} of {tool_name} ended after its limit of {limit_ms} ms, and its result was rejected: "
            f"{reason}; its record {record}. Compare that with what the tool did (sessionary session timeline), and "
            "give the tool a longer deadline",
        )
        self.reason: RejectionReason = reason
        self.state = state
        self.result = result


class ToolCallFailed(ToolCallError):
    """The same call has failed for good before. It was not repeated.

    Attributes:
        error: The earlier failure.
    """

    def __init__(self, tool_name: str, idem_key: str, error: ErrorInfo) -> None:
        super().__init__(
            tool_name,
            idem_key,
            f"tool call {idem_key} of {tool_name} failed for good before: {error.code}: {error.message}",
        )
        self.error = error
