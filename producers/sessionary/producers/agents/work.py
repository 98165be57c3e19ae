"""What one agent of a session does, for both faces: `Agent` and `AsyncAgent`."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessionary.producers.agents.errors import TaskDone
from sessionary.producers.agents.results import StoredResult, load_result
from sessionary.producers.context.marks import Marks
from sessionary.producers.errors import Invalid, Refused
from sessionary.producers.ports import AgentMember, Json
from sessionary.producers.process.json_text import any_json_text
from sessionary.producers.run_ports import AgentRecord, AgentViewRead
from sessionary.schemas.events import AgentRegistered, AgentTaskUpdated, ContextSynced

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

AgentEvent = AgentRegistered | AgentTaskUpdated | ContextSynced


class KnownAgent(Protocol):
    """An `Agent`, or an `AsyncAgent`."""

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        ...

    @property
    def snapshot_id(self) -> str:
        """The last snapshot of its state."""
        ...


class AgentAccess(NamedTuple):
    """What an agent needs of its session.

    Attributes:
        tell: Sends an event about agents, and waits until it is applied; raises `Refused`.
        find_snapshot: Returns the last snapshot of an agent, as far as the session knows; for one
            that it does not know, the second argument.
        read_view: Returns an agent and what it sees.
        store: Returns what an event has of a result.
        library: Keeps results that are too large for events; None: such ones are refused.
    """

    tell: Callable[[AgentEvent, Marks], None]
    find_snapshot: Callable[[str, str], str]
    read_view: Callable[[str], AgentViewRead]
    store: Callable[[Json, Marks], StoredResult]
    library: "ArtifactLibrary | None"


class AgentView(NamedTuple):
    """What an agent sees of its session.

    Attributes:
        agent_state: The agent's record: role, current task (or None), completed tasks, last
            snapshot, its time, and what all had shared by then, as JSON texts by key.
        visible_context: What it sees of the others' results now, by key.
        dependencies: Ids of the agents that it depends on.
        authors: Ids of the agents that shared what it sees, by key.
    """

    agent_state: AgentRecord
    visible_context: Mapping[str, Json]
    dependencies: Sequence[str]
    authors: Mapping[str, str]


class AgentWork:
    """One agent. Thread-safe; its methods wait for the processor."""

    def __init__(self, access: AgentAccess, member: AgentMember) -> None:
        self.member = member
        self.snapshot_id = member.snapshot_id
        self._access = access
        self._task: str | None = None
        self._lock = Lock()  # one change of the tasks follows the other

    def hand_over(self, taker: str | KnownAgent, context: Json, sync_type: str) -> None:
        """Hand over to another agent."""
        event = handover_event(self, taker, context, sync_type)
        self._access.tell(event, {})

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.member.agent_id

    def view(self, *, load_artifacts: bool) -> AgentView:
        """Return the agent's record, what it sees of the others, and on whom it depends."""
        read = self._access.read_view(self.agent_id)
        library = self._access.library if load_artifacts else None
        visible = {
            each.key: load_result(each.result_json, each.artifact_id if load_artifacts else None, library)
            for each in read.results
        }
        return AgentView(
            read.agent_state, visible, read.dependencies, {each.key: each.agent_id for each in read.results}
        )

    def update(self, task: str | None, result: Json, marks: Marks, *, completed: bool) -> str:
        """Tell of a task, by default the current one, and of its result; return its snapshot."""
        access = self._access
        stored = access.store(result, marks)
        with self._lock:
            named = self._current_task() if task is None else task
            if not named:
                raise Invalid("invalid_value", f"agent {self.agent_id} has no current task: begin one, or name it")
            update = AgentTaskUpdated(
                named,
                completed,
                from_snapshot_id=self.snapshot_id,
                to_snapshot_id=str(uuid.uuid4()),
                agent_id=self.agent_id,
                result_json=stored.text,
                artifact_id=stored.artifact_id,
            )
            try:
                access.tell(update, marks)
            except Refused as error:
                if error.reason == "task_done":
                    raise TaskDone(self.agent_id, named) from None
                raise
            finally:
                self.snapshot_id = access.find_snapshot(self.agent_id, self.snapshot_id)
            self._task = self._task_after(named, completed=completed)
            return self.snapshot_id

    def _task_after(self, named: str, *, completed: bool) -> str | None:
        if not completed:
            return named
        return None if self._task == named else self._task

    def _current_task(self) -> str | None:
        """Return the current task; what an earlier process began is asked for."""
        if self._task is None:
            self._task = self._access.read_view(self.agent_id).agent_state.current_task
        return self._task


def handover_event(giver: str | KnownAgent, taker: str | KnownAgent, context: Json, sync_type: str) -> ContextSynced:
    """Return the event of a hand-over. Raises `Invalid` if JSON cannot hold the context."""
    giver_id, taker_id = (each if isinstance(each, str) else each.agent_id for each in (giver, taker))
    shared = None if context is None else any_json_text(context, "context")
    snapshot_id = None if isinstance(giver, str) else giver.snapshot_id
    return ContextSynced(giver_id, taker_id, sync_type, shared, snapshot_id)
