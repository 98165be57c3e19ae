"""Clients of several tenants over one producer: one connection, one spool, one heartbeat timer."""

import copy
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from sessionary.producers.context.thread_inheritance import inherit_in_threads
from sessionary.producers.context.traced_calls import F, traced
from sessionary.producers.delivery.emitter import SenderIdentity, SendGate
from sessionary.producers.errors import ProducerError
from sessionary.producers.judgement.notices import Callbacks
from sessionary.producers.lifetime.migration_verbs import MigrationVerbs
from sessionary.producers.ports import Ports
from sessionary.producers.session.pending_verdict import VerdictFollower
from sessionary.schemas.ids import checked_name

if TYPE_CHECKING:  # pydantic takes long to load
    from sessionary.producers.settings import ProducerSettings


class TenantGate(SendGate):
    """Open while it and the gate of the shared client are open; of the parent if that one is."""

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


class TenantClients(MigrationVerbs):
    """A client that makes clients of further tenants, which share what belongs to the process."""

    _shared: Self | None  # the client whose producer this one uses
    _tenants: "weakref.WeakSet[Self]"  # the clients that use this one's

    def for_tenant(self, tenant_id: str, *, api_token: str | None = None) -> Self:
        """Return a client of another tenant that uses this one's producer, spool and heartbeats.

        It has the same service and agent, and sessions and a clean-up handler of its own. Its
        counters and backlog are those of all tenants of the producer. Closing it stops its
        heartbeats and its clean-ups, and nothing of the other tenants; closing this client closes
        it too. Does not block.

        Args:
            tenant_id: The tenant.
            api_token: The tenant's token for the control API. This client's own names its own
                tenant, so it is never used for another one.

        Raises:
            Invalid: The name is not allowed.
            SettingsError: The token is malformed.
            ClientClosed: This client is closed.
            ProducerError: The client was made with `ports` that serve one tenant only.
        """
        shared = self._shared or self
        name = checked_name("tenant", tenant_id)
        from sessionary.producers.settings import ProducerSettings

        token = ProducerSettings.from_env({}, api_token=api_token).api_token  # validated
        with shared._opening:  # one that closes at the same time closes this one too
            client = copy.copy(shared)
            client._shared = shared
            client._tenant_id = name
            client._settings = shared._settings.model_copy(update={"api_token": token})
            client._cleanup_handler, client._migrations_taken, client._acceptor = None, None, None
            client._is_left = client._was_closed = False
            client._opening, client._closing = threading.RLock(), threading.Lock()
            client._open_ports()
            shared._tenants.add(client)
        return client

    def traced(self, kind: str, *, name: str | None = None, side_effect: bool = False) -> Callable[[F], F]:
        """Decorate a function so that each call is reported in the current session.

        The same as `sessionary.producers.traced`, which needs no client; the session may be of any
        client. For functions, coroutine functions, generators and asynchronous generators. What the
        function takes, returns and raises stays as it is; arguments and results are not reported.

        Args:
            kind: `tool` for the events of a tool call; any other word for those of a step.
            name: Name of the tool or the step. Default: the function's name.
            side_effect: The tool changes something outside.
        """
        return traced(kind, name=name, side_effect=side_effect)

    def _open_client(
        self,
        tenant_id: str,
        identity: SenderIdentity,
        settings: "ProducerSettings",
        callbacks: Callbacks,
        ports: Ports | None,
    ) -> None:
        self._shared, self._tenants = None, weakref.WeakSet()
        super()._open_client(tenant_id, identity, settings, callbacks, ports)
        if settings.inherit_in_threads:
            inherit_in_threads()

    def _open_ports(self) -> None:
        shared = self._shared
        if shared is None:
            super()._open_ports()
            return
        with shared._opening:
            shared._reopen_in_child()
            if shared._is_closing or not shared._gate.open:
                raise self._closed_error()
            if shared._ports.tenant_ports is None:
                raise ProducerError("these ports serve one tenant only; make a client for each tenant")
            self._gate = TenantGate(shared._gate)
            self._producer_id, self._sequences = shared._producer_id, shared._sequences
            self._errors, self._counts_lock, self._notices = shared._errors, shared._counts_lock, shared._notices
            self._ports = shared._ports.tenant_ports(self._tenant_id, self._settings)
            self._heartbeats, self._follower = shared._heartbeats, VerdictFollower(self._on_error)
            self._start_watch()
            shared._watch.close_with(self._watch)
            self._services = shared._services._replace(
                control=self._ports.control, follower=self._follower, watch=self._watch, runs=self._ports.runs
            )

    def _leave_parent(self) -> None:
        tenants = list(self._tenants)
        for client in tenants:  # their gates are open as long as this one's is
            client._part_from_parent()
        super()._leave_parent()
        for client in tenants:
            client._producer_id = self._producer_id

    def _begin_stop(self) -> None:
        for client in self._list_tenants():
            client._begin_stop()
        super()._begin_stop()

    def _stop_work(self, deadline: float) -> None:
        for client in self._list_tenants():
            client._stop_work(deadline)
        super()._stop_work(deadline)

    def _close_ports(self, deadline: float) -> int:
        if self._shared is None:
            return super()._close_ports(deadline)
        self._begin_stop()
        self._stop_work(deadline)
        self._gate.open = False
        return 0

    def _list_tenants(self) -> list[Self]:
        """Return the clients that use this one's producer; none if it uses another one's."""
        if self._shared is not None:
            return []
        with self._opening:
            return list(self._tenants)


__all__ = ["TenantClients", "TenantGate"]
