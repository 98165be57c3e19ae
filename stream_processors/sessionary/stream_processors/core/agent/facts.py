"""What can happen to the row of an agent."""

from typing import NamedTuple

from sessionary.schemas.records import AgentState


class AgentMoved(NamedTuple):
    """An event made the agent, or changed it."""

    row: AgentState
