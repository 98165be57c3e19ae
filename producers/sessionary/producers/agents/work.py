"""The work of one agent of a session, for both faces: `Agent` and `AsyncAgent`."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessionary.producers.context.scope import EventMetadata
from sessionary.producers.errors import Invalid, ProducerError, Rejected, SettingsError
from sessionary.producers.ports import AgentMember, Json
from sessionary.producers.process.safe_text import any_json_text
from sessionary.producers.run_ports import AgentRecord, AgentViewRead
from sessionary.schemas.events import AgentRegistered, AgentTaskUpdated, ContextSynced
from sessionary.schemas.ids import snapshot_id_of
from sessionary.schemas.limits import RESULT_CHARACTERS_MAX

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary, Reporter


# The errors of agents that share a session.
#
# SessionaryError
# └── ProducerError
#     ├── VersionConflict(version, state)    another agent updated the session's content first
#     └── TaskDone(agent_id, task)           an agent completed this task before
#
# The bases, and the client's other errors, are in `sessionary.producers.errors`.


class VersionConflict(ProducerError):
    """Another agent updated the session's content first; this update changed nothing.

    The session's object now has the newest content: make the change in `state`, and update again.

    Attributes:
        session_id: The session.
        version: The version that the processor has.
        state: The content of that version.
    """

    def __init__(self, session_id: str, base_version: int, version: int, state: dict[str, Json]) -> None:
        super().__init__(
            f"session {session_id}: the update is based on version {base_version} of the content, but the processor "
            f"has version {version}; make the change in the error's `state`, and update again"
        )
        self.session_id = session_id
        self.version = version
        self.state = state


class TaskDone(ProducerError):
    """An agent completed this task before: each is done once, and the first result stays.

    Attributes:
        agent_id: The agent.
        task: The task.
    """

    def __init__(self, agent_id: str, task: str) -> None:
        super().__init__(f"agent {agent_id} completed {task} before: its result is shared already")
        self.agent_id = agent_id
        self.task = task


# The results that agents share: as texts of events, or as artifacts if they are large.
#
# For a large result the event has its reference and beginning: {"artifact_ref":
# "artifact:agent_result:…", "summary": "16,385 characters: …"}.


RESULT_TYPE = "agent_result"  # type of artifacts that are only a result
_SUMMARY_CHARACTERS = 200  # of the text's beginning


class StoredResult(NamedTuple):
    """The part of a result that its event carries."""

    text: str | None
    artifact_id: str | None = None


def store_result(
    session: "Reporter", library: "ArtifactLibrary | None", result: Json, metadata: EventMetadata
) -> StoredResult:
    """Return the part of a result that its event carries; a large result is saved first.

    Raises `Invalid` if it cannot be written as JSON, or is large and there is no library.
    """
    if result is None:
        return StoredResult(None)
    text = any_json_text(result, "result")
    if len(text) <= RESULT_CHARACTERS_MAX:
        return StoredResult(text)
    if library is None:
        raise Invalid(
            "invalid_value",
            f"result has {len(text):,} characters, and agents share {RESULT_CHARACTERS_MAX:,}: set "
            "SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), so that larger ones become artifacts",
        )
    artifact = library.save(session, text, RESULT_TYPE, **metadata)
    summary = f"{len(text):,} characters: {text[:_SUMMARY_CHARACTERS]}"
    reference = any_json_text({"artifact_ref": f"{artifact.reference}", "summary": summary}, "result")
    return StoredResult(reference, artifact.artifact_id)


def load_result(text: str | None, artifact_id: str | None, library: "ArtifactLibrary | None") -> Json:
    """Return a result that was shared; a text that is no JSON as it is.

    Raises `SettingsError` if an artifact has it and there is no library; otherwise as
    `ArtifactLibrary.load` does.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    reference = value.get("artifact_ref") if artifact_id is not None and isinstance(value, dict) else None
    if not isinstance(reference, str) or not reference.startswith(f"artifact:{RESULT_TYPE}:"):
        return value
    if library is None:
        raise SettingsError(
            f"the result is {reference}: set SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), to the place "
            "where it was saved, or pass load_artifacts=False"
        )
    return json.loads(library.load(reference))


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
    """The functions of a session that its agents use.

    Attributes:
        report: Sends an event about agents, and waits until it is applied; raises `Rejected`.
        find_snapshot: Returns the last snapshot of an agent, as far as the session knows; for an
            unknown agent, the second argument.
        read_view: Returns an agent with its view of the session.
        store: Returns the part of a result that its event carries.
        library: Keeps results that are too large for events; None: such results are refused.
    """

    report: Callable[[AgentEvent, EventMetadata], None]
    find_snapshot: Callable[[str, str], str]
    read_view: Callable[[str], AgentViewRead]
    store: Callable[[Json, EventMetadata], StoredResult]
    library: "ArtifactLibrary | None"


class AgentView(NamedTuple):
    """An agent's view of its session.

    Attributes:
        agent_state: The agent's record: role, current task (or None), completed tasks, last
            snapshot, its time, and all results shared by then, as JSON texts by key.
        visible_context: The results of other agents that it sees now, by key.
        dependencies: Ids of the agents on which it depends.
        authors: Ids of the agents that shared these results, by key.
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
        self._access.report(event, {})

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.member.agent_id

    def view(self, *, load_artifacts: bool) -> AgentView:
        """Return the agent's record, the results that it sees, and its dependencies."""
        read = self._access.read_view(self.agent_id)
        library = self._access.library if load_artifacts else None
        visible = {
            each.key: load_result(each.result_json, each.artifact_id if load_artifacts else None, library)
            for each in read.results
        }
        return AgentView(
            read.agent_state, visible, read.dependencies, {each.key: each.agent_id for each in read.results}
        )

    def update(self, task: str | None, result: Json, metadata: EventMetadata, *, completed: bool) -> str:
        """Report a task, by default the current one, with its result; return the snapshot's id."""
        access = self._access
        stored = access.store(result, metadata)
        with self._lock:
            named = self._current_task() if task is None else task
            if not named:
                raise Invalid("invalid_value", f"agent {self.agent_id} has no current task: begin one, or name it")
            update = AgentTaskUpdated(
                named,
                completed,
                from_snapshot_id=self.snapshot_id,
                to_snapshot_id=snapshot_id_of(secrets.randbits(48)),
                agent_id=self.agent_id,
                result_json=stored.text,
                artifact_id=stored.artifact_id,
            )
            try:
                access.report(update, metadata)
            except Rejected as error:
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
        """Return the current task; ask the processor for one that an earlier process began."""
        if self._task is None:
            self._task = self._access.read_view(self.agent_id).agent_state.current_task
        return self._task


def handover_event(giver: str | KnownAgent, taker: str | KnownAgent, context: Json, sync_type: str) -> ContextSynced:
    """Return the event of a hand-over. Raises `Invalid` if JSON cannot hold the context."""
    giver_id, taker_id = (each if isinstance(each, str) else each.agent_id for each in (giver, taker))
    shared = None if context is None else any_json_text(context, "context")
    snapshot_id = None if isinstance(giver, str) else giver.snapshot_id
    return ContextSynced(giver_id, taker_id, sync_type, shared, snapshot_id)
