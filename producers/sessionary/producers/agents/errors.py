"""The errors of agents that share a session.

SessionaryError
└── ProducerError
    ├── VersionConflict(version, state)    another agent updated the session's content first
    └── TaskDone(agent_id, task)           an agent completed this task before

The bases, and the client's other errors, are in `sessionary.producers.errors`.
"""

from sessionary.producers.errors import ProducerError
from sessionary.producers.ports import Json


class VersionConflict(ProducerError):
    """Another agent updated the session's content first; this update changed nothing.

    The session's object knows the newest content now: make the change in `state`, and update again.

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
