"""The machine of agents: a row holds an agent's tasks and what it shares.

An agent has no clock, and vanishes with its session. The machine decides on no event: the session's
does (`judge`).
"""

from collections.abc import Sequence

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.records import AgentState
from sessionary.stream_processors.core.agent.facts import AgentMoved
from sessionary.stream_processors.core.dependants.machine import UnclockedMachine
from sessionary.stream_processors.core.machine import RowKind


class AgentMachine(UnclockedMachine[AgentState]):
    """Implements `Machine` for agents."""

    name = "agent"
    row_kinds: Sequence[RowKind] = (
        RowKind(
            AgentState,
            live=False,
            prefixes=record_headers(AgentState),
            encode=encode_record,
            is_child=True,
        ),
    )

    def evolve(self, row: AgentState | None, fact: AgentMoved) -> AgentState:
        """Return the row after a fact."""
        return fact.row
