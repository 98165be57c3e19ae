"""The agents of a session: they are registered, read, and told to hand over."""

from collections.abc import Sequence
from functools import partial

from sessionary.producers.agents.results import store_result
from sessionary.producers.agents.work import AgentAccess, AgentEvent, AgentWork, KnownAgent, handover_event
from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.errors import Invalid, Refused, SessionLost
from sessionary.producers.ports import Json
from sessionary.producers.run_ports import AgentRecord, AgentViewRead
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.updates import judge_sent
from sessionary.schemas.events import AgentRegistered


class AgentGroup:
    """The agents of one session. Thread-safe; its methods wait for the processor."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def get(self, agent_id: str, role: str | None, service_id: str | None, marks: Marks) -> AgentWork:
        """Return an agent, registered if it is not yet; adopt as `sync` does."""
        core = self._core
        view = core.sync(core.view.departures)
        known = next((each for each in view.agents if each.agent_id == agent_id), None)
        if known is None:
            if role is None:
                raise Invalid("invalid_value", f"agent {agent_id} is not registered: give its role")
            self._tell(AgentRegistered(role, agent_id, service_id), marks)
            known = next(each for each in core.view.agents if each.agent_id == agent_id)
        if role not in (None, known.role) or service_id not in (None, known.service_id):
            detail = f"agent {agent_id} is registered as {known.role} of {known.service_id}"
            raise Invalid("invalid_value", detail)
        library = core.services.artifacts
        store = partial(store_result, core, library)
        return AgentWork(AgentAccess(self._tell, self._snapshot_of, self._read_view, store, library), known)

    def list(self) -> Sequence[AgentRecord]:
        """Return the agents in the order of their registration, without results."""
        session_id = self._core.session_id
        return self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_agents(session_id, after, timeout_s), ()
        )

    def hand_over(
        self, giver: str | KnownAgent, taker: str | KnownAgent, context: Json, sync_type: str, marks: Marks
    ) -> None:
        """Hand over from an agent to another."""
        self._tell(handover_event(giver, taker, context, sync_type), marks)

    def _tell(self, payload: AgentEvent, marks: Marks) -> None:
        """Send an event about agents, wait for its verdict, and adopt the agents' snapshots."""
        self._core.services.control.check_configured()
        sent = self._core.send_awaited(payload, envelope_fields(marks))
        _, refusal = judge_sent(self._core, sent)
        if refusal is not None:
            raise Refused(sent.event_type, refusal)

    def _snapshot_of(self, agent_id: str, otherwise: str) -> str:
        return next((each.snapshot_id for each in self._core.view.agents if each.agent_id == agent_id), otherwise)

    def _read_view(self, agent_id: str) -> AgentViewRead:
        session_id = self._core.session_id
        read: AgentViewRead | None = self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_agent_view(session_id, agent_id, after, timeout_s), None
        )
        if read is None:
            raise SessionLost(f"session {session_id} has no agent {agent_id}")
        return read
