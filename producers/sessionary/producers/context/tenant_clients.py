"""Clients of several tenants over one producer: one connection, one spool, one heartbeat timer."""

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Self

from pydantic import SecretStr

from sessionary.producers.context.traced_calls import F, traced
from sessionary.producers.delivery.emitter import SendGate
from sessionary.producers.errors import ClientClosed, ProducerError
from sessionary.producers.ports import Ports
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.ids import checked_name


class TenantGate(SendGate):
    """Open while it and the shared client's gate are open."""

    __slots__ = ("_own", "_shared")

    def __init__(self, shared: SendGate) -> None:
        self._own, self._shared = True, shared

    @property
    def open(self) -> bool:
        """True while the tenant's client may send."""
        return self._own and self._shared.open

    @open.setter
    def open(self, value: bool) -> None:
        self._own = value


class TenantClients:
    """What a client has for further tenants. `SessionClient` is one, and sets the fields below."""

    _tenant_id: str
    _settings: ProducerSettings
    _ports: Ports
    _gate: SendGate
    _shared: Self | None = None  # the client whose producer this one uses
    _tenants: "weakref.WeakSet[Self]"
    _tenants_lock: threading.Lock

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
            ClientClosed: This client is closed.
            ProducerError: The client was made with `ports` that serve one tenant only.
        """
        shared = self._shared or self
        name = checked_name("tenant", tenant_id)
        if shared._ports.tenant_ports is None:
            raise ProducerError("these ports serve one tenant only; make a client for each tenant")
        client = copy.copy(shared)
        client._shared = shared
        client._tenant_id = name
        client._gate = TenantGate(shared._gate)
        token = None if api_token is None else SecretStr(api_token)
        client._settings = shared._settings.model_copy(update={"api_token": token})
        client._use_ports(shared._ports.tenant_ports(name, client._settings))
        with shared._tenants_lock:
            if not shared._gate.open:
                raise ClientClosed("the client is closed; create a new one")
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

    def _use_ports(self, ports: Ports) -> None:
        raise NotImplementedError

    def _close_tenants(self) -> bool:
        """Close what belongs to a tenant alone. Return True if that is all there is to close."""
        if self._shared is not None:
            self._ports.cleanups.close()
            self._gate.open = False
            return True
        with self._tenants_lock:
            tenants = list(self._tenants)
        for client in tenants:
            client._close_tenants()
        return False


__all__ = ["TenantClients", "TenantGate"]
