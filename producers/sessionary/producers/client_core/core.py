"""The core of a client: its parts per process, and those shared with other tenants.

Threads, connections, files and sequence numbers are made once per process. In a forked child none
of these work: threads do not exist there, and files and numbers are the parent's. So a fork
separates the child's copy of the client from these parts, and its first use makes new ones. POSIX
permits a child of a process with threads little else: no lock may be taken in between. All is in
one module because opening, fork and end change the same parts.
"""

import contextlib
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from sessionary.producers.context.call_counts import SessionCalls
from sessionary.producers.context.scope import CallAnswers
from sessionary.producers.control.cleanup_responder import CleanupHandler, CleanupResponder, DataClassLookup
from sessionary.producers.delivery.emitter import Emitter, SenderIdentity, SendGate, SequenceRegistry, new_producer_id
from sessionary.producers.errors import (
    AuthenticationFailed,
    ClientClosed,
    Invalid,
    ProducerError,
    SessionaryError,
    SettingsError,
)
from sessionary.producers.follower import SessionFollower
from sessionary.producers.migrations import HandOver, MigrationAcceptor
from sessionary.producers.ports import (
    CleanupConsumer,
    Control,
    Counters,
    HeartbeatTimer,
    MigrationConsumer,
    OnError,
    Ports,
    Transport,
)
from sessionary.producers.process.guards import (
    Lease,
    bind_to_process,
    check_threads,
    close_without,
    exit_on_sigterm,
    guard_callback,
    keep_forever,
)
from sessionary.producers.run_ports import LogPosition
from sessionary.producers.session.core import SessionCore, SharedServices
from sessionary.producers.session.heartbeat import Heartbeats, IsAlive
from sessionary.producers.session.pending_verdict import VerdictFollower
from sessionary.producers.session.polled import new_core
from sessionary.producers.verdicts.notifications import Callbacks, Notifications
from sessionary.producers.verdicts.session_watch import SessionWatch
from sessionary.schemas.ids import SessionKey, checked_name, given_session_id
from sessionary.schemas.types import DataClass

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.session.snapshots import SnapshotCache
    from sessionary.producers.settings import ProducerSettings


# Asks the control API once whether it accepts the token, so that a wrong one is known at the start.
#
# Without this an agent would find out at its first `resume`, which may be days later.


REFUSED_TOKEN = "control_authentication"
"""The reason by which a rejected token is counted."""
_TIMEOUT_S = 8.0


def start_token_check(control: Control, on_error: OnError) -> threading.Thread:
    """Ask in a daemon thread, which ends after 10 s at most. Reports a rejected token only."""

    def check_token() -> None:
        try:
            control.fetch_session(str(uuid.uuid4()), None, _TIMEOUT_S)
        except AuthenticationFailed as error:
            on_error(error)
        except SessionaryError:
            pass  # unknown, as it should be; or no answer, which the waiting verb will report

    thread = threading.Thread(target=check_token, name="sessionary-token-check", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be had: the first verb that waits finds out
        thread.start()
    return thread


class TenantGate(SendGate):
    """Open while this gate and the shared client's are open; the parent's if that one is."""

    __slots__ = ("_own", "_shared")

    def __init__(self, shared: SendGate) -> None:
        self._own, self._shared = True, shared

    @property
    def of_parent(self) -> bool:  # type: ignore[override]  # it is never set: the shared one is
        """True in a forked child, if its parent made the shared client's gate."""
        return self._shared.of_parent

    @property
    def open(self) -> bool:
        """True while the tenant's client may send."""
        return self._own and self._shared.open

    @open.setter
    def open(self, value: bool) -> None:
        self._own = value


class ClientCore:
    """A client of one tenant, from its opening to its end, and again in a forked child.

    The core of a further tenant is built on the one whose producer it uses, its `shared` core.
    Thread-safe.

    Attributes:
        producer_id: The producer id in its events' envelopes; a forked child has another one.
        gate: Shut once the client is closed.
        ports: Kafka and the control API, or their replacements.
        heartbeats: The timer of all sessions of the process.
        watch: Asks about the sessions of this client.
        services: The services that those sessions share.
    """

    producer_id: str
    gate: SendGate
    ports: Ports
    heartbeats: HeartbeatTimer
    watch: SessionWatch
    services: SharedServices

    def __init__(
        self,
        tenant_id: str,
        identity: SenderIdentity,
        settings: "ProducerSettings",
        callbacks: Callbacks,
        given_ports: Ports | None,
        artifacts: "ArtifactLibrary | None",
        shared: "ClientCore | None" = None,
    ) -> None:
        """Open the client.

        Args:
            tenant_id: The tenant.
            identity: The identity in the client's events.
            settings: The client's.
            callbacks: The user's.
            given_ports: Replace Kafka and the control API.
            artifacts: Keeps values that are too large for events.
            shared: The core whose producer this one uses.

        Raises:
            SettingsError: A setting is malformed.
            ClientClosed: The shared client is closed.
            ProducerError: Its ports serve one tenant only.
        """
        self.tenant_id = tenant_id
        self.identity = identity
        self.settings = settings
        self.artifacts = artifacts
        self.on_error = guard_callback(callbacks.on_error)
        self.callbacks, self._given_ports = callbacks, given_ports
        self._callbacks = callbacks._replace(on_error=self._report_finding)
        self._shared = shared
        self.tenants = weakref.WeakSet[ClientCore]()  # the cores that use this one's producer
        self._cleanup_handler: CleanupHandler | None = None
        self._migrations_taken: tuple[HandOver, int] | None = None  # by what, and how many at once
        self.acceptor: MigrationAcceptor | None = None
        self.producer_id = new_producer_id() if shared is None else shared.producer_id
        self.opening, self._closing = threading.RLock(), threading.Lock()
        self.is_closing = self._was_closed = False
        self._is_left = False  # true in a forked child until its first use of the client
        self._is_parents = False  # true in a forked child that closed the client without using it
        self._lease: weakref.ref[Lease] | None = None
        self._without_lease: weakref.finalize[..., Lease] | None = None
        self._in_use: Lease | None = None  # while handlers are called
        self._open_ports()
        if shared is None:
            bind_to_process(self)
        if shared is None and given_ports is None and settings.handle_sigterm and not settings.disabled:
            exit_on_sigterm()

    def for_tenant(self, tenant_id: str, api_token: str | None) -> "ClientCore":
        """Return the core of another tenant's client; see `SessionClient.for_tenant`."""
        shared = self._shared or self
        name = checked_name("tenant", tenant_id)
        from sessionary.producers.settings import ProducerSettings  # pydantic takes long to load

        token = ProducerSettings.from_env({}, api_token=api_token).api_token  # validated
        settings = shared.settings.model_copy(update={"api_token": token})
        parts = (name, shared.identity, settings, shared.callbacks, None, shared.artifacts)
        with shared.opening:  # one that closes at the same time closes this one too
            core = ClientCore(*parts, shared)
            shared.tenants.add(core)
        return core

    def for_replay(self, wrap: Callable[[Transport], Transport], answers: CallAnswers) -> "ClientCore":
        """Return the core of a client of the same names, whose sessions are answered so.

        Closing it closes nothing of this one. Raises as `for_tenant` does.
        """
        shared = self._shared or self
        parts = (self.tenant_id, shared.identity, self.settings, shared.callbacks, None, shared.artifacts)
        with shared.opening:
            core = ClientCore(*parts, shared)
            shared.tenants.add(core)
        core.ports = core.ports._replace(transport=wrap(core.ports.transport))
        core.services = core.services._replace(answers=answers)
        return core

    def lease(self) -> Lease:
        """Return what keeps the client open: it is closed once nothing holds its lease.

        One in memory, or of a further tenant, is closed by its program only.
        """
        if self._shared is not None:
            return self._shared.lease()
        lease = None if self._lease is None else self._lease()
        if lease is None:
            lease = Lease()
            self._lease = weakref.ref(lease)
            if self._given_ports is None and not self._was_closed:
                self._without_lease = close_without(lease, self)
        return lease

    @property
    def is_left(self) -> bool:
        """True in a forked child until its first use of the client."""
        return self._is_left

    @property
    def is_open(self) -> bool:
        """True while the client may send."""
        return self.gate.open

    def _open_ports(self) -> None:
        """Make the parts of one process: threads, connections, files, sequence numbers."""
        shared = self._shared
        with contextlib.nullcontext() if shared is None else shared.opening:
            if shared is None:
                self._open_own_ports()
            else:
                self._open_shared_ports(shared)
            self._open_services()
            if shared is not None:
                shared.watch.close_with(self.watch)

    def _open_services(self) -> None:
        self._followers, self._followers_lock = weakref.WeakSet[SessionFollower](), threading.Lock()
        self._ends_followers = False
        self._start_watch()
        self.follower = VerdictFollower(self.on_error)
        settings = self.settings
        self.services = SharedServices(
            self.ports.control,
            self.heartbeats,
            self.follower,
            settings.heartbeat_interval_s,
            settings.verdict_timeout_s,
            self.on_error,
            self.watch,
            {} if self._shared is None else self._shared.services.task_positions,
            SessionCalls(),
            self.ports.runs,
            self.ports.waits if self._shared is None else self._shared.services.waits,
            self.artifacts,
            settings.quotas,
            settings.quota_wait_s,
            settings.model_call_limit_s,
            None if self.ports.runs is None else cache(lambda: _new_snapshot_cache(settings.snapshot_cache_mb)),
            {"server_version": settings.server_version, "protocol_version": settings.protocol_version},
        )

    def _open_own_ports(self) -> None:
        self.gate = SendGate()
        self.sequences = SequenceRegistry(self.producer_id)
        self.errors, self.counts_lock = Counter[str](), threading.Lock()
        self.notifications = Notifications(self._callbacks)
        self.ports = self._given_ports or self._outside_ports()
        self.heartbeats = self.ports.heartbeats or Heartbeats(self.on_error, self.ports.place_of)
        if self.settings.disabled:
            self.heartbeats.close(0.0)

    def _open_shared_ports(self, shared: "ClientCore") -> None:
        shared.reopen_in_child()
        if shared.is_closing or not shared.gate.open:
            raise self.closed_error()
        if shared.ports.tenant_ports is None:
            raise ProducerError("these ports serve one tenant only; make a client for each tenant")
        self.gate = TenantGate(shared.gate)
        self.producer_id, self.sequences = shared.producer_id, shared.sequences
        self.errors, self.counts_lock, self.notifications = shared.errors, shared.counts_lock, shared.notifications
        self.ports = shared.ports.tenant_ports(self.tenant_id, self.settings)
        self.heartbeats = shared.heartbeats

    def _outside_ports(self) -> Ports:
        from sessionary.producers.kafka_ports import kafka_ports  # takes long to load

        if not self.settings.disabled:
            check_threads()
        service_id = self.identity.service_id
        return kafka_ports(self.settings, self.tenant_id, service_id, self.producer_id, self.on_error)

    def _start_watch(self) -> None:
        """Begin to ask about sessions, which also checks the token; or check only that."""
        ports, interval_s = self.ports, self.settings.poll_interval_s
        self.watch = SessionWatch(ports.polls, self.notifications, interval_s, ports.poll_timer)
        if ports.polls is not None and ports.poll_timer is None and not interval_s:
            start_token_check(ports.control, self._report_finding)

    def _report_finding(self, error: Exception) -> None:
        if isinstance(error, AuthenticationFailed):
            self._count_error(REFUSED_TOKEN)
        self.on_error(error)

    def leave_parent(self) -> None:
        """Part from the parent process, in a forked child before anything else runs there."""
        tenants = list(self.tenants)
        for tenant in tenants:  # their gates are open as long as this one's is
            tenant.part_from_parent()
        self.gate.of_parent = True
        if self.gate.open or self._is_left:
            self.producer_id = new_producer_id()
        if self.gate.open:
            with contextlib.suppress(Exception):  # the child must start whatever another thread did
                self.ports.abandon_files()
        self.part_from_parent()
        for tenant in tenants:
            tenant.producer_id = self.producer_id

    def part_from_parent(self) -> None:
        """Shut the gate until the first use. Takes no lock: its thread may not exist here."""
        if self.gate.open:
            self.gate.open = False
            self._is_left, self.is_closing = True, False
            keep_forever(self.ports)
        self.opening, self._closing = threading.RLock(), threading.Lock()

    def reopen_in_child(self) -> None:
        """Open the client again if this is a forked child that uses it for the first time."""
        if not self._is_left or self._is_parents:
            return
        with self.opening:
            if self._is_left and not self._is_parents:
                self._open_ports()
                self._is_left = False
                if self._cleanup_handler is not None:
                    self._start_cleanups(self._cleanup_handler)
                if self._migrations_taken is not None:
                    self._start_migrations(*self._migrations_taken)

    def answer_cleanups(self, handler: CleanupHandler) -> None:
        """Call `handler` for clean-ups; raises as `SessionClient.on_cleanup` does."""
        self.reopen_in_child()
        if self._cleanup_handler is not None and not self._is_parents:
            raise ProducerError("this client already has a clean-up handler; call on_cleanup once")
        self._start_cleanups(handler)
        self._cleanup_handler = handler

    def take_migrations(self, hand_over: HandOver, concurrency: int) -> None:
        """Take sessions that migrate here; raises as `SessionClient.accept_migrations` does."""
        self.reopen_in_child()
        if type(concurrency) is not int or concurrency < 1:
            raise Invalid("invalid_value", f"concurrency is {concurrency!r}; use a whole number from 1 on")
        if self._migrations_taken is not None and not self._is_parents:
            raise ProducerError("this client already takes migrations; call accept_migrations once")
        if self.ports.migrations is None:
            raise ProducerError("the ports of this client serve no migrations")
        self.ports.control.check_configured()
        self._start_migrations(hand_over, concurrency)
        self._migrations_taken = hand_over, concurrency

    def _start_cleanups(self, handler: CleanupHandler) -> None:
        if self._is_parents:
            raise self.closed_error()
        lookup = DataClassLookup(self.ports.control, self.on_error)

        def emitter_at(key: SessionKey, epoch: int) -> Emitter:
            emitter = self.new_emitter(key, None, ())
            emitter.epoch = epoch
            if not emitter.last_seq:  # of another client, or ended and forgotten
                emitter.add_data_classes(lookup.find_classes(key.session_id))
            return emitter

        self.sequences.keep_ended()
        self._in_use = self.lease()
        self.ports.cleanups.start(CleanupResponder(handler, emitter_at, self.on_error))

    def _start_migrations(self, hand_over: HandOver, concurrency: int) -> None:
        if self._is_parents or not self.gate.open:
            raise self.closed_error()
        requests = self.ports.migrations
        assert requests is not None
        parts = (self.open_attached, hand_over, concurrency, self.on_error)
        self._in_use = self.lease()
        self.acceptor = MigrationAcceptor(*parts, in_place=requests.works_in_place)
        requests.start(self.acceptor)

    def begin_exit(self) -> float:
        """Begin to close as the process exits; return how long `close` may take, in seconds."""
        if not self._is_left and not self._was_closed:
            self.begin_stop()
        return self.settings.close_timeout_s

    def begin_stop(self) -> None:
        """Signal all parts with a dedicated thread to stop; wait for nothing."""
        for tenant in self._list_tenants():
            tenant.begin_stop()
        if self.acceptor is not None:
            self._try_step(self.acceptor.stop)
        self._try_step(self.watch.close)
        with self._followers_lock:
            self._ends_followers = True  # one that is opened meanwhile would wait for ever
            followers = list(self._followers)
        for follower in followers:
            self._try_step(follower.close)
        for requests in self._request_readers():
            self._close_reader(requests, 0.0)

    def _request_readers(self) -> list[CleanupConsumer | MigrationConsumer]:
        migrations = self.ports.migrations
        return [self.ports.cleanups, *([] if migrations is None else [migrations])]

    def _close_reader(self, requests: CleanupConsumer | MigrationConsumer, timeout_s: float) -> None:
        self._try_step(lambda: requests.close(timeout_s))

    def stop_work(self, deadline: float) -> None:
        """Wait for the remaining senders: clean-ups, and verdicts on sessions that were left."""
        for tenant in self._list_tenants():
            tenant.stop_work(deadline)
        if self.acceptor is not None:
            acceptor = self.acceptor
            self._try_step(lambda: acceptor.close(self._left_s(deadline)))
        for requests in self._request_readers():
            self._close_reader(requests, self._left_s(deadline))
        self._try_step(lambda: self.follower.close(self._left_s(deadline)))
        self._try_step(self.ports.close_idle)

    def _list_tenants(self) -> "list[ClientCore]":
        """Return the cores that use this one's producer; none if it uses another one's."""
        if self._shared is not None:
            return []
        with self.opening:
            return list(self.tenants)

    def _close_ports(self, deadline: float) -> int:
        """Close all parts, even if one fails; return how many events are not acknowledged."""
        self.begin_stop()
        self.stop_work(deadline)
        if self._shared is not None:
            self.gate.open = False
            return 0
        self._try_step(lambda: self.heartbeats.close(self._left_s(deadline)))
        self.gate.open = False
        try:
            return self.ports.transport.close(self._left_s(deadline))
        except Exception as error:  # noqa: BLE001 - a disk that fails must not raise into the agent
            self.on_error(error)
        return 0

    def _try_step(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the other parts must be closed, and the events be delivered
            self.on_error(error)

    def close(self, timeout_s: float | None = None) -> None:
        """Close all parts; a second call, or one of a child that never used them, does nothing."""
        timeout_s = self.settings.close_timeout_s if timeout_s is None else timeout_s
        if self._is_left:
            self._is_parents = True  # its gate is shut, and its ports are the parent's
            return
        with self.opening:
            self.is_closing = True
        deadline = time.monotonic() + timeout_s
        if not self._closing.acquire(timeout=max(timeout_s, 0.0)):
            return  # another thread closes it, and waits for longer
        try:
            if self._was_closed:
                return  # the exit of the process waits no longer than the call of before
            failed_before = self.ports.transport.counters.failed
            left = self._close_ports(deadline)
            self._was_closed, self._in_use = True, None
            if self._without_lease is not None:
                self._without_lease.detach()
        finally:
            self._closing.release()
        counters = self.ports.transport.counters
        kept, lost = left if self.ports.delivery_policy == "spool" else 0, counters.failed - failed_before
        if (kept or lost) and self._shared is None:
            self.on_error(ClientClosed(_describe_end(kept, lost, counters)))

    def open_follower(
        self, session_id: str, find_after: Callable[[], LogPosition | None], timeout_s: float | None
    ) -> SessionFollower:
        """Return a follower of a session, which ends with the client.

        Raises as `SessionClient.follow` does.

        `find_after`: returns the place of a record that the first state must include.
        """
        self.reopen_in_child()
        if not self.gate.open:
            raise self.closed_error()
        follows, first_s = self.ports.follows, self.settings.verdict_timeout_s
        if follows is None:
            raise SettingsError("this client has no control API to follow a session by")
        follows.check_configured()
        follower = SessionFollower(follows, session_id, find_after, first_s, timeout_s, self._forget_follower)
        follower.lease = self.lease()
        with self._followers_lock:
            if self._ends_followers:
                raise self.closed_error()
            self._followers.add(follower)
        return follower

    def open_attached(
        self, session_id: str | uuid.UUID, user_id: str | None, is_alive: IsAlive | None = None, *, may_beat: bool
    ) -> SessionCore:
        """Return a session that exists, before anything is read of it.

        One that may not beat sends no heartbeat before it asks for a verdict.
        """
        key = SessionKey(self.tenant_id, given_session_id(self.tenant_id, session_id).session_id)
        core = new_core(self.new_emitter(key, user_id, ()), self.services, is_alive=is_alive)
        if not may_beat:
            core.detach()
        return core

    def _forget_follower(self, follower: SessionFollower) -> None:
        with self._followers_lock:
            self._followers.discard(follower)

    def _count_error(self, reason: str) -> None:
        with self.counts_lock:
            self.errors[reason] += 1

    def read_counters(self) -> Counters:
        """Return the transport's numbers with those of the client itself."""
        counters = self.ports.transport.counters._replace(rejected=self.watch.notifications.rejected)
        if not self.errors:
            return counters
        return counters._replace(errors=MappingProxyType({**counters.errors, **self.errors}))

    def describe(self) -> str:
        """Return tenant, service, agent and producer id in one line."""
        names = self.tenant_id, self.identity.service_id, self.identity.agent_id
        return f"{'/'.join(names)}, producer_id={self.producer_id}"

    def closed_error(self) -> ClientClosed:
        """Return the error of a client that is closed."""
        return ClientClosed("the client is closed; create a new one")

    def new_emitter(
        self, key: SessionKey, user_id: str | None, data_classes: Sequence[DataClass], *, new: bool = False
    ) -> Emitter:
        """Return the emitter of a session's events. Raises `ClientClosed`."""
        self.reopen_in_child()
        if not self.gate.open:
            raise self.closed_error()
        emitter = Emitter(
            self.ports.transport,
            self.gate,
            self.identity,
            key,
            self.sequences.sequence_for(key, new=new),
            user_id=user_id,
            data_classes=data_classes,
            registry=self.sequences,
        )
        emitter.lease = self.lease()
        return emitter

    def _left_s(self, deadline: float) -> float:
        """Return the seconds until a moment of the monotonic clock; 0 once it is over."""
        return max(deadline - time.monotonic(), 0.0)


class ClientFace(Protocol):
    """A `SessionClient` or an `AsyncSessionClient`."""

    core: ClientCore
    _lease: Lease


F = TypeVar("F", bound=ClientFace)


def over_core(face: type[F], core: ClientCore) -> F:
    """Return a client over a core that is open."""
    client = face.__new__(face)
    client.core = core
    client._lease = core.lease()
    return client


def _describe_end(kept: int, lost: int, counters: Counters) -> str:
    """Return where the events of a closed client are."""
    places = [f"{kept} are in the spool, and the next client of the folder sends them"] if kept else []
    places += [f"{lost} are lost"] if lost else []
    text = f"{kept + lost} events were not acknowledged before the client closed: {', '.join(places)}. "
    text += f"{counters.delivered} were acknowledged"
    earlier = counters.dropped + counters.failed + counters.expired - lost
    return text if earlier <= 0 else f"{text}, {earlier} were dropped or given up before"


def _new_snapshot_cache(limit_mb: int) -> "SnapshotCache":
    from sessionary.producers.session.snapshots import SnapshotCache  # few clients have such snapshots

    return SnapshotCache(limit_mb * 1_000_000)
