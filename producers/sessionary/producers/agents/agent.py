"""One agent of a session: its tasks, what it shares, what it sees."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Unpack

from sessionary.producers.agents.errors import TaskDone
from sessionary.producers.agents.results import StoredResult, load_result
from sessionary.producers.context.marks import Marks
from sessionary.producers.errors import Invalid, Refused
from sessionary.producers.ports import AgentMember, Json
from sessionary.producers.process.json_text import any_json_text
from sessionary.producers.run_ports import AgentRecord, AgentViewRead
from sessionary.schemas.events import AgentTaskUpdated, ContextSynced

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary


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

    tell: Callable[[AgentTaskUpdated | ContextSynced, Marks], None]
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


class Agent:
    """One agent of a session. Made by `Session.agent`; thread-safe.

    Its verbs wait for the processor, so that what one agent has told, the others see.
    """

    def __init__(self, access: AgentAccess, member: AgentMember) -> None:
        self._access, self._member = access, member
        self._snapshot_id = member.snapshot_id
        self._task: str | None = None
        self._lock = Lock()  # one change of the tasks follows the other

    @property
    def agent_id(self) -> str:
        """The agent's id, unique in its session."""
        return self._member.agent_id

    @property
    def role(self) -> str:
        """What the agent does, and so what it sees."""
        return self._member.role

    @property
    def service_id(self) -> str:
        """The agent's service, which is a member of the session."""
        return self._member.service_id

    @property
    def snapshot_id(self) -> str:
        """The last snapshot of the agent's state, as far as this object knows it."""
        return self._snapshot_id

    def begin(self, task: str, **marks: Unpack[Marks]) -> str:
        """Begin a task; the agent's current one, if there is another, counts as completed.

        Beginning the current task again is no error: an agent that died does not know.

        Returns:
            The id of the new snapshot of the agent's state.

        Raises:
            TaskDone: The agent completed this task before.
            Refused: The processor refuses it; `broken_chain`: another process changed the tasks of
                this agent meanwhile. This object knows the newest snapshot then.
            Unavailable: The broker or the processor has not answered within `verdict_timeout_s`.

        Otherwise raises as `Session.emit` does.
        """
        return self._update(task, None, marks, completed=False)

    def share(self, result: Json, **marks: Unpack[Marks]) -> str:
        """Share a result of the current task, which goes on; a later one takes its place.

        Returns and raises as `finish` does.
        """
        return self._update(None, result, marks, completed=False)

    def finish(self, result: Json = None, *, task: str | None = None, **marks: Unpack[Marks]) -> str:
        """Complete a task, and share its result under the agent's id, `_` and the task.

        Args:
            result: What the others may see, a JSON value; None: nothing is shared. One of more than
                16 Ki characters is stored as an artifact first.
            task: The task; by default the current one.
            marks: As in `Session.emit`.

        Returns and raises as `begin` does; `Invalid` also if the agent has no current task.
        """
        return self._update(task, result, marks, completed=True)

    def handoff(self, to: "str | Agent", *, context: Json = None, sync_type: str = "handoff") -> None:
        """Hand over to another agent: the taker's record refers to this agent's last snapshot.

        Args:
            to: The taker, or its id.
            context: What is passed beside the shared results; it stays in the session's history.
            sync_type: Why, for programs.

        Raises as `begin` does; `Refused` with `unknown_agent` if the taker is not registered.
        """
        self._access.tell(handover_event(self, to, context, sync_type), {})

    def view(self, *, load_artifacts: bool = True) -> AgentView:
        """Return the agent's record, what it sees of the others, and on whom it depends.

        A researcher sees nothing, an analyzer what researchers share, a writer and any other role
        everything; the authors' roles decide. Waits and raises as `Session.sync` does.

        Args:
            load_artifacts: Load large results from the library. If not, the JSON of reference and
                summary is in their place.
        """
        read = self._access.read_view(self.agent_id)
        library = self._access.library if load_artifacts else None
        visible = {
            each.key: load_result(each.result_json, each.artifact_id if load_artifacts else None, library)
            for each in read.results
        }
        return AgentView(
            read.agent_state, visible, read.dependencies, {each.key: each.agent_id for each in read.results}
        )

    def _update(self, task: str | None, result: Json, marks: Marks, *, completed: bool) -> str:
        access = self._access
        stored = access.store(result, marks)
        with self._lock:
            named = self._current_task() if task is None else task
            if not named:
                raise Invalid("invalid_value", f"agent {self.agent_id} has no current task: begin one, or name it")
            update = AgentTaskUpdated(
                named,
                completed,
                from_snapshot_id=self._snapshot_id,
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
                self._snapshot_id = access.find_snapshot(self.agent_id, self._snapshot_id)
            self._task = self._task_after(named, completed=completed)
            return self._snapshot_id

    def _task_after(self, named: str, *, completed: bool) -> str | None:
        if not completed:
            return named
        return None if self._task == named else self._task

    def _current_task(self) -> str | None:
        """Return the current task; what an earlier process began is asked for."""
        if self._task is None:
            self._task = self._access.read_view(self.agent_id).agent_state.current_task
        return self._task


def handover_event(giver: str | Agent, taker: str | Agent, context: Json, sync_type: str) -> ContextSynced:
    """Return the event of a hand-over. Raises `Invalid` if JSON cannot hold the context."""
    giver_id, taker_id = (each if isinstance(each, str) else each.agent_id for each in (giver, taker))
    shared = None if context is None else any_json_text(context, "context")
    snapshot_id = None if isinstance(giver, str) else giver.snapshot_id
    return ContextSynced(giver_id, taker_id, sync_type, shared, snapshot_id)


__all__ = ["Agent", "AgentAccess", "AgentView", "handover_event"]
