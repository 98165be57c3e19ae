"""One session as an agent uses it: all public verbs, in one class and five named groups.

It is one module because its docstrings are the reference. Each verb is a line: the collaborators in
this folder, which hold the session's core, do the work. `generation.async_faces` makes
`async_session` of this text, so that signatures and docstrings are the same there.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self, Unpack

from sessionary.producers.agents.agent import Agent
from sessionary.producers.context.model_call import ModelCall, send_usage
from sessionary.producers.context.scope import (
    EPOCH,
    BlockMetadata,
    EventMetadata,
    P,
    SessionBlock,
    T,
    added_metadata,
    bind_function,
    block_fields,
    enter_block,
    envelope_fields,
    epoch_us,
    leave_block,
)
from sessionary.producers.delivery.emitter import NO_FIELDS
from sessionary.producers.durable.run_block import Run
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.run_ports import AgentRecord, ArtifactView, ExecutionView, MessageView
from sessionary.producers.session.checkpoints import Checkpoints
from sessionary.producers.session.conversation import LAST_DEFAULT, Questions, Turns
from sessionary.producers.session.core import SessionCore, run_session_flow
from sessionary.producers.session.decisions import Decision, ModelUse, record_decision
from sessionary.producers.session.lifecycle import Lifecycle, Step
from sessionary.producers.session.migration import TTL_S_DEFAULT, Migration, MigrationResult
from sessionary.producers.session.runs import RecordedReads, Runs
from sessionary.producers.session.transaction import Transaction, roll_back_session
from sessionary.producers.session.turn import Turn
from sessionary.producers.session.updates import AgentGroup, Updates
from sessionary.producers.session.view import check_given_state, parsed_state
from sessionary.producers.verdicts.local_checks import check_access, check_progress
from sessionary.schemas.events import Payload, ProgressReported, SessionActivity, UsageRecorded
from sessionary.schemas.types import (
    AccessedResource,
    Answer,
    ErrorInfo,
    PauseKind,
    Phase,
    RunMode,
    SnapshotMessage,
    StartFailureReason,
    ToolExecution,
)


class SessionLifecycle:
    """The rarer verbs of a session's life, as `session.lifecycle`."""

    __slots__ = ("core",)

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.core.session_id}>"

    def fail_start(
        self, reason: StartFailureReason, message: str | None = None, **metadata: Unpack[EventMetadata]
    ) -> None:
        """End a session that was created and could not be started.

        Raises as `Session.emit` does.

        Args:
            reason: `invalid_config` or `connection_failed`.
            message: Details, for people.
            metadata: As in `Session.emit`.
        """
        Lifecycle(self.core).fail_start(reason, message, metadata)

    def enter_phase(self, phase: Phase, **metadata: Unpack[EventMetadata]) -> None:
        """Set the session's phase, an attribute separate from its state.

        The other verbs send their phases themselves. Only the owning service may change the phase;
        the processor rejects a phase that is out of order. Raises as `Session.emit` does.
        """
        Lifecycle(self.core).enter_phase(phase, metadata)

    def force_close(self, message: str | None = None, **metadata: Unpack[EventMetadata]) -> None:
        """End the session at once, with the most severe reason that is legal in its state.

        `forced` from Error, `cancelled` from Paused, else `abnormal_termination`. Like
        `Session.close`, it works while a verdict is awaited. Raises as `Session.emit` does.
        """
        Lifecycle(self.core).force_close(message, metadata)

    def detach(self) -> None:
        """Stop the heartbeats without ending the session, as if the agent had died.

        Another agent may `attach` and continue. `resume` starts the heartbeats again. Raises
        `ClientClosed` in a forked child whose parent made the session.
        """
        self.core.detach()


class SessionConversation:
    """A session's conversation, as `session.conversation`; `session.message` appends a turn."""

    __slots__ = ("core",)

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.core.session_id}>"

    def read(self, last: int = LAST_DEFAULT, *, load_artifacts: bool = True) -> Sequence[MessageView]:
        """Return the last turns of the conversation in order, whichever process sent them.

        Waits as `sync` does until the processor has judged this client's events; rejected turns are
        not included.

        Args:
            last: How many turns, from 0 to 200.
            load_artifacts: Load large texts from the library. If not, `content` is the JSON of
                reference and summary.

        Raises:
            Invalid: `last` is out of bounds.
            SettingsError: A text is an artifact, and the client has no library.
            ArtifactMissing: The library no longer has such a text; or as the library raises
                otherwise.

        Otherwise raises as `sync` does.
        """
        return Turns(self.core).read(last, load_artifacts)

    def add_result(self, tool_name: str, result: Json, **metadata: Unpack[EventMetadata]) -> str:
        """Append a tool's result to the conversation, as a turn of the role `tool`.

        A text is the turn's content as it is, any other value its JSON. The call itself is recorded
        by `@tool`. Returns and raises as `Session.message` does.
        """
        return run_session_flow(self.core, Turns(self.core).append_result(tool_name, result, metadata))


class SessionAgents:
    """The agents that share a session, as `session.agents`. The verbs wait for the processor."""

    __slots__ = ("core",)

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.core.session_id}>"

    def get(
        self,
        agent_id: str,
        role: str | None = None,
        *,
        service_id: str | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> Agent:
        """Return an agent of the session, registered if it is not yet.

        Adopts the processor's record, as `Session.sync` does.

            researcher = session.agents.get("researcher_1", "researcher")

        Only the service that owns the session registers agents, at most 64. An agent's service is a
        member of the session: it may update the content, take snapshots and save checkpoints.

        Args:
            agent_id: The agent's id, a name that is unique in its session.
            role: The agent's role: `researcher`, `analyzer`, `writer` or any other; see
                `Agent.view`. None: the agent is registered already.
            service_id: The agent's service; by default this client's.
            metadata: As in `Session.emit`.

        Raises:
            Invalid: The agent is not registered and no role is given, or it is registered with
                another role or service.
            Rejected: The processor rejects the agent: `not_member` if the service does not own the
                session, `too_many_agents`.

        Otherwise raises as `Session.sync` and `Session.emit` do.
        """
        return Agent(AgentGroup(self.core).get(agent_id, role, service_id, metadata))

    def list(self) -> Sequence[AgentRecord]:
        """Return the session's agents in the order of their registration, without results.

        Waits and raises as `Session.sync` does.
        """
        return AgentGroup(self.core).list()

    def handoff(
        self,
        *,
        to: str | Agent,
        from_agent: str | Agent,
        context: Json = None,
        sync_type: str = "handoff",
        **metadata: Unpack[EventMetadata],
    ) -> None:
        """Hand over from an agent to another: the taker's record refers to the giver's snapshot.

        Args:
            to: The taker, or its id.
            from_agent: The giver, or its id.
            context: Passed in addition to the shared results, and kept in the session's history.
            sync_type: Why, for programs.
            metadata: As in `Session.emit`.

        Raises as `Agent.begin` does; `Rejected` with `unknown_agent` if one is not registered.
        """
        AgentGroup(self.core).hand_over(from_agent, to, context, sync_type, metadata)


class SessionMigration:
    """Moves a session to another service, as `session.migration`."""

    __slots__ = ("core",)

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.core.session_id}>"

    def move(
        self, *, to: str, ttl_s: float = TTL_S_DEFAULT, reason: str | None = None, **metadata: Unpack[EventMetadata]
    ) -> MigrationResult:
        """Move the session to another service, and wait until it is there.

        A client of that service takes the session by `accept_migrations`. The session continues
        here until the target has loaded it. Then the processor holds the session, and rejects this
        object's events, until the target has accepted the same state. Then this object has left the
        session: its heartbeats stop, and its verbs raise `SessionFenced`. This service is asked to
        clean up, with the reason `migrated`.

        Args:
            to: The service that is to own the session.
            ttl_s: After so many seconds the migration is aborted; from 1 s to a day.
            reason: Why, for people.
            metadata: As in `Session.emit`.

        Returns:
            The completed migration.

        Raises:
            MigrationAborted: The session stays, and continues here; `reason_code` says why.
            Rejected: The offer was rejected, for example with `migration_open` or `not_owner`.
            Unavailable: It is unknown how the migration ended, or whether it began. `Session.sync`
                reports it later.
            SessionLost: The session was archived meanwhile.
            Invalid: `to` is no name, or our own service; or `ttl_s` is out of bounds.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.

        Otherwise raises as `Session.emit` does.
        """
        return run_session_flow(self.core, Migration(self.core).move(to, ttl_s, reason, metadata))


class SessionRecords:
    """Reads the processor's records of a session, as `session.records`; adopts nothing."""

    __slots__ = ("core",)

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.core.session_id}>"

    def execution(self) -> ExecutionView:
        """Return the session's open runs, their steps and tool calls.

        The session's content is in `state`, its turns in `session.conversation`. Waits and raises
        as `Session.sync` does.
        """
        return RecordedReads(self.core).execution()

    def artifacts(self, run_id: str | None = None) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation; none of an unknown run.

        `run_id`: None for those that belong to no run. Waits and raises as `Session.sync` does.
        """
        return RecordedReads(self.core).artifacts(run_id)

    def verify(self) -> None:
        """Compare version and hash of the state that this object knows with the processor's.

        Waits as `Session.sync` does until the processor has judged this client's events.

        Raises:
            StateMismatch: The states differ: another process updated the state, or an update of
                this object was rejected or lost.

        Otherwise raises as `Session.sync` does.
        """
        RecordedReads(self.core).verify()


class Session:
    """One session. Made by `SessionClient`.

    It is thread-safe, and a context manager.

    Verbs hand an event over and return, without waiting for Kafka. `resume`, `recover` and `sync`
    wait for the processor.

    While the session is Active, or a verb waits for the verdict that makes it so, the client sends
    heartbeats for it, whichever threads use it, until

    - the session ends, pauses, fails or is detached, or the `with` block is left;
    - a turn ends: between turns the session waits for its user (`turn`);
    - this object is garbage-collected, or the client is closed;
    - the process exits. A forked child does not beat for its parent's sessions;
    - with `beats_with="thread"` or `"task"`: the thread that created or attached it has died, or
      the asyncio task is done.

    Heartbeats show that the process lives; limits on idle time and duration, that work proceeds.

    Leaving the `with` block ends the session with the event that is legal in its state:

    | left by | Active | Paused | Error |
    |---|---|---|---|
    | its end, `sys.exit(0)`, a stream's reader | `closed` | `cancelled` | `unrecoverable` |
    | an exception | an error, then `unrecoverable` | `cancelled` | `unrecoverable` |
    | a cancellation, `KeyboardInterrupt` | `cancelled` | `cancelled` | `forced` |
    | `sys.exit(3)` | `abnormal_termination` | `cancelled` | `forced` |

    A session that was detached, that the processor has timed out, or that waits for a person's
    answer, is left as it is: see `ask`. In the block the session is the current one: see
    `current_session`.

    The most frequent verbs are methods of the session. The others are in groups: `lifecycle`,
    `conversation`, `agents`, `migration` and `records`.

    Attributes:
        core: The session's implementation, for sessionary's own modules.
    """

    def __init__(self, core: SessionCore) -> None:
        self.core = core
        self._block: SessionBlock | None = None  # while in `with`

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.core.describe()}>"

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self.core.session_id

    @property
    def local_state(self) -> str:
        """The session's state as far as this object knows it.

        One of Idle, Active, Paused, Timeout, Error and Terminated. `sync` brings it up to date. A
        session that the processor holds for its migration counts as Active.
        """
        return self.core.view.local_state

    @property
    def epoch(self) -> int:
        """The ownership epoch: 1, and one more after each resume, recovery and take-over."""
        return self.core.emitter.epoch

    @property
    def version(self) -> int:
        """The version of `state`, from 1."""
        return self.core.view.version

    @property
    def state(self) -> dict[str, Json]:
        """A copy of the session's content as far as this object knows it."""
        return parsed_state(self.core.view.state_json)

    @property
    def lost(self) -> bool:
        """True if the processor rejects what this object sends, as far as this object knows.

        The session was timed out for good, ended or taken over by others, or its creation was
        rejected. If another process has taken it over, or it has moved to another service, all
        verbs raise `SessionFenced` from now on. Else they work as before: their events are kept on
        the rejected topic. With the setting `control_url`, this is known within some seconds
        (`poll_interval_s`), else after a `sync`.
        """
        return self.core.view.lost

    @property
    def context_bytes(self) -> int | None:
        """Size of the agent's context in bytes, sent with each further event; None if unknown."""
        return self.core.emitter.context_bytes

    @context_bytes.setter
    def context_bytes(self, value: int | None) -> None:
        self.core.emitter.context_bytes = value

    @property
    def lifecycle(self) -> SessionLifecycle:
        """The rarer verbs of the life cycle: phases, a start that failed, ends of other kinds."""
        return SessionLifecycle(self.core)

    @property
    def conversation(self) -> SessionConversation:
        """The session's conversation: the last turns, and results of tools."""
        return SessionConversation(self.core)

    @property
    def agents(self) -> SessionAgents:
        """The agents that share the session."""
        return SessionAgents(self.core)

    @property
    def migration(self) -> SessionMigration:
        """The verbs that move the session to another service."""
        return SessionMigration(self.core)

    @property
    def records(self) -> SessionRecords:
        """The processor's records of the session: runs, artifacts, its state."""
        return SessionRecords(self.core)

    # Work

    def emit(
        self,
        payload: Payload,
        *,
        occurred_at: datetime | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> str:
        """Send an event of any class in `sessionary.schemas.events`.

        Does not change `local_state`: prefer the other verbs for events of the session's life.

        Args:
            payload: The event.
            occurred_at: Time of the event, of the years 1900 to 2299; must have a timezone. None
                means now.
            metadata: Further fields of the envelope, as in `EventMetadata`; every verb takes them.

        Returns:
            The event's id, a UUID.

        Raises:
            Invalid: A value does not fit the event's schema or is out of bounds (a negative count,
                a name of more than 256 characters), a state is no JSON object, the event is larger
                than 1 MiB, `occurred_at` has no timezone or lies outside these years, or the event
                says that an operator sends it.
            BoundReached: The event would begin a step or an artifact for which the run or the
                session has no room.
            QueueFull: Under delivery policy `block` there was no room in time.
            NotAllowed: The session's state, or its owner, does not allow the event. An event that
                another process may have made possible is sent.
            SessionEnded: This object has ended the session.
            SessionFenced: Another process has the session, as a poll or `sync` has found out.
            VerdictPending: A verdict is awaited.
            ClientClosed: The client is closed.
        """
        check_given_state(payload)
        return self.core.send_event(
            payload, envelope_fields(metadata, None if occurred_at is None else epoch_us(occurred_at))
        )

    def activity(self, kind: str, text: str | None = None, **metadata: Unpack[EventMetadata]) -> str:
        """Report work of some kind (`llm`, `tool`, `user` …). It counts as a sign of life.

        Returns the event's id. Raises as `emit` does.
        """
        return self.core.send_event(SessionActivity(kind, text), envelope_fields(metadata) if metadata else NO_FIELDS)

    def info(self, text: str, **metadata: Unpack[EventMetadata]) -> str:
        """Report a text for people, as an activity of kind `info`.

        Returns the event's id. Raises as `emit` does.
        """
        return self.core.send_event(SessionActivity("info", text), envelope_fields(metadata) if metadata else NO_FIELDS)

    def access(self, uri: str, operation: str = "read", **metadata: Unpack[EventMetadata]) -> str:
        """Report that a resource was accessed now, by the agent or by the tool that calls this.

            text = Path("/data/sales.csv").read_text()
            current_session().access("file:///data/sales.csv")

        The event is an activity whose kind is the operation; `v_resource_accesses` has it with the
        step and the tool call that it belongs to. Artifacts of this client's library need no call.

        Args:
            uri: The resource, in 1 to 1,000 characters, of a form that stays the same.
            operation: What was done: `read`, `write`, `delete` or another word.
            metadata: As in `emit`.

        Returns the event's id. Raises `Invalid` for a URI or an operation that is no such text;
        otherwise raises as `emit` does.
        """
        check_access(uri, operation)
        return self.core.send_access(uri, operation, envelope_fields(metadata) if metadata else NO_FIELDS)

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None, **metadata: Unpack[EventMetadata]
    ) -> str:
        """Report progress of the current work: `progress` out of `total`, in any unit.

        `total`: None if it is not known. Returns the event's id. Raises `Invalid` unless
        0 ≤ progress ≤ total and the total is above 0; otherwise raises as `emit` does.
        """
        check_progress(progress, total)
        return self.core.send_event(
            ProgressReported(float(progress), total, message), envelope_fields(metadata) if metadata else NO_FIELDS
        )

    def usage(
        self,
        *,
        model: str | None = None,
        tokens_in: int = 0,
        tokens_out: int = 0,
        model_cost_usd_nanos: int = 0,
        tool_cost_usd_nanos: int = 0,
        is_timeout_retry: bool = False,
        retry_of: str | None = None,
        cache_read_input_tokens: int = 0,
        cache_write_input_tokens: int = 0,
        reasoning_output_tokens: int = 0,
        response_id: str | None = None,
        time_to_first_token_ms: int | None = None,
        retries: int = 0,
        **metadata: Unpack[EventMetadata],
    ) -> str:
        """Report tokens and cost of one call of a model or a tool.

        A figure that is no whole number is rounded or counts as 0, and `on_error` gets an
        `Invalid`.

        Args:
            model: Name of the model.
            tokens_in: Tokens of the prompt, with those that a cache gave or took.
            tokens_out: Tokens of the answer, with those of reasoning.
            model_cost_usd_nanos: Cost of the model, in billionths of a US dollar.
            tool_cost_usd_nanos: Cost of the tool, in billionths of a US dollar.
            is_timeout_retry: True if the call repeats one that timed out.
            retry_of: Id of the usage event that this call repeats.
            cache_read_input_tokens: Tokens of the prompt that the provider had in its cache.
            cache_write_input_tokens: Tokens of the prompt that the provider wrote into its cache.
            reasoning_output_tokens: Tokens of the answer that were spent on reasoning.
            response_id: The answer's id at the provider.
            time_to_first_token_ms: From the request to the first token of the answer, in ms.
            retries: Requests that were repeated before the call had its answer.
            metadata: As in `emit`.

        Returns:
            The event's id. Raises as `emit` does.
        """
        core, fields = self.core, envelope_fields(metadata) if metadata else NO_FIELDS
        usage = UsageRecorded(
            model,
            tokens_in,
            tokens_out,
            model_cost_usd_nanos,
            tool_cost_usd_nanos,
            is_timeout_retry,
            retry_of,
            cache_read_input_tokens,
            cache_write_input_tokens,
            reasoning_output_tokens,
            response_id,
            time_to_first_token_ms,
            retries,
        )
        return send_usage(usage, lambda usage: core.send_event(usage, fields), core.services.on_error)

    def message(
        self,
        role: str,
        content: str,
        *,
        name: str | None = None,
        tokens: int | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> str:
        """Append a turn to the conversation. The processor numbers the turns as it accepts them.

            session.message("user", "What was our revenue in May?")

        The last 200 turns can be read (`session.conversation`). A text of more than 16 Ki
        characters is stored as an artifact first, for which the verb waits.

        Args:
            role: Who speaks, in the agent's own words: `user`, `assistant` …
            content: The text.
            name: Name of the person or agent that speaks, if there are several.
            tokens: How many tokens of the model the text has, for snapshots.
            metadata: As in `emit`.

        Returns:
            The event's id.

        Raises:
            Invalid: `content` is no text, or `tokens` no count; or the text has more than 16 Ki
                characters, and the client has no library of artifacts.
            Unavailable: The library does not take a large text. Nothing was sent.

        Otherwise raises as `emit` does.
        """
        return run_session_flow(self.core, Turns(self.core).append(role, content, name, metadata, tokens))

    def update_state(self, state: Mapping[str, Json], *, wait: bool = True, **metadata: Unpack[EventMetadata]) -> int:
        """Replace the session's content, and wait until Kafka has the update.

        The processor rejects an update that is based on a version which is no longer the last one.
        Without agents the verb does not wait for the verdict; `sync` shows the processor's content.
        In a session with agents, as far as this object knows, the verb always waits for the
        verdict, whatever `wait` says, so that no agent's update is lost unnoticed.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.
            wait: Return once the broker has acknowledged the update, so that an answer that is
                given after it cannot be ahead of the recorded content. False: as `emit`, at once.
            metadata: As in `emit`.

        Returns:
            The version of the new content; the old one if the session is not Active.

        Raises:
            VersionConflict: In a session with agents: another agent updated the content first. The
                error and `state` have the new content: make the change there, and update again.
            Rejected: In a session with agents: the processor rejected the update for another
                reason.
            Invalid: `state` is not a dict, has a key that is not a text, cannot be written as JSON,
                or is too large.
            Unavailable: The broker has not acknowledged the update within `verdict_timeout_s`, or
                the update is lost; with agents also if the processor has not answered. An update
                that is not lost is still sent: do not repeat it, but `sync`.

        Otherwise raises as `emit` does.
        """
        return run_session_flow(self.core, Updates(self.core).update(state, wait, metadata))

    @property
    def snapshot_id(self) -> str | None:
        """Id of the last snapshot, as far as this object knows.

        After a tool call with `snapshots=True`, it is that of the one after the call.
        """
        return self.core.view.snapshot_id

    def snapshot(
        self,
        *,
        context: str | None = None,
        tool_call: ToolExecution | None = None,
        result: Json = None,
        messages: Sequence[SnapshotMessage] | None = None,
        total_tokens: int | None = None,
        resources: Sequence[AccessedResource] = (),
        **metadata: Unpack[EventMetadata],
    ) -> str:
        """Record a snapshot of the content, which follows the session's last one.

        It also has the turn, the messages that this object appended since its first snapshot, and
        the versions of server and protocol. Snapshots around tool calls are taken by themselves if
        session, run or tool has `snapshots=True`.

        Args:
            context: The model's context as text.
            tool_call: The tool call that the snapshot is taken before or after.
            result: The call's result, as JSON can hold it.
            messages: The messages in the model's context, in place of those that were appended.
            total_tokens: Tokens of the model's context; default: the sum of the messages' tokens.
            resources: Resources accessed since the snapshot before.
            metadata: As in `emit`.

        Returns:
            The snapshot's id.

        Raises:
            Invalid: `result` without `tool_call`, or one that JSON cannot hold; or the snapshot has
                more than an event can hold.

        Otherwise raises as `emit` does.
        """
        said = context, tool_call, result, messages, total_tokens, resources
        return Updates(self.core).snapshot(*said, metadata)

    def rollback(self, to: str, *, reason: str | None = None, **metadata: Unpack[EventMetadata]) -> int:
        """Go back to the content of an older snapshot, as a new version. Blocks until the verdict.

        History is not erased: the versions between stay in it. The processor takes the content from
        its own record. It keeps the last 16 snapshots that `snapshot` has recorded (fewer if their
        contents together exceed 256 Ki characters), and the head of the chain. The content of an
        older one is folded from the session's events, as long as Kafka has them.

            before = session.snapshot()
            session.update_state(plan)
            session.rollback(before)  # `session.state` is the content of the snapshot

        Args:
            to: The snapshot's id.
            reason: Why, for people.
            metadata: As in `emit`.

        Returns:
            The version of the content.

        Raises:
            Rejected: `unknown_snapshot`: the session has no such snapshot, or its content is gone;
                the message says what is kept. `not_owner`.
            VersionConflict: Another process updated the content first; `state` has it now.
            NotAllowed: The session is not Active.

        Otherwise raises as `sync` and `emit` do.
        """
        return roll_back_session(self.core, to, reason, metadata)

    def transaction(self, **metadata: Unpack[EventMetadata]) -> Transaction:
        """Return a transaction on the content, for use in `with`: all its changes, or none.

            with session.transaction() as pending:
                pending["balance"] = pending["balance"] - 10
                pending["paid"] = True

        Entering reads the processor's content; `pending` is a copy, which is not shared. Readers
        have the committed content until the block ends. Then the pending values are committed as
        the next version, unless the content has changed since: no update is overwritten. A block
        that is left by an exception rolls the transaction back.

        An open transaction is part of the session's record, with its begin. It ends with its
        session, and an hour after its begin. A session has at most 128 open ones.

        Args:
            metadata: As in `emit`; of the events that begin and end the transaction.

        Entering the block raises `Rejected` with `too_many_transactions` or `not_member`, and
        `NotAllowed` if the session is not Active. Leaving it raises:
            VersionConflict: The content has changed since the begin; the error and `state` have it
                now. Nothing was changed: repeat the block.
            Rejected: `unknown_transaction`: it is over; or another reason.
            Invalid: JSON cannot hold the pending values, or they are too large.
            Unavailable: The verdict is not known: `sync` shows whether the values were committed.

        Otherwise raises as `sync` and `emit` do.
        """
        return Transaction(self.core, metadata)

    def save_checkpoint(
        self, operation: str, data: Json, *, stage: str | None = None, **metadata: Unpack[EventMetadata]
    ) -> str:
        """Save how far an operation got, with the data to continue from; wait until Kafka has it.

            session.save_checkpoint("import", {"processed": 70, "partial_results": results})

        In the block of a run the checkpoint is the run's, else the session's. The last 16 of each
        operation are kept, fewer if their data together exceed 256 Ki characters, as long as the
        session or the run. Data of more than 256 KiB are stored as an artifact.

        Args:
            operation: The operation's name.
            data: What JSON can hold.
            stage: The operation's stage, for people and queries.
            metadata: As in `emit`.

        Returns:
            The checkpoint's id.

        Raises:
            Invalid: JSON cannot hold the data, or the operation has no name.
            ResultTooLarge: The data fit into no event, and the client has no library.
            Unavailable: The broker has not acknowledged the checkpoint.

        Otherwise raises as `emit` does.
        """
        return Checkpoints(self.core).save(operation, data, stage, metadata)

    def load_checkpoint(self, operation: str, checkpoint_id: str | None = None) -> Json:
        """Return the data of an operation's last checkpoint; None if there is none.

            done = session.load_checkpoint("import") or {"processed": 0}

        In the block of a run it is the run's checkpoint, else the session's; never that of another
        session. Waits until the processor has judged this client's events.

        Args:
            operation: The operation's name.
            checkpoint_id: An older checkpoint instead of the last one.

        Raises:
            Invalid: The operation has no such checkpoint, or does not keep it any more.
            SettingsError: The data are an artifact, and the client has no library.
            ArtifactMissing: The library has no such data.

        Otherwise raises as `sync` does.
        """
        return Checkpoints(self.core).load(operation, checkpoint_id)

    def now(self) -> datetime:
        """Return the session's time in UTC: when its last event was made.

        A replay has it again, so that code which depends on time does the same again: nothing is
        recorded for it. It stands still between events: for the length of work, use your clock.
        Before this object's first event, an activity is sent. Raises as `emit` does.
        """
        return EPOCH + timedelta(microseconds=self.core.now_us())

    def random(self) -> float:
        """Return a number from 0 to 1, 1 excluded, which a replay has again.

        It follows from the session, its run, step or turn, and how many were drawn there before:
        nothing is recorded for it, and a resumed run draws the same ones. It is no secret.
        """
        return self.core.draw()

    def turn(self, **metadata: Unpack[EventMetadata]) -> Turn:
        """Return a turn, one exchange with the session's user, for use in `with`.

            with session.turn():
                session.message("user", text)
                answer = ask_model(text)
                session.message("assistant", answer)

        Between turns the session waits for its user: no process need be there, no heartbeat is
        needed, and neither the inactivity limit nor the idle limit nor the maximum duration runs.
        If no turn begins within the limit `user_idle_ms`, a day by default, the session ends with
        the reason `user_idle`. A turn that is left by an error ends, and the session waits.

        Entering waits until the processor has judged the begin, and adopts its record of the
        session as `sync` does. Leaving raises as `emit` does, but never hides the exception of the
        block. Tool calls count anew in each turn. Verbs between turns work as before; with work the
        limit begins anew. Sessions without turns are as they were.

        Args:
            metadata: As in `emit`; of the events that begin and end the turn.

        Entering the block raises:
            NotAllowed: A turn is open in this process (`phase_order`), or the session is Paused,
                Timeout or Error (`illegal_transition`).
            SessionEnded: The session has ended, for example because its user did not come back.
            Rejected: `phase_order`: another process is in a turn.
            Unavailable: There is no verdict. The turn has not begun, and the session waits.

        Otherwise raises as `sync` and `emit` do.
        """
        return Turn(self.core, metadata)

    def llm(self, model: str, **metadata: Unpack[EventMetadata]) -> ModelCall:
        """Return a call of a model, for use in `with`: it reports duration, usage and error.

            with session.llm("large") as call:
                answer = ask_model(prompt)
                call.tokens_in, call.tokens_out = answer.tokens_in, answer.tokens_out

        Its events are `step_started`, then `step_succeeded` or `step_failed`, and `usage_recorded`,
        all with one step id. A call that raises has a usage only if something of it was set.
        Entering and leaving raise as `emit` does, but never hide the exception of the block.

        Args:
            model: Name of the model.
            metadata: As in `emit`.
        """
        return ModelCall(self.core.call_reporter(), model, envelope_fields(metadata))

    def decision(
        self,
        choice: str | None = None,
        *,
        candidates: Mapping[str, float] | None = None,
        threshold: float | None = None,
        tools: Sequence[str] = (),
        inputs: Json = None,
        reason: str | None = None,
        model: str | None = None,
        prompt_id: str | None = None,
        prompt_version: str | None = None,
        parameters: Json = None,
        tokens_in: int = 0,
        tokens_out: int = 0,
        model_cost_usd_nanos: int = 0,
        **metadata: Unpack[EventMetadata],
    ) -> Decision:
        """Record a decision: what was chosen, from what, and why.

            scores = {"X": 0.92, "Y": 0.78}
            with session.decision("X", candidates=scores, threshold=0.85):
                recommend("X")  # a tool; its call names the decision as its cause

        The decision is recorded by the call. The block is needed only for what it causes. A
        decision has candidates or tools: what a model only says is a `message`.

        Args:
            choice: The chosen candidate; None if none was good enough.
            candidates: The options with their scores, in the order to be shown.
            threshold: The score that an option must reach.
            tools: Names of the tools that the decision calls.
            inputs: What it was made from, as JSON can hold it.
            reason: The reasoning, for people.
            model: Name of the model.
            prompt_id: The prompt that asked it.
            prompt_version: Version of that prompt.
            parameters: Parameters of the model, such as its temperature, as JSON can hold them.
            tokens_in: Tokens of the prompt. Totals count those of `llm` and `usage` only, so report
                them there too.
            tokens_out: Tokens of the answer.
            model_cost_usd_nanos: Cost of the model, in billionths of a US dollar.
            metadata: As in `emit`.

        Returns:
            The decision, with its `decision_id`.

        Raises:
            Invalid: It has neither candidates nor tools, or JSON cannot hold a value.

        Otherwise raises as `emit` does.
        """
        options, why = (candidates, threshold, tools), (inputs, reason)
        use = ModelUse(model, prompt_id, prompt_version, parameters, tokens_in, tokens_out, model_cost_usd_nanos)
        return Decision(record_decision(self.core, choice, options, why, use, metadata))

    def run(
        self,
        task_type: str,
        *,
        mode: RunMode = "attached",
        expected_ms: int | None = None,
        input: Json = None,
        plan: Json = None,
        prompt_versions: Mapping[str, str] | None = None,
        resume: bool = False,
        quota_wait_s: float | None = None,
        snapshots: bool | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> Run:
        """Return a run of a task, to be used in `with`: events in the block belong to it.

            with session.run("report", input={"month": "2026-10"}) as run:
                run.report_progress(0.5)
                run.result = {"pages": 12}

        Its events are `run_started` and `run_running`, then `run_completed`, `run_failed` or
        `run_cancelled`. Entering (`QuotaExceeded` if the tenant's quota rejects it) and leaving
        raise as `emit` does, but never hide the exception of the block.

        Args:
            task_type: The kind of task.
            mode: An `attached` run lives with its session: the run is paused if the session times
                out, fails if the session ends, and may take `attached_run_ms`. A silent one sends a
                heartbeat every five seconds. A `detached` run continues while the session is held
                or has timed out, and the session is not archived before the run ends.
            expected_ms: The expected duration; `Invalid` if it exceeds the run's limit.
            input: The run's input, as JSON can hold it.
            plan: The run's plan, if there is one yet: for a resumption, a list of the steps' names.
            prompt_versions: The versions of the prompts that the run uses, by their ids.
            resume: If the session has a run of this `run_id`, resume it, as `resume_run` does.
            quota_wait_s: Longest wait for the quota; default: the client's setting.
            snapshots: Take a snapshot before and after each recorded tool call of the run; default:
                as the session says.
            metadata: As in `emit`. `run_id`: the run's own id; by default a new UUID.
        """
        given = input, plan, prompt_versions or {}
        return Runs(self.core).run(task_type, mode, expected_ms, given, resume, quota_wait_s, snapshots, metadata)

    def resume_run(
        self,
        run_id: str,
        /,
        *,
        from_checkpoint: str | None = None,
        snapshots: bool | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> Run:
        """Return a run of this session that has begun before, resumed, for use in `with`.

            with session.resume_run("report-7") as run:
                facts = run.step("collect", collect_facts)  # not run again if it succeeded

        Entering reads the run, its steps and its tool calls. Calls that may have taken effect are
        resolved by asking their tools. Then a run that is paused or has failed is resumed.

        Args:
            run_id: The run's id.
            from_checkpoint: Id of one of the run's checkpoints with data, which becomes its last
                one again: the list of `Run.items`, or `load_checkpoint`, goes on from there. Steps
                that succeeded, and tools' recorded calls, are not repeated.
            metadata: As in `emit`, of the run's own events. `actor`: a person who resumes a run
                although it has failed for good.

        Entering the block raises:
            RunNotFound: There is no such run.
            RunOver: The run has failed for good, or was cancelled; or it is complete, and is to go
                back to a checkpoint.
            Invalid: The run keeps no such checkpoint.
            ToolCallUnresolved: A tool call may have taken effect; a person must decide.
            Rejected: The processor does not resume the run; else as `sync` and `emit`.
        """
        return Runs(self.core).resume_run(run_id, from_checkpoint, snapshots, metadata)

    def start_task(
        self, task_type: str, input: Json = None, *, timeout_s: float = 1.0, **metadata: Unpack[EventMetadata]
    ) -> str:
        """Ask the workers of this session's service to carry out a task; return the task's id.

            task_id = session.start_task("model_training", {"model": "m1", "epochs": 10})

        The task is a detached run: it continues without this client and session. The id is
        sufficient for `SessionClient.check_task_status` and the like. With quotas the task may have
        to wait.

        A run or task asks for each of its tasks once: called again after a crash, with the same
        type and input in the same order, it returns the id of the task of before.

        Args:
            task_type: Name of the function, as the workers know it.
            input: The task's input, as JSON can hold it.
            timeout_s: How long Kafka may take to acknowledge the request.
            metadata: As in `emit`, but for `run_id`.

        Raises:
            Unavailable: Kafka has not acknowledged the request. The request stays queued as other
                events do.
            DeliveryFailed: The request is lost.
        """
        return run_session_flow(self.core, Runs(self.core).start_task(task_type, input, timeout_s, metadata))

    def ask(
        self, question: str, deadline: timedelta | float | None = None, **metadata: Unpack[EventMetadata]
    ) -> Answer:
        """Pause the session with a question to a person, and wait for the answer. Blocks.

            answer = session.ask("Send the invoice?", deadline=timedelta(hours=4))
            if answer.approved:
                send_invoice()

        An operator answers by `sessionary question approve` or `deny`, or by the control API. If
        none does in time, the question expires, which is a denial. In each case the session is
        Active again, in the next epoch; it sends no heartbeats meanwhile.

        A person is asked once, wherever the process is killed. In a run the answer is kept, as the
        output of a step: a resumed run that asks the same question at the same place gets it. While
        the question is open, the resumed run waits at its entry. Outside of runs, the last answer
        is the one to the same question of the next process, until work is done.

        Leaving the session's block leaves the question open, whatever error it is left by; to give
        up, call `cancel`. While another question is open, `ask` waits for its turn.

        Args:
            question: The question, for people.
            deadline: Time for an answer, in seconds or as a `timedelta`. Replaces the limit
                `hold_ms`, which is the default.
            metadata: As in `emit`.

        Returns:
            The answer: `approved`, `reason_code` (`approved`, `denied` or `expired`), `by` whom,
            and that person's `text`.

        Raises:
            Rejected: The processor rejected the pause, for example because others hold the session.
            SessionEnded: The session ended, for example because an operator called it off.
            SessionFenced: Another process took the session over meanwhile.
            Unavailable: The control API has not answered since the deadline. Ask again.

        Otherwise raises as `emit` and `sync` do.
        """
        return run_session_flow(self.core, Questions(self.core).ask(question, deadline, metadata))

    def metadata(self, **metadata: Unpack[BlockMetadata]) -> AbstractContextManager[None]:
        """Return a block in which this session's events carry metadata, unless a verb is given
        others.

            with session.metadata(run_id="run-7"):
                session.activity("llm")

        Tasks and threads that begin in the block inherit them.

        Args:
            metadata: The metadata, as in `BlockMetadata`.
        """
        return added_metadata(self.session_id, block_fields(metadata))

    def bind(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function` with this session as the current one, and with the metadata of this
        call.

        For a plain function that other code will call, in a context that inherits nothing: a
        callback, or a thread pool that is none of `concurrent.futures`.
        """
        return bind_function(self, function)

    # Life

    def start(
        self,
        *,
        validate: Step | None = None,
        connect: Step | None = None,
        quota_wait_s: float | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> Self:
        """Start a created session: validate, connect, become Active.

        With quotas (setting `quotas`) the session first waits for its tenant's quota, and sends
        heartbeats meanwhile.

        Args:
            validate: Called in phase `validating`. If it raises, the session ends with
                `invalid_config`, and the exception is raised again.
            connect: Called in phase `connecting`. If it raises, the session ends with
                `connection_failed`, and the exception is raised again.
            quota_wait_s: Longest wait for the quota; default: the client's setting.
            metadata: As in `emit`; of all events of the start.

        Returns:
            This session.

        Raises:
            QuotaExceeded: The quota rejected the session, or the wait was too long. The session has
                ended.
            SessionEnded: The session ended while it waited.

        Otherwise raises as `emit` and, with quotas, `sync` do.
        """
        run_session_flow(self.core, Lifecycle(self.core).start(validate, connect, quota_wait_s, metadata))
        return self

    def pause(self, reason: str | None = None, kind: PauseKind = "manual", **metadata: Unpack[EventMetadata]) -> str:
        """Pause an Active session, with a snapshot of its content. `resume` continues it.

        A pause may last as long as the limit `hold_ms`; then the processor ends the session.

        Args:
            reason: Why, for people.
            kind: `manual`, `review` or `migration`.
            metadata: As in `emit`.

        Returns:
            The snapshot's id. Raises as `emit` does.
        """
        return Lifecycle(self.core).pause(reason, kind, metadata)

    def resume(self, resume_plan: str | None = None, **metadata: Unpack[EventMetadata]) -> dict[str, Json]:
        """Make a Paused or timed-out session Active again. Blocks until the processor's verdict.

        Waits for at most the setting `verdict_timeout_s`. After `Unavailable`, call `resume` again
        to keep waiting: nothing is sent twice.

        Args:
            resume_plan: How the work continues, for people.

        Returns:
            The session's content; after a pause the content of the snapshot.

        Raises:
            Rejected: The processor rejected; the session is unchanged.
            Unavailable: There is no verdict yet.
            DeliveryFailed: The event could not be delivered.
            SessionLost: The session does not exist, or is archived.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.

        Otherwise raises as `emit` does.
        """
        return run_session_flow(self.core, Lifecycle(self.core).resume(resume_plan, metadata))

    def error(
        self, error: BaseException | ErrorInfo, *, retryable: bool | None = None, **metadata: Unpack[EventMetadata]
    ) -> None:
        """Report an error from which the agent tries to recover; the session enters state Error.

        `recover` leads back to Active, if the error is retryable. Raises as `emit` does.

        Args:
            error: The exception, or an `ErrorInfo`.
            retryable: None means: time-outs, lost connections and `Unavailable` are retryable.
                Has no effect on an `ErrorInfo`.
            metadata: As in `emit`.
        """
        Lifecycle(self.core).error(error, retryable, metadata)

    def recover(self, resume_plan: str | None = None, **metadata: Unpack[EventMetadata]) -> dict[str, Json]:
        """Return from state Error to Active. Blocks until the processor's verdict.

        Waits for at most the setting `verdict_timeout_s`. After `Unavailable`, call `recover` again
        to keep waiting: nothing is sent twice.

        Args:
            resume_plan: How the work continues, for people.

        Returns:
            The session's content. Raises as `resume` does.
        """
        return run_session_flow(self.core, Lifecycle(self.core).recover(resume_plan, metadata))

    def sync(self) -> SessionView:
        """Read the session from the processor, and adopt its state, epoch, version and content.

        Waits until the processor has judged the last event that this client sent in the session,
        for at most the setting `verdict_timeout_s`. It does not wait for other clients' events.

        Returns:
            The session; its `verdict` is the one on that event.

        Raises:
            Unavailable: The event is not delivered yet, or the control API does not answer.
            SessionLost: The session does not exist, or is archived.
            SessionFenced: Another process took the session over from this object. Its heartbeats
                stop, and all its verbs raise this from now on.
            ClientClosed: This is a forked child, and its parent made the session.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
        """
        return self.core.sync(self.core.view.departures)

    def complete(self, message: str | None = None, **metadata: Unpack[EventMetadata]) -> None:
        """End the session because its work is done. Raises as `emit` does."""
        Lifecycle(self.core).complete(message, metadata)

    def cancel(self, message: str | None = None, **metadata: Unpack[EventMetadata]) -> None:
        """End the session because its work was called off, also while a person is asked.

        Raises as `emit` does.
        """
        Lifecycle(self.core).cancel(message, metadata)

    def close(self, message: str | None = None, **metadata: Unpack[EventMetadata]) -> None:
        """End the session with the event that is legal in its state.

        Does nothing if the session has ended, or if the processor has timed it out. Works also
        while a verdict is awaited. Until the verdict is known the session sends heartbeats. If the
        verb is granted, another thread ends the session at its new epoch, unless the client is
        closed. Raises as `emit` does.
        """
        Lifecycle(self.core).close(message, metadata)

    def __enter__(self) -> Self:
        self._block = enter_block(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            Lifecycle(self.core).leave(error)
        finally:
            if self._block is not None:
                leave_block(self._block)
        return False
