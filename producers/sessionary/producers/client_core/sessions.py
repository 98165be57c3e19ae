"""Makes a client's sessions, attaches to existing ones, and reads any."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.context.scope import EventMetadata, envelope_fields, inherit_in_threads
from sessionary.producers.delivery.emitter import SenderIdentity
from sessionary.producers.errors import Invalid, Rejected, SessionExists, SessionLost
from sessionary.producers.follower import SessionFollower
from sessionary.producers.ports import Json, OnReceipt, Ports
from sessionary.producers.run_ports import LogPosition, MessageView
from sessionary.producers.session.conversation import Turns, check_last, load_contents
from sessionary.producers.session.core import SessionCore, run_session_flow
from sessionary.producers.session.heartbeat import BeatsWith, lifeline_of
from sessionary.producers.session.lifecycle import Lifecycle, Step
from sessionary.producers.session.polled import attach_flow, new_core, watch_core
from sessionary.producers.verdicts.local_checks import check_limits, check_user
from sessionary.producers.verdicts.notifications import Callbacks
from sessionary.schemas.fast_replace import speed_up
from sessionary.schemas.ids import (
    GivenId,
    SessionId,
    SessionKey,
    checked_name,
    given_session_id,
    new_session_id,
    successor_id,
)
from sessionary.schemas.types import DataClass, Limits

if TYPE_CHECKING:
    from pathlib import Path

    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.durable.flow import Flow
    from sessionary.producers.ports import Origin
    from sessionary.producers.settings import ProducerSettings


# Opens a client by the names and settings of a user.


# The client's library of artifacts, by the place that a user names.


def open_library(place: "ArtifactLibrary | Path | str | None") -> "ArtifactLibrary | None":
    """Return the library at a place, or the given one; None without a place.

    Raises `SettingsError` if the extra `artifacts` is missing, or fsspec does not know the URL.
    """
    if place is None:
        return None
    from sessionary.producers.artifacts.library import ArtifactLibrary  # most clients have none

    return place if isinstance(place, ArtifactLibrary) else ArtifactLibrary(place)


def open_client(
    names: tuple[str, str, str, str | None, str | None],
    settings: "ProducerSettings | None",
    callbacks: Callbacks,
    ports: Ports | None,
    artifacts: "ArtifactLibrary | Path | str | None",
) -> ClientCore:
    """Return the core of a client. Raises as `SessionClient` does.

    `names`: of tenant, service, agent, the agent's role, and the actor.
    """
    tenant_id, service_id, agent_id, agent_role, actor = names
    identity = SenderIdentity(checked_name("service", service_id), checked_name("agent", agent_id), agent_role, actor)
    from sessionary.producers.settings import ProducerSettings
    from sessionary.schemas.settings.variables import warn_of_near_misses

    warn_of_near_misses()
    given = settings if settings is not None else ProducerSettings.from_env()
    identity = identity._replace(versions=(given.server_version, given.protocol_version))
    library = open_library(given.artifacts_url if artifacts is None else artifacts)
    core = ClientCore(checked_name("tenant", tenant_id), identity, given, callbacks, ports, library)
    if given.inherit_in_threads:
        inherit_in_threads()
    speed_up("sessionary")  # an event as a verb makes it, up to the spool; this loads all modules
    return core


class KnownSession(Protocol):
    """A `Session` or an `AsyncSession`."""

    @property
    def core(self) -> SessionCore:
        """The inside of the session."""
        ...


class NewSession(NamedTuple):
    """The parameters of a new session, as `SessionClient.create` takes them."""

    user_id: str
    state: Mapping[str, Json] | None
    limits: Limits | None
    data_classes: Sequence[DataClass]
    session_id: SessionId | None
    state_schema_version: int
    parent: SessionId | KnownSession | None
    start_from: "tuple[SessionId | KnownSession | None, str | None]"  # a session, and the id of its snapshot
    beats_with: BeatsWith
    metadata: EventMetadata
    snapshots: bool = False
    resume: bool = False  # one that has timed out, instead of a new one


def create_core(client: ClientCore, new: NewSession) -> SessionCore:
    """Create a session. Raises as `SessionClient.create` does."""
    if new.session_id is not None:
        return _create_named(client, new, given_session_id(client.tenant_id, new.session_id), None)
    is_ordered = client.settings.session_id_version == 7
    session_id = new_session_id(time.time_ns() // 1_000_000 if is_ordered else None)
    if (answers := client.services.answers) is not None:
        session_id = answers.take_session_id(session_id)
    return send_creation(client, new, GivenId(session_id, None), None, None)


def _create_named(client: ClientCore, new: NewSession, given: GivenId, parent_id: str | None) -> SessionCore:
    """Create a session of a given id, as its only creator. Blocks for the verdict."""
    from sessionary.producers.client_core.opening import pending_creation, require_creation  # most ids are new ones

    client.ports.control.check_configured()
    created = pending_creation()
    core = send_creation(client, new, given, parent_id, created.on_receipt)
    created.event_id = core.view.created_id
    require_creation(client, core, created)
    watch_core(core)  # not before: a poll would notify the client of a rejection that the caller acts on
    return core


def begin_snapshots(core: SessionCore) -> None:
    """Let a snapshot be taken before and after each recorded tool call of the session."""
    from sessionary.producers.session.snapshots import open_chain  # few sessions have such snapshots

    with core.lock:
        core.view.snapshots = True
        open_chain(core)


def send_creation(
    client: ClientCore, new: NewSession, given: GivenId, parent_id: str | None, on_receipt: OnReceipt | None
) -> SessionCore:
    """Send a session's first event; wait for nothing but the content of another session.

    With `on_receipt` the caller waits for the verdict, and lets the client watch the session then.
    """
    limits, is_alive = check_limits(new.limits), lifeline_of(new.beats_with)
    own_parent = None if new.parent is None else id_of(client, new.parent, "parent session id")
    origin = _find_origin(client, new, own_parent)
    parent_id = parent_id or own_parent or (None if origin is None else origin.session_id)
    if (answers := client.services.answers) is not None:
        parent_id = answers.take_parent(parent_id)
    if origin is not None:
        classes = tuple(dict.fromkeys((*new.data_classes, *origin.data_classes)))
        new = new._replace(state=origin.state, state_schema_version=origin.schema_version, data_classes=classes)
    fields = envelope_fields(new.metadata)
    key = SessionKey(client.tenant_id, given.session_id)
    emitter = client.new_emitter(key, check_user(new.user_id), new.data_classes, new=new.session_id is None)
    try:
        core = new_core(
            emitter,
            client.services,
            limits=limits,
            state=new.state,
            state_schema_version=new.state_schema_version,
            is_alive=is_alive,
            watched=on_receipt is None,
        )
        core.view.snapshot_id = snapshot_id = None if origin is None else origin.snapshot_id
        if new.snapshots:
            begin_snapshots(core)
        Lifecycle(core).register(parent_id, snapshot_id, given.external_id, fields, on_receipt)
    except BaseException:
        if not emitter.last_seq:  # neither this call nor another object sent anything in the session
            emitter.forget_sequence()
        raise
    return core


def _find_origin(client: ClientCore, new: NewSession, parent_id: str | None) -> "Origin | None":
    """Return the snapshot that a new session starts from; None if it starts anew.

    Raises as `SessionClient.create` does.
    """
    session, snapshot_id = new.start_from
    if session is None:
        if snapshot_id is not None:
            raise Invalid(
                "invalid_value", f"from_snapshot is {snapshot_id!r:.80}: name its session in from_session too"
            )
        return None
    from sessionary.producers.client_core.origin import fetch_origin  # most sessions start anew

    if new.state is not None:
        raise Invalid("invalid_value", "state and from_session are two contents of one session: give one of them")
    session_id = id_of(client, session, "from_session")
    if parent_id not in (None, session_id):
        raise Invalid(
            "invalid_value",
            f"parent is {parent_id}, and from_session is {session_id}: the session from which another one starts is "
            "its parent; give one of them",
        )
    answers = client.services.answers
    if answers is not None and (recorded := answers.recorded_origin(session_id)) is not None:
        return recorded
    return fetch_origin(client, session_id, _core_of(session), snapshot_id, check_user(new.user_id))


def find_core(client: ClientCore, new: NewSession) -> SessionCore:
    """Attach to the newest session of an id, resumed if asked for, or create it: then it is Idle.

    Raises as `SessionClient.open` does, but for the start.
    """
    from sessionary.producers.client_core.opening import (  # most ids are new ones
        Opening,
        Place,
        attach_opened,
        find_place,
    )

    if new.session_id is None:
        raise Invalid("invalid_value", "session id is None: pass a UUID, or a text of your own")
    given, tried, ended = given_session_id(client.tenant_id, new.session_id), set[str](), set[str]()
    user_id, is_alive = check_user(new.user_id), lifeline_of(new.beats_with)
    opening, is_too_old, has_asked = Opening(client), False, False
    while True:
        place = find_place(opening, given.session_id)
        if place.state is not None:
            try:
                core = attach_opened(client, place, user_id, is_alive)
            except SessionLost:  # it is archived since
                if place.session_id in ended:
                    raise
            else:
                has_timed_out = core.view.local_state == "Timeout"
                if new.resume and has_timed_out and not _resume(core, again=not has_asked):
                    has_asked = True
                    continue
                if core.view.local_state != "Terminated" or place.session_id in ended:
                    if new.snapshots:
                        begin_snapshots(core)
                    return core
                core.abandon()
            ended.add(place.session_id)
            continue
        if is_too_old and place.parent_id is None:
            place = Place(successor_id(client.tenant_id, place.session_id), None, place.session_id)
        try:
            return _create_named(client, new, GivenId(place.session_id, given.external_id), place.parent_id)
        except SessionExists:  # another process was faster
            if place.session_id in tried:  # and our token does not show its session
                raise
            tried.add(place.session_id)
        except Rejected as error:  # a UUIDv7 names its own time: its successors, which are no such, may begin
            if is_too_old or error.reason != "too_old":
                raise
            is_too_old = True


def _resume(core: SessionCore, *, again: bool) -> bool:
    """Resume a session that has timed out; leave it if that fails.

    Returns False if it is rejected, as another process may have done it, and `again` is True.
    """
    try:
        run_session_flow(core, Lifecycle(core).resume(None, {}))
    except BaseException as error:
        core.abandon()
        if again and isinstance(error, Rejected):
            return False
        raise
    return True


def open_core(
    client: ClientCore, new: NewSession, validate: Step | None, connect: Step | None, quota_wait_s: float | None
) -> SessionCore:
    """Attach to a session, or create and start it. Raises as `SessionClient.open` does."""
    core = find_core(client, new)
    if core.view.local_state == "Idle":
        run_session_flow(core, Lifecycle(core).start(validate, connect, quota_wait_s, new.metadata))
    return core


def start_core(
    client: ClientCore, new: NewSession, validate: Step | None, connect: Step | None, quota_wait_s: float | None
) -> SessionCore:
    """Create and start a session. Raises as `SessionClient.session` does."""
    core = create_core(client, new)
    run_session_flow(core, Lifecycle(core).start(validate, connect, quota_wait_s, new.metadata))
    return core


def attach_core(
    client: ClientCore,
    session_id: SessionId,
    user_id: str | None,
    *,
    take_over: bool,
    beats_with: BeatsWith,
    snapshots: bool,
    metadata: EventMetadata,
) -> SessionCore:
    """Continue a session that exists. Raises as `SessionClient.attach` does."""
    return run_session_flow(
        *begin_attach(
            client,
            session_id,
            user_id,
            take_over=take_over,
            beats_with=beats_with,
            snapshots=snapshots,
            metadata=metadata,
        )
    )


def begin_attach(
    client: ClientCore,
    session_id: SessionId,
    user_id: str | None,
    *,
    take_over: bool,
    beats_with: BeatsWith,
    snapshots: bool,
    metadata: EventMetadata,
) -> "tuple[SessionCore, Flow[SessionCore]]":
    """Return a session that exists, and the flow that reads it. Asks nothing yet."""
    envelope_fields(metadata)  # raises for an unknown name before anything is asked
    core = client.open_attached(session_id, user_id, lifeline_of(beats_with), may_beat=not take_over)
    core.view.snapshots = snapshots
    return core, attach_flow(core, take_over, metadata)


def follow_session(client: ClientCore, session: SessionId | KnownSession, timeout_s: float | None) -> SessionFollower:
    """Follow a session. Raises as `SessionClient.follow` does."""
    core = _core_of(session)
    if core is None:
        return client.open_follower(id_of(client, session), lambda: None, timeout_s)
    emitter = core.emitter

    def find_after() -> LogPosition | None:
        emitter.check_process()
        return emitter.wait_position(client.settings.verdict_timeout_s)

    return client.open_follower(emitter.key.session_id, find_after, timeout_s)


def read_conversation(
    client: ClientCore, session: SessionId | KnownSession, last: int, load_artifacts: bool
) -> Sequence[MessageView]:
    """Return the last turns of a session. Raises as `SessionClient.conversation` does."""
    core = _core_of(session)
    if core is not None:
        return Turns(core).read(last, load_artifacts)
    session_id = id_of(client, session)
    check_last(last)
    client.reopen_in_child()
    runs, timeout_s = client.ports.runs, client.settings.verdict_timeout_s
    if runs is None:
        return ()
    messages = runs.fetch_messages(session_id, last, None, timeout_s)
    return load_contents(messages, client.artifacts) if load_artifacts else messages


def _core_of(session: SessionId | KnownSession) -> SessionCore | None:
    """Return the core of a session that is given by its object; None if it is given by its id."""
    core: SessionCore | None = getattr(session, "core", None)
    return core


def id_of(client: ClientCore, session: SessionId | KnownSession, what: str = "session id") -> str:
    """Return a session's id. Raises `Invalid`."""
    core = _core_of(session)
    if core is None:
        return given_session_id(client.tenant_id, cast(SessionId, session), what).session_id
    key = core.emitter.key
    if key.tenant_id != client.tenant_id:
        raise Invalid("invalid_value", f"session {key.session_id} is of tenant {key.tenant_id}, not {client.tenant_id}")
    return key.session_id
