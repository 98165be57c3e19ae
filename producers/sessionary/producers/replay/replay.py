"""The block in which an agent's own code runs over a session's record, and nothing is executed.

Strict and stubbed replays run in a memory of their own, with the processor's own rules; they have
no way to Kafka. Only a fork has one: it works in a new session, which names its parent.
"""

from collections.abc import Callable
from inspect import iscoroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sessionary.producers.client import SessionClient
from sessionary.producers.client_core.core import ClientCore, over_core
from sessionary.producers.client_core.sessions import NewSession, id_of, start_core
from sessionary.producers.durable.large_values import load_value
from sessionary.producers.errors import Invalid, SettingsError
from sessionary.producers.replay.answers import Answers, ReplayCounts, ReplayPlan
from sessionary.producers.replay.errors import NotReplayable
from sessionary.producers.replay.record import SessionRecord, messages_of, read_record
from sessionary.producers.replay.script import Script, ScriptedTransport, TargetReached
from sessionary.producers.session.session import Session
from sessionary.producers.session.view import parsed_state
from sessionary.producers.testing.clients import memory_ports
from sessionary.producers.testing.memory import InMemoryTransport
from sessionary.producers.verdicts.notifications import Callbacks
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import Limits

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.artifacts.stores import ArtifactStore


class _OverlayStore:
    """`ArtifactStore` that reads another one, and keeps for itself what is written."""

    def __init__(self, under: "ArtifactStore") -> None:
        self._under, self._own = under, dict[str, bytes]()

    def uri(self, name: str) -> str:
        return self._under.uri(name)

    def write(self, name: str, body: bytes) -> None:
        self._own[name] = body

    def read(self, name: str) -> bytes:
        return self._own[name] if name in self._own else self._under.read(name)

    def has(self, name: str) -> bool:
        return name in self._own or self._under.has(name)

    def names(self, folder: str) -> list[str]:
        return self._under.names(folder)

    def remove(self, name: str) -> None:
        self._own.pop(name, None)


class ReplayWork:
    """One replay without its face: the record, the client in which the agent works, the outcome.

    Attributes:
        core: The core of the agent's client; None outside the block.
    """

    def __init__(self, client: ClientCore, plan: ReplayPlan, record: SessionRecord | None = None) -> None:
        """`record`: one that was read before; None: it is read by `open`."""
        self.client, self.plan = client, plan
        self.core: ClientCore | None = None
        self.past: ClientCore | None = None
        self.counts = ReplayCounts()
        self.difference: str | None = "the agent's code was not run to the end"
        self.is_reached = False
        self.baseline: ReplayWork | None = None
        self._record = record
        self._script: Script | None = None
        self._answers: Answers | None = None
        self._memory: InMemoryTransport | None = None

    @property
    def record(self) -> SessionRecord:
        """The record. Raises `RuntimeError` before the block is entered."""
        if self._record is None:
            raise RuntimeError("the record is not read yet: use the replay in `with`, or `async with`")
        return self._record

    def read(self) -> None:
        """Read the record. Raises as `SessionClient.replay` says."""
        if self._record is None:
            client, plan = self.client, self.plan
            client.reopen_in_child()
            if client.ports.records is None:
                raise SettingsError("this client reads no records: it has no Kafka, as its ports have no `records`")
            key = SessionKey(client.tenant_id, id_of(client, plan.session))
            reads = client.ports.records()
            self._record = read_record(reads, key, client.identity, plan.at, plan.timeout_s)

    def twin(self) -> "ReplayWork":
        """Return the strict replay of the same record, for the unchanged agent."""
        plan = self.plan._replace(mode="strict", stub=None, allow=())
        self.baseline = ReplayWork(self.client, plan, self.record)
        return self.baseline

    def open(self) -> ClientCore:
        """Return the core of the client in which the agent works; `read` comes first."""
        record, plan, client = self.record, self.plan, self.client
        if all(not each.is_own for each in record.events):
            names = f"{client.identity.service_id}/{client.identity.agent_id}"
            raise NotReplayable(
                f"session {record.key.session_id} has no event of service and agent {names}: replay it by a client "
                "with the names of the agent whose code runs"
            )
        script = Script(record, stops=plan.mode != "fork")
        answers = Answers(record, script, plan.mode, plan.stub, plan.allow, self._load)
        self._script, self._answers = script, answers
        self.past = _in_memory(client, record.memory, None)
        if plan.mode == "fork":
            self.core = client.for_replay(lambda inner: ScriptedTransport(inner, script), answers)
            return self.core
        self._memory = InMemoryTransport(1, now_ms=record.events[0].at_ms)
        transport = ScriptedTransport(self._memory, script, self._memory)
        self.core = _in_memory(client, self._memory, answers, transport)
        if not record.events[0].is_own:
            script.session_id = record.key.session_id
            script.go_on(transport.redo)
        return self.core

    def new_session(self) -> NewSession:
        """Return the parameters of the recorded session."""
        record = self.record
        created, envelope = record.creation, record.events[0].event.envelope
        snapshot, restored_from = created.snapshot, created.restored_from_snapshot_id
        is_restored = restored_from is not None and self.plan.mode != "fork"
        return NewSession(
            envelope.user_id or "",
            None if is_restored else parsed_state(snapshot.state_json),
            Limits(*created.limits),
            envelope.data_classes,
            created.external_id,
            snapshot.schema_version,
            created.parent_session_id,
            (created.parent_session_id, restored_from) if is_restored else (None, None),
            "process",
            {},
            snapshot.conversation_id is not None,
        )

    def close(self, error: BaseException | None) -> bool:
        """End the replay; return whether `error`, which left the block, ends with it.

        Raises the error by which a strict replay stopped a call, if the agent's code hid it.
        """
        script, answers = self._script, self._answers
        assert script is not None
        assert answers is not None
        assert self.core is not None
        self.counts = answers.counts
        self.is_reached = script.is_reached
        self.difference = self._find_difference(script)
        self.core.close(None if self.plan.mode == "fork" else 0.0)
        is_end = isinstance(error, TargetReached)
        if (error is None or is_end) and answers.failure is not None and self.plan.mode == "strict":
            raise answers.failure
        return is_end

    @property
    def reproduces(self) -> bool:
        """Whether the replay has done what the record has, up to the point."""
        return self.difference is None

    @property
    def why_invalid(self) -> str | None:
        """Why a fork does not count; None if it does."""
        if self.plan.mode != "fork":
            return None
        if self.baseline is None:
            return "the unchanged agent was not replayed first: pass it as baseline"
        difference = self.baseline.difference
        return None if difference is None else f"the unchanged agent does not reproduce the record: {difference}"

    def describe(self) -> str:
        """Return the outcome in a line."""
        parts = [f"{self.plan.mode} replay of session {self.record.key.session_id}: {self.counts}"]
        if self.plan.mode == "fork":
            parts += [] if self.why_invalid is None else [f"it does not count, as {self.why_invalid}"]
        else:
            parts.append("it reproduces the record" if self.difference is None else self.difference)
        return "; ".join(parts)

    def _find_difference(self, script: Script) -> str | None:
        record, session_id, memory = self.record, self.record.key.session_id, self._memory
        found = script.find_difference()
        if self.counts.missed:
            found = found or f"{self.counts.missed} calls are not in the record"
        if found is not None or memory is None:
            return found
        past, now = record.row, memory.find_row(session_id)
        states = [(row.state, row.version, row.state_json, row.turns, row.exchanges) for row in (past, now)]
        if states[0] != states[1]:
            return f"the session is {states[1]}, and was {states[0]}: state, version, content, messages and turns"
        if messages_of(record.memory, session_id) != messages_of(memory, session_id):
            return "the messages of the conversation differ"
        return None

    def _load(self, text: str | None) -> object:
        return load_value(self.client.artifacts, text)


def _in_memory(
    client: ClientCore, memory: InMemoryTransport, answers: Answers | None, transport: ScriptedTransport | None = None
) -> ClientCore:
    """Return the core of a client with the names of another one, in memory."""
    identity = client.identity
    ports = memory_ports(memory, client.tenant_id, identity.service_id)
    if transport is not None:
        ports = ports._replace(transport=transport)
    settings = client.settings.model_copy(update={"quotas": False})
    callbacks = Callbacks(_ignore)
    core = ClientCore(client.tenant_id, identity, settings, callbacks, ports, _overlay(client.artifacts))
    core.services = core.services._replace(answers=answers)
    return core


def _ignore(error: Exception) -> None:
    """Drop a finding: what it is about shows as a difference from the record."""


def _overlay(library: "ArtifactLibrary | None") -> "ArtifactLibrary | None":
    if library is None:
        return None
    from sessionary.producers.artifacts.library import ArtifactLibrary  # most clients have none

    return ArtifactLibrary(_OverlayStore(library.store))


class ReplayFace:
    """What the replays for threads and for asyncio have in common: the outcome."""

    _work: ReplayWork

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._work.plan.session}>"

    def __str__(self) -> str:
        """Return the outcome in a line: counts, and how the replay differs from the record."""
        return self._work.describe()

    @property
    def record(self) -> SessionRecord:
        """The session's record up to the point: its calls, reasoning, context and faults."""
        return self._work.record

    @property
    def counts(self) -> ReplayCounts:
        """How many calls were served, missed, blocked and executed, once the block is left."""
        return self._work.counts

    @property
    def reproduces(self) -> bool:
        """Whether the agent did what the record has, up to the point."""
        return self._work.reproduces

    @property
    def difference(self) -> str | None:
        """The first difference from the record, for people; None without one."""
        return self._work.difference

    @property
    def is_reached(self) -> bool:
        """Whether the agent's code was stopped at the point up to which it was replayed."""
        return self._work.is_reached

    @property
    def is_valid(self) -> bool:
        """Whether a fork counts: the unchanged agent has reproduced the record before."""
        return self._work.plan.mode == "fork" and self._work.why_invalid is None


class Replay(ReplayFace):
    """A replay of a session, made by `SessionClient.replay`. Use it once, in `with`."""

    def __init__(self, client: ClientCore, baseline: "Callable[[Replay], object] | None", *plan: Any) -> None:
        """`plan`: the fields of a `ReplayPlan`."""
        asked = ReplayPlan(*plan)
        asked.check(baseline)
        self._work, self._baseline = ReplayWork(client, asked), baseline

    @property
    def client(self) -> SessionClient:
        """The client for the agent's code, with the same names. In the block only."""
        assert self._work.core is not None, "use the replay in `with`"
        return over_core(SessionClient, self._work.core)

    @property
    def past(self) -> SessionClient:
        """A client in memory of the state at the point: sessions, agents and turns as they were."""
        assert self._work.past is not None, "use the replay in `with`"
        return over_core(SessionClient, self._work.past)

    def session(self) -> Session:
        """Create and start the session as the record has it; as `client.session` does."""
        core = self.client.core
        return Session(start_core(core, self._work.new_session(), None, None, None))

    def __enter__(self) -> Self:
        self._work.read()
        if self._baseline is not None:
            self._replay_baseline(self._baseline)
        self._work.open()
        return self

    def _replay_baseline(self, baseline: "Callable[[Replay], object]") -> None:
        twin = Replay.__new__(Replay)
        twin._work, twin._baseline = self._work.twin(), None
        outcome = None
        try:
            with twin:
                outcome = baseline(twin)
        except Exception:  # noqa: BLE001 - the recorded agent may have failed; the comparison decides
            return
        if iscoroutine(outcome):
            outcome.close()
            raise Invalid("invalid_value", "baseline is an `async def`: replay it by an AsyncSessionClient")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._work.close(error)
