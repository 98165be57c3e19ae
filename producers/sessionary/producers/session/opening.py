"""How a session's core is made, and how a session that exists is opened."""

from collections.abc import Mapping
from functools import partial

from sessionary.producers.context.marks import Marks
from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.durable.flow import Do, Flow, Send
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.session.core import SessionCore, SharedServices
from sessionary.producers.session.heartbeat import IsAlive
from sessionary.producers.session.polled import watch_core
from sessionary.producers.session.state_json import canonical_json
from sessionary.producers.session.verdicts import Verdicts
from sessionary.producers.session.view import LocalView
from sessionary.schemas.types import Limits


def new_core(
    emitter: Emitter,
    services: SharedServices,
    *,
    limits: Limits | None = None,
    state: Mapping[str, Json] | None = None,
    state_schema_version: int = 1,
    is_alive: IsAlive | None = None,
) -> SessionCore:
    """Return the core of a session, which the client's watch knows. Sends nothing.

    `is_alive`: of the thread or task that the heartbeats end with, if there is one. Raises
    `Invalid` if the state cannot be written as JSON.
    """
    state_json = canonical_json({} if state is None else state)
    view = LocalView(emitter, limits or Limits(), state_json, state_schema_version, quotas=services.quotas)
    core = SessionCore(view, services, is_alive)
    watch_core(core)
    return core


def attach_flow(core: SessionCore, take_over: bool, marks: Marks) -> Flow[SessionCore]:
    """Read a session that exists, and take it over if asked. Raises as `SessionClient.attach`."""
    verdicts = Verdicts(core)
    try:
        view: SessionView = yield Do(partial(core.sync, core.view.departures))
        if take_over:
            pending = yield Send(partial(verdicts.ask_take_over, marks))
            yield Do(partial(verdicts.wait_take_over, pending))
        elif view.owner_service != core.emitter.service_id:
            core.detach()
    except BaseException:
        core.abandon()
        raise
    return core
