"""Counts the runs and children that a session's object has begun, and refuses one too many.

The judge has the same bounds (`too_many_runs`, `too_many_children`). Its rejection comes after the
work was done, so the client counts by itself. It counts the runs of the blocks that are open here:
a run that is begun otherwise, queued or only emitted, may be ended by another process. It cannot
count what others begin in the same session, nor the children that the session itself had when this
object attached to it.
"""

from collections.abc import Iterable
from typing import Final

from sessionary.producers.errors import BoundReached
from sessionary.schemas.events import (
    AgentRegistered,
    ArtifactCreated,
    CheckpointSaved,
    MessageAppended,
    Payload,
    RunCancelled,
    RunCompleted,
    RunFailed,
    StepStarted,
    ToolCallStarted,
)
from sessionary.schemas.limits import CHILDREN_MAX, CONVERSATION_TURNS_MAX, RUNS_OPEN_MAX

_ENDS: Final = (RunCompleted, RunFailed, RunCancelled)
COUNTED: Final = frozenset(
    {AgentRegistered, ArtifactCreated, CheckpointSaved, MessageAppended, StepStarted, ToolCallStarted, *_ENDS}
)
"""The classes of events that change the counts."""
VALUE_TYPES: Final = frozenset(
    {"tool_arguments", "tool_result", "step_input", "step_output", "run_result", "checkpoint_data"}
)
"""The types of artifacts that are only a value of recorded work."""
# Their work is done, or its verdict is awaited: an error now would have work repeated.
_NEVER_REFUSED: Final = VALUE_TYPES - {"step_input"}


class BegunWork:
    """The open blocks of a session's runs, and the children of each run and of the session itself.

    Not thread-safe: hold the session's lock.
    """

    __slots__ = ("_children", "_open_runs", "_session_id", "_turns", "attached_runs")

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._children: dict[str, set[int]] = {}  # by run, '' for the session: hashes of kinds and names
        self._open_runs: set[str] = set()
        self.attached_runs: set[str] = set()  # those of the open ones that live with the session
        self._turns = 0

    def check(self, payload: Payload, run_id: str | None) -> None:
        """Raise `BoundReached` if what an event begins is one too many.

        A reserved call and an agent never are: they wait for the verdict.
        """
        if not isinstance(payload, StepStarted | ArtifactCreated):
            return
        begun, child = self._children.get(run_id or ""), _child_of(payload, run_id)
        if child is None or begun is None or len(begun) < CHILDREN_MAX or hash(child) in begun:
            return
        if isinstance(payload, ArtifactCreated) and payload.artifact_type in _NEVER_REFUSED:
            return
        raise BoundReached("too_many_children", self._describe_full(child, len(begun), run_id))

    def note(self, payload: Payload, run_id: str | None) -> None:
        """Count an event of one of the classes `COUNTED`, which was sent."""
        if isinstance(payload, _ENDS):
            self.leave_run(run_id or "")
        elif isinstance(payload, MessageAppended):  # turns share their rows
            self._turns += 1
            self._children.setdefault("", set()).add(hash(("turn", self._turns % CONVERSATION_TURNS_MAX)))
        elif (child := _child_of(payload, run_id)) is not None:
            parent = "" if isinstance(payload, AgentRegistered) else run_id or ""
            self._children.setdefault(parent, set()).add(hash(child))

    def enter_run(self, run_id: str) -> None:
        """Count a run whose block is entered. Raises `BoundReached` if it is one too many."""
        if run_id not in self._open_runs and len(self._open_runs) >= RUNS_OPEN_MAX:
            raise BoundReached(
                "too_many_runs",
                f"session {self._session_id} has {len(self._open_runs)} open runs in this process, which is the most: "
                f"run {run_id} was not begun. End one of them first, or begin it in another session",
            )
        self._open_runs.add(run_id)

    def adopt_run(self, run_id: str, steps: Iterable[str], calls: Iterable[str], artifacts: Iterable[str]) -> None:
        """Count a run that is resumed, by the names, keys and ids of the children that it has."""
        self._open_runs.add(run_id)
        self._children[run_id] = {
            *(hash(("step", name)) for name in steps),
            *(hash(("call", key)) for key in calls),
            *(hash(("artifact", artifact_id)) for artifact_id in artifacts),
        }

    def leave_run(self, run_id: str) -> None:
        """Count a run and its children no longer."""
        self._open_runs.discard(run_id)
        self.attached_runs.discard(run_id)
        self._children.pop(run_id, None)

    def _describe_full(self, child: tuple[str, str], count: int, run_id: str | None) -> str:
        kind, name = child
        if run_id:
            full, cure = f"run {run_id} has {count:,} steps, reserved calls and artifacts", "continue in another run"
        else:
            full = f"session {self._session_id} has {count:,} reserved calls, artifacts, agents and turns without a run"
            cure = "continue in a run (Session.run)"
        return f"{full}, which is the most: {kind} {name!r:.80} was not begun; {cure}"


def _child_of(payload: Payload, run_id: str | None) -> tuple[str, str] | None:
    """Return kind and name of the child that an event begins or repeats; None if it has no row."""
    if isinstance(payload, StepStarted):
        return ("step", payload.name) if run_id and payload.attempt else None
    if isinstance(payload, ArtifactCreated):
        return "artifact", payload.artifact_id
    if isinstance(payload, ToolCallStarted):
        is_reserved = payload.idem_key and payload.idem_key != payload.tool_call_id
        return ("call", payload.idem_key) if is_reserved else None
    if isinstance(payload, CheckpointSaved):
        return None if payload.data_json is None else ("checkpoint", payload.operation)
    return ("agent", payload.agent_id or "") if isinstance(payload, AgentRegistered) else None
