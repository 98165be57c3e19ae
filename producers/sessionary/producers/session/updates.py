"""Updates of a session's content, and its snapshots.

With agents, several processes update one content. Each update then waits for its verdict, one after
the other: a rejected one is reported at once, with the base for the next one. The client of an
agent cannot know without asking whether another has joined, so it waits as soon as it has an agent.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from sessionary.producers.agents.work import (
    AgentAccess,
    AgentEvent,
    AgentWork,
    KnownAgent,
    VersionConflict,
    handover_event,
    store_result,
)
from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.durable.flow import Do, Flow, Send
from sessionary.producers.durable.recorder import wait_recorded
from sessionary.producers.errors import Invalid, Rejected, SessionLost, Unavailable
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.process.safe_text import to_json_text
from sessionary.producers.run_ports import AgentRecord, AgentViewRead
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict, wait_acknowledged
from sessionary.producers.session.view import WAITING, canonical_json, parsed_state
from sessionary.schemas.enums import known_role
from sessionary.schemas.events import AgentRegistered, StateUpdated
from sessionary.schemas.types import AccessedResource, RejectionReason, SnapshotMessage, ToolExecution


class Updates:
    """The content of one session. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def update(self, state: Mapping[str, Json], wait: bool, metadata: EventMetadata) -> Flow[int]:
        """Replace the content; return its version."""
        if self._core.view.agent_count:
            version: int = yield Do(partial(self._update_in_turn, state, metadata))
            return version
        sent, version = yield Send(partial(self._send_update, state, metadata))
        if wait and self._core.services.runs is not None:  # a client that is turned off has no broker
            timeout_s = self._core.services.verdict_timeout_s
            yield Do(partial(wait_acknowledged, sent, f"version {version} of the content", timeout_s))
        return version

    def snapshot(
        self,
        context: str | None,
        tool_call: ToolExecution | None,
        result: Json,
        messages: Sequence[SnapshotMessage] | None,
        total_tokens: int | None,
        resources: Sequence[AccessedResource],
        metadata: EventMetadata,
    ) -> str:
        """Record a snapshot of the content; return its id."""
        from sessionary.producers.session.snapshots import check_given, open_chain  # most sessions take none

        fields = envelope_fields(metadata)
        check_given(context, tool_call, () if messages is None else messages, total_tokens, resources)
        if result is not None:
            if tool_call is None:
                raise Invalid("invalid_value", "a result is that of a tool call: pass tool_call too")
            status = tool_call.status or "succeeded"
            tool_call = tool_call._replace(status=status, data_json=to_json_text(result, "result"))
        with self._core.lock:
            chain = open_chain(self._core)
            chain.take_again()
            return chain.take(
                fields,
                context=context,
                messages=messages,
                total_tokens=total_tokens,
                tool=tool_call,
                resources=resources,
            )

    def _send_update(self, state: Mapping[str, Json], metadata: EventMetadata) -> tuple[PendingVerdict, int]:
        """Send an update of the content; return the update and the content's new version."""
        core, view = self._core, self._core.view
        updating_at = _now_us()
        text, fields = canonical_json(state), envelope_fields(metadata)
        with core.lock:
            update = StateUpdated(view.version, view.version + 1, text)
            if (bar := view.bars.get(StateUpdated)) is not None:  # before any phase is sent
                view.require_passing(update, bar)
            if view.sends_phases:
                update = update._replace(updating_at=updating_at, persisting_at=_now_us())
            sent = core.send_awaited(update, fields)
            view.phase = WAITING if view.phase == WAITING else "processing"
            if view.local_state == "Active":  # in any other state the processor rejects it
                view.version += 1
                view.state_json = text
                view.changes += 1
            return sent, view.version

    def _update_in_turn(self, state: Mapping[str, Json], metadata: EventMetadata) -> int:
        """Send an update once the one before it is judged, and wait for its verdict."""
        view = self._core.view
        with self._core.update_lock:
            if view.is_update_open:
                self._settle_update()
            sent, version = self._send_update(state, metadata)
            view.is_update_open = True
            judged, rejection = judge_sent(self._core, sent)
            view.is_update_open = False
            if rejection is None:
                return version
            conflict = self._adopt_content(judged)
            if rejection == "version_conflict":
                raise conflict
            raise Rejected("state_updated", rejection)

    def _settle_update(self) -> None:
        """Find out the outcome of an update whose verdict did not come. Raises `VersionConflict`.

        After a rejection, the next update would be based on a content that never existed.
        """
        known = self._core.view
        view = self._core.fetch_judged(self._core.services.control.fetch_session)
        known.is_update_open = False
        if (view.version, view.state_json) != (known.version, known.state_json):
            raise self._adopt_content(view)

    def _adopt_content(self, view: SessionView) -> VersionConflict:
        """Take over the processor's content; return the error that reports it."""
        known = self._core.view
        with self._core.lock:
            base, known.version, known.state_json = known.version, view.version, view.state_json
            known.changes += 1
        return VersionConflict(self._core.session_id, base, view.version, parsed_state(view.state_json))


def judge_sent(core: SessionCore, sent: PendingVerdict) -> tuple[SessionView, RejectionReason | None]:
    """Wait for the verdict on an event; return the session, and why the event was rejected.

    Adopts the session's agents. Raises `Unavailable` if the verdict does not come.
    """
    services = core.services
    deadline_s = time.monotonic() + services.verdict_timeout_s
    log_position = wait_recorded(sent, sent.event_type, services.verdict_timeout_s)
    left_s = max(deadline_s - time.monotonic(), 0.1)
    view = services.control.fetch_session(core.session_id, log_position, left_s)
    with core.lock:
        if len(view.agents) >= core.view.agent_count:  # else another thread knows of a later one: agents stay
            core.view.agents, core.view.agent_count = tuple(view.agents), len(view.agents)
    verdict = view.verdict
    if verdict is None or not verdict.kept:
        raise Unavailable(f"the verdict on {sent.event_type} (event {sent.event_id}) is not known", 1.0)
    if verdict.applied:
        return view, None
    reason: RejectionReason = verdict.reason or "UNKNOWN"
    core.keep_rejection(sent.event_id, reason)
    return view, reason


def _now_us() -> int:
    return time.time_ns() // 1_000


# The agents of a session: they are registered, read, and asked to hand over.


class AgentGroup:
    """The agents of one session. Thread-safe; its methods wait for the processor."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def get(self, agent_id: str, role: str | None, service_id: str | None, metadata: EventMetadata) -> AgentWork:
        """Return an agent, registered if it is not yet; adopt as `sync` does."""
        core = self._core
        view = core.sync(core.view.departures)
        known = next((each for each in view.agents if each.agent_id == agent_id), None)
        if known is None:
            if role is None:
                raise Invalid("invalid_value", f"agent {agent_id} is not registered: give its role")
            self._report(AgentRegistered(role, agent_id, service_id, known_role=known_role(role)), metadata)
            known = next(each for each in core.view.agents if each.agent_id == agent_id)
        if role not in (None, known.role) or service_id not in (None, known.service_id):
            detail = f"agent {agent_id} is registered as {known.role} of {known.service_id}"
            raise Invalid("invalid_value", detail)
        library = core.services.artifacts
        store = partial(store_result, core, library)
        return AgentWork(AgentAccess(self._report, self._snapshot_of, self._read_view, store, library), known)

    def list(self) -> Sequence[AgentRecord]:
        """Return the agents in the order of their registration, without results."""
        session_id = self._core.session_id
        return self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_agents(session_id, after, timeout_s), ()
        )

    def hand_over(
        self, giver: str | KnownAgent, taker: str | KnownAgent, context: Json, sync_type: str, metadata: EventMetadata
    ) -> None:
        """Hand over from an agent to another."""
        self._report(handover_event(giver, taker, context, sync_type), metadata)

    def _report(self, payload: AgentEvent, metadata: EventMetadata) -> None:
        """Send an event about agents, wait for its verdict, and adopt the agents' snapshots."""
        self._core.services.control.check_configured()
        with self._core.lock:
            sent = self._core.send_awaited(payload, envelope_fields(metadata))
            self._core.view.changes += 1
        _, rejection = judge_sent(self._core, sent)
        if rejection is not None:
            raise Rejected(sent.event_type, rejection)

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
