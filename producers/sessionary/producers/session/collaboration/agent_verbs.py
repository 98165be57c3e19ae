"""The verbs of a session for its agents, and updates of the content that lose none.

With agents, several processes update one content. Each update then waits for its verdict, one after
the other: a refused one is told at once, with what to base the next one on. The client of an agent
cannot know without asking whether another has joined, so it waits as soon as it has an agent.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Unpack

from sessionary.producers.agents.agent import Agent, AgentAccess, handover_event
from sessionary.producers.agents.errors import VersionConflict
from sessionary.producers.agents.results import store_result
from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.durable.recorder import wait_recorded
from sessionary.producers.errors import Invalid, Refused, SessionLost, Unavailable
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.run_ports import AgentRecord, AgentViewRead
from sessionary.producers.session.collaboration.asking import SessionAsking
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.session.state_json import parsed_state
from sessionary.schemas.events import AgentRegistered, AgentTaskUpdated, ContextSynced
from sessionary.schemas.types import RefusalReason


class SessionAgents(SessionAsking):
    """The verbs of a session's agents. Thread-safe; they wait for the processor."""

    def agent(
        self, agent_id: str, role: str | None = None, *, service_id: str | None = None, **marks: Unpack[Marks]
    ) -> Agent:
        """Return an agent of the session, registered if it is not yet; adopt as `sync` does.

            researcher = session.agent("researcher_1", "researcher")

        Only the service that owns the session registers agents, at most 64. An agent's service is a
        member of the session: it may update the content, take snapshots and save checkpoints.

        Args:
            agent_id: The agent's id, a name that is unique in its session.
            role: What the agent does: `researcher`, `analyzer`, `writer` or any other; see
                `Agent.view`. None: the agent is registered already.
            service_id: The agent's service; by default this client's.
            marks: As in `emit`.

        Raises:
            Invalid: The agent is not registered and no role is given, or it is registered with
                another role or service.
            Refused: The processor refuses it: `not_member` to another service than the owning one,
                `too_many_agents`.

        Otherwise raises as `sync` and `emit` do.
        """
        view = self._adopt_for_agents()
        known = next((each for each in view.agents if each.agent_id == agent_id), None)
        if known is None:
            if role is None:
                raise Invalid("invalid_value", f"agent {agent_id} is not registered: give its role")
            self._tell_agents(AgentRegistered(role, agent_id, service_id), marks)
            known = next(each for each in self._agents if each.agent_id == agent_id)
        if role not in (None, known.role) or service_id not in (None, known.service_id):
            detail = f"agent {agent_id} is registered as {known.role} of {known.service_id}"
            raise Invalid("invalid_value", detail)
        library = self._services.artifacts
        store = partial(store_result, self, library)
        return Agent(AgentAccess(self._tell_agents, self._snapshot_of, self._read_view, store, library), known)

    def agents(self) -> Sequence[AgentRecord]:
        """Return the session's agents in the order of their registration, without results.

        Waits and raises as `sync` does.
        """
        return self._read_judged(
            lambda runs, after, timeout_s: runs.fetch_agents(self.session_id, after, timeout_s), ()
        )

    def handoff(
        self,
        *,
        to: str | Agent,
        from_agent: str | Agent,
        context: Json = None,
        sync_type: str = "handoff",
        **marks: Unpack[Marks],
    ) -> None:
        """Hand over from an agent to another: the taker's record refers to the giver's snapshot.

        Args:
            to: The taker, or its id.
            from_agent: The giver, or its id.
            context: What is passed beside the shared results; it stays in the session's history.
            sync_type: Why, for programs.
            marks: As in `emit`.

        Raises as `Agent.begin` does; `Refused` with `unknown_agent` if one is not registered.
        """
        self._tell_agents(handover_event(from_agent, to, context, sync_type), marks)

    def update_state(self, state: Mapping[str, Json], *, wait: bool = True, **marks: Unpack[Marks]) -> int:
        """Replace the session's content, and wait until Kafka has the update.

        The processor refuses an update that is based on a version which is no longer the last one.
        Without agents the verb does not wait for that; `sync` shows what the processor has. In a
        session with agents, as far as this object knows, it waits for the verdict, whatever `wait`
        says, so that no agent's update is lost unnoticed.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.
            wait: Return once the broker has acknowledged the update, so that an answer that is
                given after it cannot be ahead of the recorded content. False: as `emit`, at once.
            marks: As in `emit`.

        Returns:
            The version of the new content; the old one if the session is not Active.

        Raises:
            VersionConflict: In a session with agents: another one updated the content first. The
                error has it, and `state` has it too: make the change there, and update again.
            Refused: In a session with agents: the processor refused it for another reason.
            Invalid: `state` is not a dict, has a key that is not a text, cannot be written as JSON,
                or is too large.
            Unavailable: The broker has not acknowledged the update within `verdict_timeout_s`, or
                it is lost; with agents also if the processor has not answered. If it is not lost it
                is still sent: do not repeat it, but `sync`.

        Otherwise raises as `emit` does.
        """
        if not self._agent_count:
            return super().update_state(state, wait=wait, **marks)
        with self._update_lock:
            return self._update_judged(state, marks)

    # For agents

    def _update_judged(self, state: Mapping[str, Json], marks: Marks) -> int:
        if self._is_update_open:
            self._settle_update()
        sent, version = self._send_update(state, marks)
        self._is_update_open = True
        view, refusal = self._judge_sent(sent)
        self._is_update_open = False
        if refusal is None:
            return version
        conflict = self._adopt_content(view)
        if refusal == "version_conflict":
            raise conflict
        raise Refused("state_updated", refusal)

    def _settle_update(self) -> None:
        """Learn what became of an update whose verdict did not come. Raises `VersionConflict`.

        If it was refused, the next one would be based on a content that never was.
        """
        view = self._fetch_judged(self._services.control.fetch_session)
        self._is_update_open = False
        if (view.version, view.state_json) != (self._version, self._state_json):
            raise self._adopt_content(view)

    def _adopt_content(self, view: SessionView) -> VersionConflict:
        """Take over the processor's content; return the error that tells it."""
        with self._lock:
            base, self._version, self._state_json = self._version, view.version, view.state_json
        return VersionConflict(self.session_id, base, view.version, parsed_state(view.state_json))

    def _adopt_for_agents(self) -> SessionView:
        return self._sync_unless_left(self._departures)

    def _tell_agents(self, payload: AgentRegistered | AgentTaskUpdated | ContextSynced, marks: Marks) -> None:
        """Send an event about agents, wait for its verdict, and adopt the agents' snapshots."""
        self._services.control.check_configured()
        sent = self._send_awaited(payload, envelope_fields(marks))
        _, refusal = self._judge_sent(sent)
        if refusal is not None:
            raise Refused(sent.event_type, refusal)

    def _judge_sent(self, sent: PendingVerdict) -> tuple[SessionView, RefusalReason | None]:
        """Wait for the verdict on an event; return the session, and why the event was refused."""
        services = self._services
        deadline_s = time.monotonic() + services.verdict_timeout_s
        place = wait_recorded(sent, sent.event_type, services.verdict_timeout_s)
        left_s = max(deadline_s - time.monotonic(), 0.1)
        view = services.control.fetch_session(self.session_id, place, left_s)
        self._agents, self._agent_count = tuple(view.agents), len(view.agents)
        verdict = view.verdict
        if verdict is None or not verdict.kept:
            raise Unavailable(f"the verdict on {sent.event_type} (event {sent.event_id}) is not known", 1.0)
        if verdict.applied:
            return view, None
        reason: RefusalReason = verdict.reason or "UNKNOWN"
        self._keep_refusal(sent.event_id, reason)
        return view, reason

    def _snapshot_of(self, agent_id: str, otherwise: str) -> str:
        return next((each.snapshot_id for each in self._agents if each.agent_id == agent_id), otherwise)

    def _read_view(self, agent_id: str) -> AgentViewRead:
        read: AgentViewRead | None = self._read_judged(
            lambda runs, after, timeout_s: runs.fetch_agent_view(self.session_id, agent_id, after, timeout_s), None
        )
        if read is None:
            raise SessionLost(f"session {self.session_id} has no agent {agent_id}")
        return read


__all__ = ["SessionAgents"]
